"""The time that a whole data set will take, judged by few items, with an interval that is honest about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Quantiles of Student's t at 97.5 % for one to four degrees of freedom; from five on the expansion below serves.
_FEW = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
_NORMAL = 1.959964


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds for a data set, the 95 % interval of them, and how many more items would halve the interval."""

    seconds: float
    low: float
    high: float
    items_to_halve: int


def estimate_time(
    item_seconds: Sequence[float], items: int, at_once: int, *, items_each: int = 1
) -> TimeEstimate | None:
    """Return the time that `items` take when `at_once` are worked on, by the seconds of some; None for fewer than two.

    Each of `item_seconds` is the mean of a batch of `items_each`. The interval is that of the mean: it does not know
    what a longest item at the very end adds.
    """
    if len(item_seconds) < 2:
        return None
    scale = items / at_once
    low, high = mean_interval(item_seconds)
    return TimeEstimate(scale * fmean(item_seconds), scale * low, scale * high, 3 * len(item_seconds) * items_each)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of positive values: at least two, and not necessarily symmetric ones.

    The hull of two intervals: Student's, which is right for symmetric values but too short for few skewed ones, and
    that of a log-normal mean (Cox's method with Student's quantile: Land 1972; Olsson 2005, J. Stat. Educ. 13).
    """
    count, mean = len(values), fmean(values)
    quantile = student_quantile(count - 1)
    half = quantile * stdev(values) / math.sqrt(count)
    low, high = max(0.0, mean - half), mean + half
    if min(values) > 0:
        logs = [math.log(value) for value in values]
        variance = stdev(logs) ** 2
        centre = fmean(logs) + variance / 2
        reach = quantile * math.sqrt(variance / count + variance**2 / (2 * (count - 1)))
        low = min(low, math.exp(centre - reach))
        high = max(high, math.exp(min(centre + reach, 700.0)))
    return low, high


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t (Abramowitz and Stegun, 26.7.5), within 0.2 %."""
    z, n = _NORMAL, freedom
    terms = (
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return _FEW.get(n) or z + sum(terms)
