"""The search for the batch size, then the workers, then the threads that handle most items a second.

Decides only: `search` yields the setting to measure next and is sent its trial. It reads no clock and starts nothing,
so that a search which was interrupted goes on by being sent the trials that are on record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from gpusched.common.quantities import format_size
from gpusched.common.text import count

ENOUGH = 0.95  # of the best rate: the smallest count of workers or threads that reaches it is taken
ENOUGH_OF_BATCH = 0.99  # the same for the batch size, where the next step costs only memory
STEP = 4  # from one batch size to the next, until the rate no longer rises
CLOSE = 1.125  # a limit of memory is known when what fits and what does not are this close
GAIN = 1.005  # a larger batch must promise this much
PAST_BEST = 2  # counts of workers that are tried beyond the best one
CONTENDERS, CONTENDS = 3, 0.9  # settings that are measured once more, each with so much of the best rate


class TrialOutcome(str, Enum):
    """The end of a trial."""

    OK = "ok"
    OUT_OF_MEMORY = "out of memory"  # the GPU's
    AHEAD = "to be made"  # it was not made yet
    FAILED = "failed"  # for any other reason, the memory of the host among them


@dataclass(frozen=True, slots=True)
class TrialSetting:
    """The settings that one trial measures. The workers are those of one GPU, or of the CPU."""

    batch_size: int
    workers: int = 1
    threads: int = 1
    is_again: bool = False  # they were measured before

    def __str__(self) -> str:
        threads = f" of {self.threads} threads" if self.threads > 1 else ""
        return f"batch size {self.batch_size}, {count(self.workers, 'worker')}{threads}{', again' * self.is_again}"


@dataclass(frozen=True, slots=True)
class Trial:
    """The measurement of one setting: items per second, their relative standard error, the peak memory of a worker."""

    setting: TrialSetting
    outcome: TrialOutcome
    items_per_s: float = 0.0
    error: float = 0.0
    peak_bytes: int | None = None
    memory_by: str = ""  # the source of the peak: process (the driver tells it) or report (the worker does)
    message: str = ""
    batch_seconds: tuple[float, ...] = ()

    @property
    def fits(self) -> bool:
        return self.outcome is TrialOutcome.OK

    def __str__(self) -> str:
        if not self.fits:
            return f"{self.setting}: {self.outcome.value}"
        memory = f", {format_size(self.peak_bytes)} of memory" if self.peak_bytes else ""
        return f"{self.setting}: {self.items_per_s:.4g} items/s{memory}"


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The settings that may be tried. Without `batch_sizes`, sizes from the first to the largest one are searched."""

    batch_sizes: tuple[int, ...] = ()
    first_batch_size: int = 8
    largest_batch_size: int = 1 << 20
    memory_bytes: int | None = None  # what the workers of one GPU may take together
    workers: tuple[int, ...] = (1, 2, 3, 4)
    threads: tuple[int, ...] = (1,)
    most_trials: int = 12

    @property
    def left_out(self) -> list[int]:
        """The sizes to try, the smallest one of a list aside, that are larger than the largest one."""
        sizes = self.batch_sizes[1:] if self.batch_sizes else (self.first_batch_size,)
        return [size for size in sizes if size > self.largest_batch_size]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The setting to use, with all trials in their order; None where nothing fits."""

    best: TrialSetting | None
    trials: tuple[Trial, ...]

    @property
    def best_trials(self) -> list[Trial]:
        """The trials of the best setting: one, or two."""
        return [trial for trial in self.trials if replace(trial.setting, is_again=False) == self.best]


class TrialEndedError(Exception):
    """The end of a trial before it was measured; its text is what failed."""

    def __init__(self, outcome: TrialOutcome, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


class TrialFailed(Exception):
    """Raised when a trial fails for a reason that a smaller setting cannot mend; its text is the trial's message."""


Search = Generator[TrialSetting, Trial, TrialSetting]  # to the best setting


def search(space: SearchSpace) -> Generator[TrialSetting, Trial, SearchResult]:
    """Yield settings, be sent their trials, return the best. Raises TrialFailed at a failure that is not memory."""
    found = _Found(space)
    best = yield from _search_batch_size(found)
    if best is not None:
        best = yield from _search_counts(found, best, space.workers, _settings_of_workers)
        best = yield from _search_counts(
            found, best, space.threads, lambda found, start, threads: [replace(start, threads=threads)]
        )
        best = yield from _confirm(found, best)
    return SearchResult(best, tuple(found.trials))


class _Found:
    """The trials so far."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.trials: list[Trial] = []

    @property
    def trials_left(self) -> int:
        return self.space.most_trials - len(self.trials)

    def measure(self, setting: TrialSetting) -> Generator[TrialSetting, Trial, Trial]:
        trial = yield setting
        self.trials.append(trial)
        if trial.outcome is TrialOutcome.FAILED:
            raise TrialFailed(trial.message)
        return trial


def _search_batch_size(found: _Found) -> Generator[TrialSetting, Trial, TrialSetting | None]:
    """Measure batch sizes with one worker, and return the best; None where nothing fits."""
    space = found.space
    kept_back = min(len(space.workers) - 1, PAST_BEST + 1) + (len(space.threads) > 1)
    fitting: dict[int, Trial] = {}
    too_large = space.largest_batch_size + 1
    size: int | None = space.batch_sizes[0] if space.batch_sizes else min(space.first_batch_size, too_large - 1)
    while size is not None and (not found.trials or found.trials_left > kept_back):
        trial = yield from found.measure(TrialSetting(size))
        if trial.fits:
            fitting[size] = trial
        else:
            too_large = min(too_large, size)
        if space.batch_sizes:
            size = _next_of_list(fitting, too_large, space)
        else:
            size = _next_size(fitting, too_large, space)
    rates = {size: trial.items_per_s for size, trial in fitting.items()}
    return TrialSetting(_best_size(rates)) if rates else None


def _next_of_list(fitting: Mapping[int, Trial], too_large: int, space: SearchSpace) -> int | None:
    """Return the next size of the user's list: upwards, until two have brought nothing or memory is out."""
    limit = memory_limit(fitting, space.memory_bytes)
    left = [size for size in space.batch_sizes if size not in fitting and size < too_large and size <= limit]
    larger = [size for size in left if size > max(fitting, default=0)]
    if not larger or _counts_past_best(fitting) >= PAST_BEST:
        return None
    return larger[0]


def _next_size(fitting: Mapping[int, Trial], too_large: int, space: SearchSpace) -> int | None:
    """Return the batch size to try next, None when another one promises nothing.

    Upwards in steps while the rate rises; where memory ends, towards the limit; then once between the best and the
    one below it.
    """
    if not fitting:
        return None if too_large == 1 else max(1, too_large // (2 * STEP))
    top = max(fitting)
    rates = {size: trial.items_per_s for size, trial in fitting.items()}
    if _promised_rate(rates, top * STEP) > GAIN * _promised_rate(rates, top) and _counts_past_best(fitting) < PAST_BEST:
        most = min(too_large - 1, memory_limit(fitting, space.memory_bytes))
        if most >= top * STEP:
            return top * STEP
        if too_large <= space.largest_batch_size:  # memory has run out at `too_large`
            return round(math.sqrt(top * too_large)) if too_large > top * CLOSE and too_large - top > 1 else None
        if most > top * CLOSE or most == space.largest_batch_size > top:
            return most
        return None
    good = _best_size(rates)
    best = max(rates, key=rates.__getitem__)
    above = min((size for size in rates if size > best), default=best)
    if above > 2 * best and rates[above] < ENOUGH * rates[best]:
        return round(math.sqrt(best * above))  # the rate has fallen: its peak may lie on either side
    below = max((size for size in rates if size < good), default=good)
    between = round(math.sqrt(good * below))
    if good > 2 * below and _promised_rate(rates, between) > ENOUGH * max(smoothed(rates).values()):
        return between
    return None


def memory_limit(fitting: Mapping[int, Trial], memory_bytes: int | None) -> int:
    """Return the largest batch size that memory allows, by the line peak = a + c * size through the two largest trials.

    A very large number while nothing can be said: no memory stated, fewer than two peaks, or no growth between them.
    """
    unlimited = 1 << 62
    peaks = sorted((size, trial.peak_bytes) for size, trial in fitting.items() if trial.peak_bytes)
    if memory_bytes is None or len(peaks) < 2:
        return unlimited
    (low, low_bytes), (high, high_bytes) = peaks[-2:]
    slope = (high_bytes - low_bytes) / (high - low)
    return int(high + (memory_bytes - high_bytes) / slope) if slope > 0 else unlimited


def _promised_rate(rates: Mapping[int, float], size: int) -> float:
    """Return the rate at a batch size by the line seconds = t0 + t1 * size, fitted to the relative errors.

    The rate that was measured at the largest size holds while there is no other, and where the line falls.
    """
    if len(rates) == 1:
        ((only, rate),) = rates.items()
        return rate * size / only
    # Minimise the sum of ((t0 + t1 * b) / seconds(b) - 1)^2: a linear system of two unknowns.
    rows = [(rate / b, rate) for b, rate in rates.items()]  # (1 / seconds, b / seconds)
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in _products(rows))
    a, b = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        return max(rates.values())
    fixed, per_item = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if fixed < 0:
        fixed, per_item = 0.0, b / bb
    seconds = fixed + per_item * size
    return size / seconds if seconds > 0 else math.inf


def _products(rows: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(x, x) for x, _ in rows], [(x, y) for x, y in rows], [(y, y) for _, y in rows]


def _search_counts(
    found: _Found,
    start: TrialSetting,
    counts: Sequence[int],
    settings: Callable[[_Found, TrialSetting, int], Sequence[TrialSetting]],
) -> Search:
    """Measure more workers, or threads, until two have brought nothing or memory is out, and return the best.

    `settings` returns the best setting so far, `start`, with another count: each is measured until one fits.
    """
    measured = {counts[0]: next(trial for trial in found.trials if trial.setting == start)}
    for number in counts[1:]:
        for setting in settings(found, start, number):
            if not found.trials_left or _counts_past_best(measured) >= PAST_BEST:
                break
            trial = yield from found.measure(setting)
            if trial.fits:
                measured[number] = trial
                break
        if number not in measured:
            break
    rates = {number: trial.items_per_s for number, trial in measured.items()}
    return measured[_smallest_good(smoothed(rates), ENOUGH)].setting


def _settings_of_workers(found: _Found, start: TrialSetting, workers: int) -> Sequence[TrialSetting]:
    """Return so many workers, with the batch size that memory leaves each; nothing where they promise nothing."""
    space = found.space
    fitting = {trial.setting.batch_size: trial for trial in found.trials if trial.fits and trial.setting.workers == 1}
    share = space.memory_bytes // workers if space.memory_bytes else None
    most = min(start.batch_size, memory_limit(fitting, share))
    sizes = [size for size in space.batch_sizes if size <= most][-1:] if space.batch_sizes else [most, most // 2]
    rates = {size: trial.items_per_s for size, trial in fitting.items()}
    best_rate = max(trial.items_per_s for trial in found.trials)
    if not sizes or sizes[0] < 1 or workers * _promised_rate(rates, sizes[0]) < best_rate:
        return ()  # no room, or even workers that do not slow each other down would bring nothing
    return [replace(start, batch_size=size, workers=workers) for size in sizes if size]


def _confirm(found: _Found, best: TrialSetting) -> Search:
    """Measure the best setting and those that come close once more, and return the best by the means of both trials."""
    rates = {trial.setting: trial.items_per_s for trial in found.trials if trial.fits}
    most = max(rates.values())
    others = [each for each in sorted(rates, key=lambda each: -rates[each]) if each != best]
    close = [each for each in others if rates[each] >= CONTENDS * most]
    means: dict[TrialSetting, float] = {}
    for setting in [best, *close][:CONTENDERS] if close else []:
        if found.trials_left:
            trial = yield from found.measure(replace(setting, is_again=True))
            means[setting] = (rates[setting] + trial.items_per_s) / 2
    good = [each for each in means if means[each] >= ENOUGH * max(means.values())]
    return min(good, key=lambda each: (each.workers, each.threads, -means[each]), default=best)


def _counts_past_best(measured: Mapping[int, Trial]) -> int:
    """Return how many sizes or counts beyond the best one were measured."""
    if not measured:
        return 0
    rates = {number: trial.items_per_s for number, trial in measured.items()}
    best = max(rates, key=lambda number: (rates[number], -number))
    return sum(number > best for number in measured)


def _best_size(rates: Mapping[int, float]) -> int:
    """Return the smallest good batch size, by the line, which averages noise best, and by what it does not know."""
    levels = smoothed(rates)
    return _smallest_good({size: levels[size] * _promised_rate(rates, size) ** 3 for size in rates}, ENOUGH_OF_BATCH**4)


def _smallest_good(levels: Mapping[int, float], enough: float) -> int:
    """Return the smallest size or count that reaches `enough` of the best."""
    most = max(levels.values())
    return min(size for size, level in levels.items() if level >= enough * most)


def smoothed(rates: Mapping[int, float]) -> dict[int, float]:
    """Return the rates that rise to one peak and fall from there, nearest to those measured (least squares of logs).

    Noise on a plateau is averaged, instead of the luckiest trial being taken for the best (unimodal regression:
    Stout 2008, by pooling adjacent violators from both sides of each possible peak).
    """
    sizes = sorted(rates)
    logs = [math.log(max(rates[size], 1e-300)) for size in sizes]
    fits = [_rising(logs[: peak + 1]) + _rising(logs[:peak:-1])[::-1] for peak in range(len(logs))]
    best = min(fits, key=lambda fit: sum((x - y) ** 2 for x, y in zip(fit, logs, strict=True)))
    return {size: math.exp(level) for size, level in zip(sizes, best, strict=True)}


def _rising(values: Sequence[float]) -> list[float]:
    """Return the nearest values that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, few), (high, many) = pools.pop(), pools.pop()
            pools.append(((low * few + high * many) / (few + many), few + many))
    return [value for value, count in pools for _ in range(count)]
