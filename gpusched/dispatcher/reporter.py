"""What a dispatcher tells: events, frames, the published board, the metrics. Decides nothing, changes no job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from gpusched.core.jobs.progress import groups
from gpusched.core.jobs.readiness import CAUSE_NOT_NEEDED
from gpusched.core.model import Event, JobState
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import Board, BoardDevice, Frame
from gpusched.core.plan.snapshot import Limits, Resident
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.open_attempt import OpenAttempt
from gpusched.host.gpus import board
from gpusched.host.queue import metrics
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import (
    DiskFull,
    Store,
    attempt_table,
    dependency_table,
    dispatch_table,
    job_table,
    queue_totals,
)

log = logging.getLogger("gpusched.dispatcher")

_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}
_ODD = (DeviceState.LOST, DeviceState.SET_ASIDE)


class Observer(Protocol):
    """Who watches a dispatcher. `refresh_s` is how often it wants a frame; None: never."""

    refresh_s: float | None

    def event(self, event: Event) -> None: ...

    def frame(self, frame: Frame) -> None: ...

    def detach(self) -> None:
        """The terminal is gone."""


class Quiet:
    """Watches nothing."""

    refresh_s: float | None = None

    def event(self, event: Event) -> None:
        return None

    def frame(self, frame: Frame) -> None:
        return None

    def detach(self) -> None:
        return None


class Reporter:
    def __init__(
        self,
        queue: QueueDir,
        store: Store,
        devices: DeviceBook,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self.observer = observer
        self.succeeded = 0  # attempts, since this dispatcher began
        self._queue, self._store, self._devices, self._clock = queue, store, devices, clock
        self._started_at = clock()
        self._dispatch = dispatch_table.begin(store, self._started_at)
        self._outage = ""  # the outage of the source that was told
        self._states: dict[str, DeviceState] = {}  # of the devices, as told

    def tell(self, kind: str, text: str, job_id: int | None = None) -> None:
        """One event, to the log and to whoever watches."""
        log.log(_LEVELS.get(kind, logging.INFO), "%s", text)
        self.observer.event(Event(self._clock(), kind, text, job_id))

    def tell_rippled(self, job_id: int, state: JobState, cause: str) -> None:
        """Say that a job was stopped for one that it depends on."""
        if cause == CAUSE_NOT_NEEDED:
            self.tell("ended", f"job {job_id} is not needed: what it waits for did not fail", job_id)
            return
        bad = dependency_table.failed_upstream(self._store, job_id)
        has = "has" if bad and bad.state is JobState.FAILED else "is"
        why = f"job {bad.id}, which it waits for, {has} {bad.state.value}" if bad else "of those that it waits for"
        self.tell("ended", f"job {job_id} is {state.value}: {why}", job_id)

    def tell_devices(self) -> None:
        """Say once what has become of a device, or of the whole source."""
        error = self._devices.error
        if error != self._outage:
            self._outage = error
            back = "the GPUs can be read again: counting begins anew"
            self.tell("device", f"{error}: running jobs go on, nothing new starts on a GPU" if error else back)
        if error:
            return
        for uuid, state in self._devices.states().items():
            before = self._states.get(uuid)
            if state is before:
                continue
            self._states[uuid] = state
            if state in _ODD or (before in _ODD and state is not DeviceState.UNKNOWN):
                device, why = self._devices.device(uuid), self._devices.availability(uuid).why
                what = "is set aside" if state in _ODD else "is back"
                self.tell("device", f"GPU {device.index} ({uuid}, {device.bus_id}) {what}: {why}")

    def board(
        self,
        now: float,
        residents: Mapping[str, tuple[Resident, ...]],
        limits: Limits,
        closed: str,
        waited_since: Mapping[int, float],
    ) -> Board:
        """What is known of the devices now."""
        return Board(
            at=now,
            pid=os.getpid(),
            source=self._devices.source.describe(),
            limits=limits,
            max_checks=self._devices.criteria.max_checks,
            threshold_bytes=self._devices.criteria.threshold_bytes,
            devices=tuple(
                BoardDevice(self._devices.device(view.uuid), view) for view in self._devices.views(residents)
            ),
            closed=closed,
            gpus_closed=self._devices.error,
            waited_since=dict(waited_since),
        )

    def publish(self, found: Board) -> None:
        board.write(self._queue.board, found)

    def frame(self, found: Board, running: Iterable[OpenAttempt], reason: str, closing: str) -> Frame:
        views = tuple(live.view() for live in running)
        return Frame(
            at=found.at,
            queue=self._queue.path,
            started_at=self._started_at,
            board=found,
            counts=job_table.counts(self._store),
            removed=job_table.count_removed(self._store),
            running=views,
            reason=reason,
            finished_now=self.succeeded,
            groups=tuple(groups(queue_totals.item_counts(self._store), views)),
            closing=closing,
        )

    def write_metrics(self, now: float, running: Iterable[OpenAttempt], *, every_job: bool) -> None:
        """Replace gpu_metrics.json, and keep what the open attempts have used so far for whoever comes after."""
        for live in running:
            text = live.progress.decode("utf-8", "replace")
            attempt_table.save_usage(self._store, live.job.id, live.row.number, live.usage, text)
        dispatch_table.touch(self._store, self._dispatch, now)
        devices: list[dict[str, object]] = [
            {
                "uuid": view.uuid,
                "index": self._devices.device(view.uuid).index,
                "name": self._devices.device(view.uuid).name,
                "total_bytes": view.total_bytes,
                "state": view.availability.state.value,
                "why": view.availability.why,
            }
            for view in self._devices.views({})
        ]
        metrics.write(self._queue.metrics, self._store, devices, self._queue.path, now, every_job=every_job)

    def leave(self, now: float) -> None:
        """The dispatcher goes: nothing is published any more."""
        try:
            dispatch_table.touch(self._store, self._dispatch, now)
        except DiskFull:
            log.warning("the disk is full: when this dispatcher was last here is not noted")
        board.remove(self._queue.board)
