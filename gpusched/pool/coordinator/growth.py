"""Decide when one more worker is worth it, device by device. Values in, values out; `now` is an argument.

A device has one worker first. When all its workers are ready, their items are counted for a while; then the next one is
added, unless the last one has raised the rate by less than 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_GAIN = 1.05
WINDOW_ITEMS, WINDOW_S, LONGEST_S = 50, 0.5, 10.0  # of a measurement: both of the first two, or the last
JUDGED_ITEMS = 20  # fewer say nothing about a rate
FAILED_LOAD, ENDED_LOAD, PATIENCE = 7, 1, 20  # points of a device: three failures in a row, or twenty unknown ends


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """The workers on a device now, and the items that they have done so far. `ready`: one item done at least."""

    ready: int
    starting: int
    done: int


@dataclass
class DeviceGrowth:
    """The growth on one device: how many workers it is to have, and the rate that each number of them had."""

    limit: int
    target: int = 1
    is_over: bool = False
    rates: dict[int, float] = field(default_factory=dict)
    most: int = 0  # workers that were ready at once
    points: int = 0  # for loads that have failed since one has succeeded
    _window: tuple[int, float, int] = (0, 0.0, 0)  # workers, since when, items done until then

    def missing(self, load: DeviceLoad, now: float, *, may_grow: bool = True) -> int:
        """Return how many workers are to be added now."""
        if load.ready > self.most:
            self.most, self.points = load.ready, 0
        if may_grow and not self.is_over and self._is_measured(load, now):
            self._judge(load.ready)
        return max(0, self.target - load.ready - load.starting)

    def note_ready(self) -> None:
        """Take note that a worker was ready, even if it is gone before the next look."""
        self.most = max(self.most, 1)

    def note_failed_load(self, points: int) -> None:
        """Take note that a worker could not load. One beside others is not added again, one alone is tried again."""
        self.points += points
        if self.points >= PATIENCE or (points == FAILED_LOAD and self.target > 1):
            self.target, self.is_over, self.points = max(0, self.target - 1), True, 0

    def _is_measured(self, load: DeviceLoad, now: float) -> bool:
        workers, since, done = self._window
        if load.ready != workers or load.starting:
            self._window = (load.ready, now, load.done) if not load.starting else (0, now, load.done)
            return False
        items, elapsed_s = load.done - done, now - since
        if load.ready < self.target or not (
            (items >= WINDOW_ITEMS and elapsed_s >= WINDOW_S) or elapsed_s >= LONGEST_S
        ):
            return False
        if items >= JUDGED_ITEMS:
            self.rates[workers] = items / elapsed_s
        return True

    def _judge(self, workers: int) -> None:
        before, rate = self.rates.get(workers - 1), self.rates.get(workers)
        if before and rate and rate < before * LEAST_GAIN:
            self.target, self.is_over = workers - 1, True  # the one that is too many stays, and is not replaced
        elif workers >= self.limit:
            self.is_over = True
        else:
            self.target = workers + 1


class Growth:
    """The growth of a pool on all its devices. `stable` is what an earlier run has found."""

    def __init__(self, devices: int, limit: int, *, workers: int = 0, stable: Mapping[str, int] | None = None) -> None:
        """`devices`: how many to use; `workers`: so many on each of them, not an adaptive number."""
        self._devices, self._limit, self._workers = devices, limit, workers
        self._stable = dict(stable or {})
        self.by_device: dict[str, DeviceGrowth] = {}

    def device(self, name: str) -> DeviceGrowth:
        """Return the growth on a device, which begins with what an earlier run has found."""
        if name not in self.by_device:
            target = self._workers or self._stable.get(name) or 1
            is_over = target > 1 or bool(self._workers)
            self.by_device[name] = DeviceGrowth(self._limit, min(target, self._limit), is_over)
        return self.by_device[name]

    def missing(
        self, loads: Mapping[str, DeviceLoad], unplaced: int, wanted: int, now: float, *, one_by_one: bool = False
    ) -> tuple[int, dict[str, int]]:
        """Return how many workers to add anywhere, and how many on each device.

        `unplaced` workers wait for any device; `wanted` more have items to work on. With `one_by_one`, a device grows
        once the one before it has done so.
        """
        useless = {device for device, growth in self.by_device.items() if not growth.target}
        if useless:  # a worker for any device might get one of these
            loads = {device: DeviceLoad(0, 0, 0) for device in self.by_device.keys() - useless} | dict(loads)
        anywhere = min(wanted, max(0, self._devices - len(loads.keys() | useless) - unplaced))
        wanted -= anywhere
        more: dict[str, int] = {}
        for device, load in loads.items():
            growth = self.device(device)
            more[device] = min(wanted, growth.missing(load, now, may_grow=wanted > 0))
            wanted -= more[device]
            if one_by_one and not growth.is_over:
                break
        return anywhere, {device: number for device, number in more.items() if number}

    @property
    def stable(self) -> dict[str, int]:
        """The number of workers that each device has had room for, and that were worth it."""
        found = {device: min(each.target, each.most) for device, each in self.by_device.items()}
        return self._stable | {device: number for device, number in found.items() if number}
