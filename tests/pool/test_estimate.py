"""Estimates of the time for a data set: how often the interval holds, for items of several kinds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gpusched.pool.estimate import estimate_time, mean_interval, student_quantile

Draw = Callable[[random.Random], float]


@pytest.mark.parametrize("count", [5, 10, 40])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda rng: max(1e-3, rng.gauss(1, 0.08)), 1.0),
        (lambda rng: rng.lognormvariate(0, 0.5), math.exp(0.125)),
        (lambda rng: rng.expovariate(1), 1.0),
        (lambda rng: rng.choice((1.0, 3.0)) * rng.uniform(0.9, 1.1), 2.0),
    ],
    ids=["equal", "log-normal", "exponential", "two kinds"],
)
def test_interval_covers_the_mean_in_nine_of_ten_runs(draw: Draw, mean: float, count: int) -> None:
    rng = random.Random(7)
    held = 0
    for _ in range(1000):
        low, high = mean_interval([draw(rng) for _ in range(count)])
        held += low <= mean <= high
    assert held >= 900


def test_estimate_scales_with_items_and_workers() -> None:
    estimate = estimate_time([1.0, 3.0], items=1000, at_once=4)
    assert estimate is not None
    assert estimate.seconds == pytest.approx(500.0)
    assert estimate.low == 0.0  # two items say next to nothing
    assert estimate.high > 3000
    assert estimate.items_to_halve == 6
    assert estimate_time([1.0], items=1000, at_once=4) is None


def test_quantiles_are_those_of_tables() -> None:
    expected = {1: 12.706, 4: 2.776, 5: 2.571, 9: 2.262, 30: 2.042, 1000: 1.962}
    assert {freedom: student_quantile(freedom) for freedom in expected} == pytest.approx(expected, rel=2e-3)
