"""The rate of a pool lately, and the time that is left by it. Values in, values out; `now` is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from gpusched.pool.estimate import mean_interval

_WINDOWS = 10  # of which a rate is the mean; there are up to twice as many
_FIRST_S = 0.5


class RateWindows:
    """Counts in windows of equal length, which gets longer with the time: the rate of the last half or more of it."""

    def __init__(self) -> None:
        self._length_s, self._begin_s = _FIRST_S, 0.0
        self._counts: list[int] = []
        self._newest = 0

    def note(self, number: int, now: float) -> None:
        """Count so many more. The first window begins with the first of them, which is not counted."""
        if not self._begin_s:
            self._begin_s = now if number else 0.0
            return
        while now >= self._begin_s + self._length_s:
            self._counts.append(self._newest)
            self._newest, self._begin_s = 0, self._begin_s + self._length_s
            if len(self._counts) == 2 * _WINDOWS:
                self._counts = [sum(self._counts[n : n + 2]) for n in range(0, 2 * _WINDOWS, 2)]
                self._length_s *= 2
        self._newest += number

    @property
    def rates(self) -> list[float]:
        """The rates of the newest windows."""
        return [number / self._length_s for number in self._counts[-_WINDOWS:]]

    @property
    def per_s(self) -> float:
        return fmean(self.rates or [0.0])


def time_left(items: int, rates: Sequence[float]) -> dict[str, float | None]:
    """Return the seconds that items take at the mean of these rates, and the 95 % interval of it; None: unknown."""
    mean = fmean(rates or [0.0])
    low, high = mean_interval(rates) if len(rates) > 2 else (0.0, 0.0)
    names = {"left_s": mean, "left_low_s": high, "left_high_s": low}
    return {name: round(items / rate, 1) if rate else None for name, rate in names.items()}
