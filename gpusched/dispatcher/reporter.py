"""Reports of a dispatcher: events and frames, and the files that it keeps for others. Changes no job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from gpusched.core.documents import job_title
from gpusched.core.jobs.progress import groups
from gpusched.core.jobs.readiness import CAUSE_NOT_NEEDED
from gpusched.core.model import Event, JobState
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import Board, Frame, Pace, Wish
from gpusched.core.plan.snapshot import Plan, Reason
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.device_book import DeviceBook, DeviceEntry
from gpusched.dispatcher.files import QueueFiles
from gpusched.dispatcher.timers import Clock, Moment, Timer
from gpusched.host.queue.notices import Notices
from gpusched.host.queue.part_records import count_records
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, dependency_table, job_table, queue_totals

log = logging.getLogger("gpusched.dispatcher")

WAIT_IS_LONG_S = 2.0  # then it is reported what an idle queue waits for
WAITS_AGAIN_S = 600.0  # and reported again so often
_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}
_ODD = (DeviceState.LOST, DeviceState.SET_ASIDE)


class Observer(Protocol):
    """Watches a dispatcher. `refresh_s` is the time between two frames; None: no frames."""

    refresh_s: float | None

    def event(self, event: Event) -> None:
        return None

    def frame(self, frame: Frame) -> None:
        return None

    def detach(self) -> None:
        """Forget the terminal: it is gone."""
        return None

    def take_wishes(self) -> Sequence[Wish]:
        """Return what a person has chosen since the last call."""
        return ()


class Quiet(Observer):
    """An observer that shows nothing."""

    refresh_s = None


class Reporter:
    def __init__(self, queue: QueueDir, store: Store, devices: DeviceBook, observer: Observer, clock: Clock) -> None:
        self.observer = observer
        self.notices = Notices(queue)
        self.files = QueueFiles(queue, store)
        self._pace = Pace()
        self._queue, self._store, self._devices, self._clock = queue, store, devices, clock
        self._started_at = clock.now()
        self._states: dict[str, DeviceState] = {}  # of the devices, as reported
        self._faults = {"": ""}  # of the claims of devices, and by "" of the whole source, as reported
        self._frames, self._waits = Timer(), Timer()
        self._next: tuple[int, Reason] | None = None  # the first waiting job, and why it does not start

    def begin(self, now: Moment) -> None:
        self.files.begin(self._started_at)
        self._waits.restart(now, WAIT_IS_LONG_S)

    def report(self, kind: str, text: str, job_id: int | None = None, notice: str = "") -> None:
        """Report one event, to the log and to whoever watches; as a `notice` of this kind, to others too."""
        log.log(_LEVELS.get(kind, logging.INFO), "%s", text)
        self.observer.event(Event(self._clock.now(), kind, text, job_id))
        if notice:
            self.notices.add(notice, text, job_id)

    def note_success(self, began_at: float) -> None:
        """Count a success for the estimate of the time left, but not that of a job which an earlier start began."""
        if began_at >= self._started_at:
            jobs, job_s, since = self._pace
            self._pace = Pace(jobs + 1, job_s + self._clock.now() - began_at, min(since or began_at, began_at))

    def report_stopped(self, job_id: int, state: JobState, cause: str) -> None:
        """Report that a job was stopped for one that it depends on."""
        title = job_title(job_table.get(self._store, job_id))
        if cause == CAUSE_NOT_NEEDED:
            self.report("ended", f"{title} is not needed: the failure that it was for did not come", job_id)
            return
        bad = dependency_table.failed_upstream(self._store, job_id)
        has = "has" if bad and bad.state is JobState.FAILED else "is"
        why = f"{job_title(bad)}, which it waits for, {has} {bad.state.value}" if bad else "of those that it waits for"
        self.report("ended", f"{title} is {state.value}: {why}", job_id)

    @property
    def queue_name(self) -> str:
        return self._queue.name

    def report_devices(self) -> None:
        """Report once that a device, or the whole source, is lost or back."""
        error = self._devices.error
        if error != self._faults[""]:
            self._faults[""] = error
            text = f"{error}: running jobs go on, nothing new starts on a GPU"
            back = "the GPUs can be read again: counting begins anew"
            self.report("device", text if error else back, notice="gpu_lost" if error else "")
        if error:
            return
        for uuid, entry in self._devices.entries.items():
            self._report_refusal(entry)
            before, state = self._states.get(uuid), entry.availability.state
            if state is before:
                continue
            self._states[uuid] = state
            if state in _ODD or (before in _ODD and state is not DeviceState.UNKNOWN):
                change = "is set aside" if state in _ODD else "is back"
                notice = "gpu_lost" if state is DeviceState.LOST else ""
                self.report("device", f"{entry.title} {change}: {entry.availability.why}", notice=notice)

    def _report_refusal(self, entry: DeviceEntry) -> None:
        """Report once that nothing can start on a device by a fault of its claim."""
        uuid, fault = entry.device.uuid, "" if entry.refused.startswith("claimed ") else entry.refused
        if fault and fault != self._faults.get(uuid):
            self.report("device", f"nothing starts on {entry.title}: {fault}")
        if fault or entry.claim is not None:
            self._faults[uuid] = fault

    def report_wait(self, plan: Plan, now: Moment, running: Collection[OpenAttempt]) -> None:
        """Report why the first waiting job of the plan does not start, if the queue has been idle for long.

        Jobs without a GPU, such as the coordinator of a pool, do not keep a queue that waits for GPUs from being idle.
        """
        job_id, reason = next(iter(plan.reasons.items()), (0, None))
        self._next = None if reason is None else (job_id, reason)
        self.files.reasons = tuple(plan.reasons.values())
        is_of_gpus = reason is not None and reason.kind == "devices"
        busy = any(attempt.devices for attempt in running) if is_of_gpus else len(running) > 0
        if reason is None or reason.kind in ("closed", "nvml", "look") or busy:  # or it was reported
            self._waits.restart(now, WAIT_IS_LONG_S)
        elif self._waits.is_due(now):
            self._waits.restart(now, WAITS_AGAIN_S)
            self.report("waiting", f"the next job {reason.sentence}")

    def update_frame(
        self, board: Callable[[], Board], running: Iterable[OpenAttempt], now: Moment, *, can_go_on: bool
    ) -> None:
        """Show the observer the dispatcher as it is now, if it is time for that."""
        if self.observer.refresh_s is None or not self._frames.is_due(now):
            return
        self._frames.restart(now, self.observer.refresh_s)
        current, views = board(), count_records(self._queue.path, (attempt.view() for attempt in running))
        self.observer.frame(
            Frame(
                at=current.at,
                queue=self._queue.path,
                started_at=self._started_at,
                board=current,
                counts=job_table.current_counts(self._store),
                running=views,
                reason=self._wait_text(),
                pace=self._pace,
                groups=tuple(groups(queue_totals.item_counts(self._store), views)),
                closing=current.closed,
                can_go_on=can_go_on,
            )
        )

    def _wait_text(self) -> str:
        """Return what the first waiting job waits for, in a sentence."""
        return f"{job_title(job_table.get(self._store, self._next[0]))} {self._next[1].sentence}" if self._next else ""

    def update_files(self, running: Iterable[OpenAttempt], now: Moment, textfile_dir: str | None) -> None:
        """Replace the metrics, if it is time for that, and report files that cannot be written."""
        self.files.update(running, now, textfile_dir)
        while self.files.faults:
            self.report("warning", self.files.faults.pop())

    def deadline_s(self) -> float:
        """Return when the metrics or a frame are due."""
        due_s = self.files.metrics_timer.due_s
        return due_s if self.observer.refresh_s is None else min(due_s, self._frames.due_s)
