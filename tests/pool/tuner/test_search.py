"""The search for a setting, with simulated workers: a known optimum, noise, memory that ends."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from statistics import fmean

import pytest

from gpusched.pool.tuner.search import (
    SearchResult,
    SearchSpace,
    Trial,
    TrialFailed,
    TrialOutcome,
    TrialSetting,
    memory_limit,
    search,
    smoothed,
)

GIB = 1 << 30
CARD_GIB = 24.0
Measure = Callable[[TrialSetting], Trial]


def run(space: SearchSpace, measure: Measure) -> SearchResult:
    steps = search(space)
    trial = measure(next(steps))
    try:
        while True:
            trial = measure(steps.send(trial))
    except StopIteration as end:
        assert isinstance(end.value, SearchResult)
        return end.value


def ok(setting: TrialSetting, items_per_s: float, peak: float | None = None) -> Trial:
    return Trial(setting, TrialOutcome.OK, items_per_s, peak_bytes=None if peak is None else int(peak * GIB))


def no_memory(setting: TrialSetting) -> Trial:
    return Trial(setting, TrialOutcome.OUT_OF_MEMORY, message="CUDA out of memory.")


class Card:
    """One GPU and a worker on it: a fixed time per batch, a time per item, and workers that slow each other down."""

    def __init__(self, kind: str, seed: int) -> None:
        rng = random.Random(seed)
        self.kind = kind
        self.fixed_s = 10 ** rng.uniform(-3, -0.5)
        self.item_s = 10 ** rng.uniform(-4, -2)
        self.model_gib = rng.uniform(1, 8)
        self.item_gib = 10 ** rng.uniform(-3, -0.7)
        self.disturbance = rng.uniform(0.05, 1.0)
        self.peak_size = 8 * 10 ** rng.uniform(1, 3)
        self.noise = random.Random(seed + 1)

    def peak_gib(self, setting: TrialSetting) -> float:
        return self.model_gib + self.item_gib * setting.batch_size

    def rate(self, setting: TrialSetting) -> float:
        """Return items per second without noise, 0 where memory does not suffice."""
        if self.peak_gib(setting) * setting.workers > CARD_GIB:
            return 0.0
        size, more = setting.batch_size, setting.workers - 1
        rate = size / (self.fixed_s + self.item_s * size) * setting.workers / (1 + self.disturbance * more)
        if self.kind == "peaked":
            rate /= 1 + size / self.peak_size
        return rate / (1 + 0.05 * more**2) if self.kind == "crowded" else rate

    def measure(self, setting: TrialSetting) -> Trial:
        rate = self.rate(setting) * math.exp(self.noise.gauss(0, 0.08))
        return ok(setting, rate, self.peak_gib(setting)) if rate else no_memory(setting)

    def best_rate(self) -> float:
        sizes = sorted({int(1.1**k) for k in range(88)} | {4096})
        return max(self.rate(TrialSetting(size, workers)) for size in sizes for workers in (1, 2, 3, 4))


def test_search_comes_near_the_optimum_in_twelve_trials() -> None:
    regrets = []
    for kind in ("plain", "peaked", "crowded"):
        for seed in range(1000):
            card = Card(kind, seed)
            space = SearchSpace(largest_batch_size=4096, memory_bytes=int(0.95 * CARD_GIB * GIB))
            result = run(space, card.measure)
            assert result.best is not None
            assert len(result.trials) <= 12
            regrets.append(1 - card.rate(result.best) / card.best_rate())
    regrets.sort()
    assert fmean(regrets) <= 0.05
    assert regrets[int(0.95 * len(regrets)) - 1] <= 0.15


def test_settings_that_come_close_are_measured_again() -> None:
    rates = {TrialSetting(1): 10.0, TrialSetting(2): 12.0, TrialSetting(4): 11.5}
    again = {TrialSetting(4, is_again=True): 11.5, TrialSetting(2, is_again=True): 8.0}
    result = run(
        SearchSpace(batch_sizes=(1, 2, 4), workers=(1,)), lambda setting: ok(setting, (rates | again)[setting])
    )
    assert [trial.setting for trial in result.trials] == [*rates, *again]
    assert result.best == TrialSetting(4)  # by the means: 11.5, and 10 of the one that looked better
    assert len(result.best_trials) == 2


def test_nothing_fits() -> None:
    result = run(SearchSpace(first_batch_size=1024), no_memory)
    assert result.best is None
    sizes = [trial.setting.batch_size for trial in result.trials if not trial.setting.is_again]
    assert sizes == [1024, 128, 16, 2, 1]


def test_one_trial_is_enough_for_a_result() -> None:
    result = run(SearchSpace(most_trials=1), lambda setting: ok(setting, 1.0))
    assert result.best == TrialSetting(8)


def test_error_that_is_not_memory_ends_the_search_with_its_message() -> None:
    def measure(setting: TrialSetting) -> Trial:
        return Trial(setting, TrialOutcome.FAILED, message="KeyError: 'labels'")

    with pytest.raises(TrialFailed, match=r"KeyError: 'labels'"):
        run(SearchSpace(first_batch_size=1024), measure)


def test_limit_of_memory_is_found_to_an_eighth() -> None:
    def measure(setting: TrialSetting) -> Trial:
        fits = setting.batch_size * setting.workers < 300
        return ok(setting, float(setting.batch_size)) if fits else no_memory(setting)

    result = run(SearchSpace(first_batch_size=1024, workers=(1,)), measure)
    assert result.best is not None
    assert 266 <= result.best.batch_size < 300
    assert len(result.trials) < 12


def test_search_ends_at_the_largest_size() -> None:
    space = SearchSpace(first_batch_size=64, largest_batch_size=4096, workers=(1,))
    result = run(space, lambda setting: ok(setting, float(setting.batch_size)))
    assert result.best == TrialSetting(4096)
    assert max(trial.setting.batch_size for trial in result.trials) == 4096


def test_memory_line_is_confirmed_and_not_exceeded() -> None:
    """Peak = 2 + 0.02 GiB * size on 24 GiB: 1,100 items fit. The line tells after two trials; the third is there."""
    tried = []

    def measure(setting: TrialSetting) -> Trial:
        tried.append(setting.batch_size)
        assert setting.batch_size <= 1100
        return ok(setting, float(setting.batch_size), 2 + 0.02 * setting.batch_size)

    result = run(SearchSpace(first_batch_size=64, memory_bytes=24 * GIB, workers=(1,)), measure)
    assert tried == [64, 256, 1024]
    assert result.best == TrialSetting(1024)


def test_only_sizes_of_the_list_are_tried() -> None:
    def measure(setting: TrialSetting) -> Trial:
        return ok(setting, {128: 90.0, 256: 100.0, 512: 97.0, 1024: 94.0}[setting.batch_size])

    result = run(SearchSpace(batch_sizes=(128, 256, 512, 1024, 2048), workers=(1,)), measure)
    assert [trial.setting.batch_size for trial in result.trials if not trial.setting.is_again] == [128, 256, 512, 1024]
    assert result.best == TrialSetting(256)


@pytest.mark.parametrize(
    ("rates", "tried", "best"),
    [
        ({1: 10, 2: 19, 3: 27, 4: 33, 5: 36}, [1, 2, 3, 4, 5], 5),
        ({1: 10, 2: 10.2, 3: 9, 4: 8, 5: 8}, [1, 2, 3, 4], 1),  # two past the best, and within 5 % of it
        ({1: 10, 2: 15, 3: 14, 4: 13, 5: 13}, [1, 2, 3, 4], 2),
        ({1: 10, 2: 19, 3: 0}, [1, 2, 3], 2),  # out of memory
    ],
)
def test_workers(rates: Mapping[int, float], tried: list[int], best: int) -> None:
    def measure(setting: TrialSetting) -> Trial:
        rate = rates[setting.workers]
        return ok(setting, rate) if rate else no_memory(setting)

    space = SearchSpace(batch_sizes=(1,), workers=tuple(range(1, 6)))
    result = run(space, measure)
    assert [trial.setting.workers for trial in result.trials if not trial.setting.is_again] == tried
    assert result.best == TrialSetting(1, best)


def test_more_workers_take_smaller_batches_where_memory_is_short() -> None:
    """One worker fills the card with 1,024 items; two of 512 are nearly twice as fast."""

    def measure(setting: TrialSetting) -> Trial:
        peak = 1 + setting.batch_size * 22 / 1024
        if peak * setting.workers > 24:
            return no_memory(setting)
        rate = setting.batch_size / (8 + setting.batch_size) * setting.workers
        return ok(setting, rate, peak)

    result = run(SearchSpace(first_batch_size=64, memory_bytes=24 * GIB), measure)
    assert result.best is not None
    assert result.best.workers == 4
    assert (1 + result.best.batch_size * 22 / 1024) * 4 <= 24


def test_threads_are_tried_with_the_best_workers() -> None:
    def measure(setting: TrialSetting) -> Trial:
        return ok(setting, {1: 10.0, 2: 15.0, 4: 15.2}[setting.threads] * min(setting.workers, 2))

    result = run(SearchSpace(batch_sizes=(1,), workers=(1, 2, 3), threads=(1, 2, 4)), measure)
    assert result.best == TrialSetting(1, 2, 2)


def test_memory_limit_needs_two_peaks() -> None:
    one = {8: ok(TrialSetting(8), 1.0, 2.0)}
    assert memory_limit(one, 24 * GIB) > 1 << 60
    assert memory_limit(one | {16: ok(TrialSetting(16), 1.0, 3.0)}, 24 * GIB) == 184


def test_smoothing_keeps_what_is_unimodal_and_averages_the_rest() -> None:
    assert smoothed({1: 1.0, 2: 4.0, 3: 2.0}) == pytest.approx({1: 1.0, 2: 4.0, 3: 2.0})
    level = smoothed({1: 1.0, 2: 9.0, 3: 4.0, 4: 10.0})
    assert level == pytest.approx({1: 1.0, 2: 6.0, 3: 6.0, 4: 10.0})
