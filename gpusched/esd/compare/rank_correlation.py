"""Spearman's rank correlation with a bootstrap interval."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import StatisticsError, correlation

_RESAMPLES, _WORK = 1000, 200_000  # at most; resamples times values
_SEED = 1


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return Spearman's ρ, the correlation of the ranks, which equal values share. NaN if all are equal."""
    try:
        return correlation(_ranks(xs), _ranks(ys))
    except StatisticsError:
        return math.nan


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
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]
