"""The rate of a pool lately, the time that is left by it, and both in words."""

from __future__ import annotations

import random

import pytest

from gpusched.pool.coordinator.progress import sentence, upload_text
from gpusched.pool.coordinator.rates import RateWindows, time_left


def run(windows: RateWindows, per_s: float, begin: float, seconds: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    for step in range(seconds * 10):
        windows.note(sum(chance.random() < per_s / 1000 for _ in range(100)), begin + step / 10)


@pytest.mark.parametrize("seconds", [20, 600, 20_000])
def test_a_steady_rate_is_found_whatever_the_time(seconds: int) -> None:
    windows = RateWindows()
    run(windows, 20, 0.1, seconds)
    assert windows.per_s == pytest.approx(20, rel=0.15)
    assert len(windows.rates) <= 10


def test_a_rate_that_has_changed_is_forgotten() -> None:
    windows = RateWindows()
    run(windows, 5, 0.1, 100)
    run(windows, 50, 100.1, 150)
    assert windows.per_s == pytest.approx(50, rel=0.15)


def test_the_time_before_the_first_item_counts_for_nothing() -> None:
    windows = RateWindows()
    for second in range(1, 1000):
        windows.note(0, second)
    assert windows.per_s == 0
    run(windows, 20, 1000, 20)
    assert windows.per_s == pytest.approx(20, rel=0.2)


def test_the_interval_holds_the_truth_mostly() -> None:
    hits = 0
    for seed in range(100):
        windows = RateWindows()
        run(windows, 10, 0.1, 30, seed)
        left = time_left(1000, windows.rates)
        low, high = left["left_low_s"], left["left_high_s"]
        assert low is not None
        hits += low <= 100 <= (high or float("inf"))
    assert hits >= 90


def test_nothing_is_known_at_first() -> None:
    assert time_left(10, []) == {"left_s": None, "left_low_s": None, "left_high_s": None}
    assert time_left(10, [2.0])["left_s"] == 5
    assert time_left(10, [2.0])["left_high_s"] is None


def test_numbers_in_words() -> None:
    numbers = {
        "items_per_s": 12.34,
        **{"left_s": 3960.0, "left_low_s": 3480.0, "left_high_s": 4500.0},
        "workers": 7,
        "devices": {"GPU-1": {}, "GPU-2": {}},
        "errors": 2,
        "out_of_memory": 0,
        "upload": {"uploaded": 120, "parts": 512, "bytes": 3.1e9, "bytes_per_s": 84e6, "failed": 0},
    }
    assert sentence(numbers) == (
        "12.3/s, ~66 min left (58 min to 75 min), 7 workers on 2 GPUs, 2 ended in an error, "
        "upload 120/512 parts, 3.1 GB, 84 MB/s, 0 failed"
    )
    quiet = {**numbers, "items_per_s": 0, "left_s": None, "devices": {"cpu": {}}, "errors": 0, "upload": {}}
    assert sentence(quiet | {"workers": 1}) == "1 worker"
    assert upload_text({"uploaded": 0, "parts": 1, "bytes": 0, "bytes_per_s": 999_999, "failed": 1}) == (
        "0/1 parts, 0 B, 1 MB/s, 1 failed"
    )
