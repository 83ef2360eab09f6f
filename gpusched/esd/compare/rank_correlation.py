"""Spearman's rank correlation with a bootstrap interval. Needs no library."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

_RESAMPLES, _WORK = 1000, 200_000  # at most; resamples times values
_SEED = 1


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's ρ, the correlation of the ranks, which equal values share. NaN if all are equal."""
    first, second = _centred(_ranks(xs)), _centred(_ranks(ys))
    size = math.sqrt(sum(x * x for x in first) * sum(y * y for y in second))
    return sum(x * y for x, y in zip(first, second, strict=True)) / size if size else math.nan


def interval(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of ρ over pairs drawn from these, the same in every run. NaN if there is none."""
    source, everyone = random.Random(_SEED), range(len(xs))
    found = []
    for _ in range(min(_RESAMPLES, max(100, _WORK // max(1, len(xs))))):
        drawn = source.choices(everyone, k=len(xs))
        found.append(spearman([xs[n] for n in drawn], [ys[n] for n in drawn]))
    finite = sorted(rho for rho in found if not math.isnan(rho))
    if not finite:
        return math.nan, math.nan
    return finite[int(0.025 * len(finite))], finite[math.ceil(0.975 * len(finite)) - 1]


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2
        start = end + 1
    return ranks


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]
