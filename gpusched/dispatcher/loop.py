"""The dispatcher: observe -> plan -> act, until every job has ended. Each tick looks at the world, not at events.

So taking up the work of a dispatcher that was killed is not a mode: it is the first tick. What to do is decided by
core/plan; here it is done, in the order that docs/architecture.md gives reasons for.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpusched.config import Settings
from gpusched.core import selection
from gpusched.core.availability import Criteria, DeviceState
from gpusched.core.documents import shown_command
from gpusched.core.lifecycle import JobEvent, steer
from gpusched.core.model import (
    MIB,
    AttemptRow,
    Device,
    DeviceUse,
    Event,
    JobRow,
    JobState,
    Reading,
    RunningView,
    Sample,
)
from gpusched.core.outcome import describe
from gpusched.core.plan import Claim, Close, Limits, Plan, Release, Snapshot, Start, Stop, make_plan
from gpusched.dispatcher.attemptbook import AttemptBook, LaunchStyle, Live, log_paths
from gpusched.dispatcher.devicebook import DeviceBook
from gpusched.dispatcher.feed import Feed, NoFeed
from gpusched.dispatcher.wake import Sleeper
from gpusched.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_SOME_FAILED,
    EXIT_TERMINATED,
    GpuschedError,
)
from gpusched.host import board, launcher, metrics
from gpusched.host.board import Board, BoardDevice
from gpusched.host.claims import Claims
from gpusched.host.devices import DeviceSource
from gpusched.host.queuedir import QueueDir
from gpusched.host.store import DiskFull, Store
from gpusched.submit import Rules, refusal, submit

log = logging.getLogger("gpusched.dispatcher")

METRICS_EVERY_S = 30.0
DISK_AGAIN_S = 5.0
LINGER_AGAIN_S = 0.2
HEAD_SPARE = 8  # waiting jobs looked at beyond those that could start
SHUTDOWN_WINDOW_S = 1.0  # failures this shortly before a TERM belong to it


@dataclass(frozen=True, slots=True)
class Frame:
    """One look at a dispatcher, for a live view."""

    at: float
    queue: str
    started_at: float
    board: Board
    counts: dict[JobState, int]
    removed: int
    running: tuple[RunningView, ...]
    reason: str  # what the first waiting job waits for
    finished_now: int  # attempts that have succeeded since this dispatcher began
    closing: str  # why nothing new starts, if so


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


class Dispatcher:
    """Works on one queue. The caller holds the queue's lock while run() runs; no child inherits it."""

    def __init__(
        self,
        queue: QueueDir,
        store: Store,
        source: DeviceSource,
        claims: Claims,
        rules: Rules,
        first: Reading,
        *,
        feed: Feed | None = None,
        observer: Observer | None = None,
        follow: bool = False,
        clock: Callable[[], float] = time.time,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`first` is a complete reading of `source`. `step` is told the name of each step of an action.

        Raises GpuschedError when the allowed set is empty or can never serve a job.
        """
        self.queue, self.store, self.source, self.rules = queue, store, source, rules
        self.observer: Observer = observer or Quiet()
        self.feed: Feed = feed or NoFeed()
        self.follow = follow
        self.clock, self.step = clock, step
        self.devices = DeviceBook(source, claims, queue.path, (), first)
        self.started_at = clock()
        self.succeeded_here = 0
        self.refused_lines = 0
        self.quit = False
        self.draining = ""  # why nothing new starts any more
        self.stop_all_since: float | None = None
        self.exit_code: int | None = None
        self._disk_full = ""
        self._disk_again_at = 0.0
        self._gpus_said = ""
        self._told_form = False
        self._next_poll = self._next_metrics = self._next_frame = 0.0
        self._head: list[JobRow] = []
        self._head_complete = False  # whether _head is still what the store would say
        self._head_more = False  # whether more jobs wait behind it
        self._head_retry_at: float | None = None
        self._data_version = -1
        self._rows: dict[int, JobRow] = {}
        self._energy: dict[str, float] = {}
        self._environments: dict[tuple[str, ...], dict[bytes, bytes]] = {}  # since the last poll
        self._reason = ""
        self._states: dict[str, DeviceState] = {}
        self._apply(rules.settings)

    # ---- settings ----

    def _apply(self, settings: Settings) -> None:
        """Take new options; raises GpuschedError for what this box can never meet, and changes nothing then."""
        chosen = selection.select(
            tuple(self.devices.box.values()),
            wanted=settings.gpu_list,
            outer_mask=os.environ.get("CUDA_VISIBLE_DEVICES"),
            outer_order=os.environ.get("CUDA_DEVICE_ORDER"),
            gpus_per_job=settings.gpus_per_job,
            max_gpus=settings.max_gpus,
        )
        style = LaunchStyle(
            launcher.find_shell(settings.shell),
            settings.setup,
            settings.grace,
            settings.leftovers,
            settings.split_streams,
        )
        self.settings, self.style = settings, style
        self.warnings = chosen.warnings
        self.devices.allow(chosen.uuids)
        self.devices.criteria = Criteria(
            settings.gpu_mem_threshold * MIB,
            settings.max_checks,
            settings.free_when == "idle",
            settings.allow_unreadable_memory,
        )
        self.devices.settle_timeout_s = settings.settle_timeout
        self.limits = Limits(settings.gpus_at_once, settings.cpu_jobs)

    # ---- the loop ----

    def run(self) -> int:
        """Dispatch until all has ended, or until told to leave; the exit code."""
        self.sleeper = Sleeper(self.queue.wake)
        self.attempts = AttemptBook(self.queue, self.sleeper.selector)
        self.dispatch_id = self.store.begin_dispatch(self.clock())
        fileno = self.source.fileno()
        if fileno is not None:
            self.sleeper.selector.register(fileno, 1, lambda: None)
        self.feed.attach(self.sleeper.selector)
        try:
            self._begin()
            while True:
                now = self.clock()
                self._observe(now)
                if self.quit:
                    break
                plan = make_plan(self._snapshot(now))
                self._act(plan, now)
                self._show(plan, now)
                if self._finished():
                    break
                self.sleeper.sleep(self._pause(now))
            return self._end()
        finally:
            self._leave()

    def _begin(self) -> None:
        for text in self.warnings:
            self._tell("warning", text)
        order = os.environ.get("CUDA_DEVICE_ORDER")
        if order not in (None, "PCI_BUS_ID"):
            text = f"CUDA_DEVICE_ORDER={order} in your environment: jobs get PCI_BUS_ID, which the indices here follow"
            self._tell("warning", text)
        for live in self.attempts.adopt(self.store.running()):
            self._tell("started", f"job {live.job.id} was left by an earlier dispatcher: taken over", live.job.id)
        log.info("dispatching %s on %s", self.queue.path, self.source.describe())

    def _observe(self, now: float) -> None:
        self._hear_signals(now)
        version = self.store.data_version()
        if version != self._data_version:
            self._data_version = version
            self._head_complete = False
            self._hear_requests(now)
        polled = now >= self._next_poll
        if polled:
            # from the last due moment, so that the interval does not drift; late ones are not caught up with
            due = self._next_poll + self.settings.poll_interval
            self._next_poll = due if due > now else now + self.settings.poll_interval
            self._head_complete = False
        self._read_feed(now)
        if polled or self.attempts.told:
            self._look(now, everywhere=polled)
        self.devices.ask(now, poll=polled)
        readings = self.devices.take_in(now, self.attempts.ours_on, self.attempts.occupied())
        for reading in readings:
            if reading.complete:
                self._environments.clear()  # indices may have changed
                if not reading.error:
                    self._measure(reading)
                self._publish(now)
        self._tell_devices(now)

    def _look(self, now: float, *, everywhere: bool) -> None:
        lost = [uuid for uuid, state in self.devices.states().items() if state is DeviceState.LOST]
        ended = self.attempts.look(now, everywhere, self.stop_all_since, lost)
        for live in ended:
            if live.outcome is not None and live.outcome.cause == "disk_full":
                self._note_disk_full(live.outcome.note, now)
            self.devices.settle(live.devices, now)

    def _snapshot(self, now: float) -> Snapshot:
        if self._disk_full and now >= self._disk_again_at:
            self._disk_full = ""
        attempts = tuple(live.planned() for live in self.attempts.live.values())
        return Snapshot(
            now=now,
            limits=self.limits,
            devices=self.devices.views(),
            waiting=() if self.draining else tuple(row.waiting for row in self._waiting(now)),
            attempts=attempts,
            closed_to_starts=self.draining or self._disk_full,
            gpus_closed=self.devices.error,
            stop_all=self.stop_all_since is not None,
        )

    def _waiting(self, now: float) -> list[JobRow]:
        """The head of the queue: what could start now, and a few more; fetched only when it may have changed."""
        wanted = self.limits.max_gpus + self.limits.cpu_jobs + HEAD_SPARE
        retry_due = self._head_retry_at is not None and now >= self._head_retry_at
        short = len(self._head) < wanted and self._head_more
        if not self._head_complete or retry_due or short:
            self._head, self._head_complete = self.store.head(now, 4 * wanted), True
            self._head_more = len(self._head) >= 4 * wanted
            self._head_retry_at = self.store.next_not_before(now)
        gpu = [row for row in self._head if row.gpus][:wanted]
        cpu = [row for row in self._head if not row.gpus][:wanted]
        return gpu + cpu

    # ---- acting ----

    def _act(self, plan: Plan, now: float) -> None:
        closes = [a for a in plan.actions if isinstance(a, Close)]
        starts = [a for a in plan.actions if isinstance(a, Start)]
        if closes or starts:
            self._book(closes, starts, now)
        for action in plan.actions:
            if isinstance(action, Stop):
                self._stop(action)
            elif isinstance(action, Release):
                self.devices.release(action.uuid)
            elif isinstance(action, Claim):
                self.step("claim")
                self.devices.claim(action.devices, now)
                self.step("claimed")

    def _book(self, closes: Sequence[Close], starts: Sequence[Start], now: float) -> None:
        """Close and start in one transaction; hand the started attempts over after it."""
        prepared: list[tuple[JobRow, AttemptRow, int]] = []
        rows = {row.id: row for row in self._head}
        closed: list[tuple[Close, Live, JobState]] = []
        try:
            for start in starts:
                ready = self._prepare(rows[start.job_id], start.devices, now)
                if ready is not None:
                    prepared.append(ready)
            self.step("prepared")
            booked: list[tuple[JobRow, AttemptRow, int]] = []
            with self.store.transaction():
                for close in closes:
                    closed.append(self._store_close(close, now))
                for item in prepared:
                    job, attempt, _ = item
                    number = self.store.start(
                        job.id, attempt.started_at, attempt.log, attempt.error_log, attempt.devices
                    )
                    if number == attempt.number:
                        booked.append(item)
                    elif number is not None:
                        raise GpuschedError(f"job {job.id} has another attempt than this dispatcher knows of")
                self.step("booking")
        except (DiskFull, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._note_disk_full(str(error), now)
            for _, _, life in prepared:
                os.close(life)
            return
        self.step("booked")
        for _, live, state in closed:
            self._finish_close(live, state, now)
        handed = {id(item) for item in booked}
        for item in prepared:
            if id(item) not in handed:
                os.close(item[2])
        started_ids = {job.id for job, _, _ in prepared}
        if started_ids:
            self._head = [row for row in self._head if row.id not in started_ids]
        for job, attempt, life in booked:
            self._hand_over(job, attempt, life, now)
        self._data_version = self.store.data_version()

    def _prepare(self, job: JobRow, uuids: Sequence[str], now: float) -> tuple[JobRow, AttemptRow, int] | None:
        number = job.attempts + 1
        life = self.attempts.prepare(job.id, number)
        if life is None:
            return None
        uses = []
        for uuid in uuids:
            device, known = self.devices.device(uuid), self.devices.availability(uuid)
            total = known.sample.total_bytes if known.sample else device.total_bytes
            free = None if total is None or known.foreign_bytes is None else total - known.foreign_bytes
            uses.append(DeviceUse(uuid, device.index, device.name, free))
        out, err = log_paths(job, number, self.style.split_streams)
        return job, AttemptRow(job.id, number, now, None, None, out, err, tuple(uses)), life

    def _store_close(self, close: Close, now: float) -> tuple[Close, Live, JobState]:
        attempt, verdict = close.attempt, close.verdict
        live = next(
            live
            for live in self.attempts.live.values()
            if live.job.id == attempt.job_id and live.row.number == attempt.number
        )
        outcome = live.outcome
        if outcome is None:
            raise AssertionError("an attempt is closed only with an outcome")
        if live.strange_device and not outcome.note:
            outcome = live.outcome = replace(outcome, note=f"chose its own GPU ({live.strange_device})")
        avoid, above = steer(outcome, live.row.devices, live.job.avoid, live.job.above_bytes)
        fields = live.fields
        state = self.store.close_attempt(
            attempt.job_id,
            attempt.number,
            outcome,
            verdict,
            float(fields.get("ended_at", now)),
            usage=live.usage,
            max_rss_bytes=int(fields["max_rss_kib"]) * 1024 if "max_rss_kib" in fields else None,
            cpu_s=float(fields["cpu_s"]) if "cpu_s" in fields else None,
            progress=live.progress.decode("utf-8", "replace"),
            avoid=avoid,
            above_bytes=above,
            now=now,
        )
        return close, live, state

    def _finish_close(self, live: Live, state: JobState, now: float) -> None:
        self.attempts.forget(live)
        if state is JobState.QUEUED:
            self._head_complete = False
        elif state is JobState.SUCCEEDED:
            self.succeeded_here += 1
        outcome = live.outcome
        if outcome is None:
            return
        seconds = float(live.fields.get("ended_at", now)) - live.row.started_at
        kind = "ended"
        if state is JobState.QUEUED:
            kind = JobEvent.RETRIED.value
        text = f"job {live.job.id} {'will be tried again' if state is JobState.QUEUED else state.value}"
        self._tell(kind, f"{text}: {describe(outcome)}, after {seconds:.1f} s", live.job.id)

    def _hand_over(self, job: JobRow, attempt: AttemptRow, life: int, now: float) -> None:
        uuids = [device.uuid for device in attempt.devices]
        self.devices.note_occupied(set(uuids), now)
        environment = self._environment(uuids)
        self.step("hand over")
        self.attempts.launch(job, attempt, life, self.devices.descriptors(uuids), environment, self.style)
        self.step("handed over")
        where = "the CPU" if not uuids else "GPU " + ",".join(str(d.index) for d in attempt.devices)
        self._tell("started", f"job {job.id} on {where}: {shown_command(job.command)}", job.id)

    def _environment(self, uuids: Sequence[str]) -> dict[bytes, bytes]:
        """What an attempt's environment says of its devices."""
        degraded = self.devices.degraded if uuids else ""
        key = (*uuids, self.settings.visible_devices, degraded)
        known = self._environments.get(key)
        if known is not None:
            return known
        given = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "GPUSCHED_DEVICES": ",".join(uuids)}
        given |= self.source.job_environment()
        if degraded and self.settings.visible_devices == "auto" and not self._told_form:
            self._told_form = True
            self._tell("device", f"{degraded}: jobs get UUIDs in CUDA_VISIBLE_DEVICES from now on")
        given["CUDA_VISIBLE_DEVICES"] = selection.visible_value(
            self.devices.devices(), uuids, self.settings.visible_devices, bool(degraded)
        )
        known = self._environments[key] = {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
        return known

    def _stop(self, action: Stop) -> None:
        for live in self.attempts.live.values():
            if live.job.id == action.attempt.job_id and live.row.number == action.attempt.number:
                self.attempts.stop(live)

    # ---- hearing ----

    def _hear_signals(self, now: float) -> None:
        while self.sleeper.received:
            number = self.sleeper.received.pop(0)
            if number == signal.SIGHUP:
                self.observer.detach()
                log.info("the terminal is gone; going on without it")
            elif number == signal.SIGQUIT:
                self.quit, self.exit_code = True, EXIT_QUIT
                self._tell("queue", "leaving at once; running jobs go on, the next start takes them over")
            elif number == signal.SIGINT and not self.draining:
                self._drain("Ctrl-C", EXIT_INTERRUPTED)
            else:
                code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
                self._stop_everything("Ctrl-C" if number == signal.SIGINT else "TERM", code, now)

    def _drain(self, why: str, code: int) -> None:
        self.draining, self.exit_code = f"stopping ({why})", code
        running = len(self.attempts.live)
        text = f"{why}: nothing new starts; {running} running job(s) go on to their end; the same command resumes"
        self._tell("queue", f"{text} (once more: they are stopped and queued again)")

    def _stop_everything(self, why: str, code: int, now: float) -> None:
        if self.stop_all_since is not None:
            return
        self.draining = self.draining or f"stopping ({why})"
        self.stop_all_since, self.exit_code = now, code
        again = self.store.blame_shutdown(now - SHUTDOWN_WINDOW_S, now)
        text = (
            f"{why}: stopping {len(self.attempts.live)} running job(s): TERM, and KILL after {self.style.grace_s:g} s"
        )
        self._tell("queue", f"{text}; they are queued again" + (f" (with {again})" if again else ""))

    def _hear_requests(self, now: float) -> None:
        for request, kind, _ in self.store.open_requests():
            if kind == "submitted" and self.draining:
                continue  # whoever submitted waits for the lock and dispatches itself
            if kind == "stop" and not self.draining:
                self._drain("gpusched stop", EXIT_INTERRUPTED)
            elif kind == "stop_now":
                self._stop_everything("gpusched stop --now", EXIT_TERMINATED, now)
            elif kind == "submitted":
                self._take_options()
            self.store.acknowledge(request, now)
        for live in self.attempts.live.values():
            live.cancel_requested = self.store.job(live.job.id).cancel_requested_at is not None
        self._data_version = self.store.data_version()

    def _take_options(self) -> None:
        """Another `gpusched run` of this queue gave newer options."""
        text = self.store.meta("settings")
        if text is None:
            return
        try:
            self._apply(Settings.from_json(text))
            self.rules = replace(self.rules, settings=self.settings)
        except GpuschedError as error:
            self._tell("warning", f"newer options are not taken: {error}")

    def _read_feed(self, now: float) -> None:
        try:
            while (batch := self.feed.poll(now)) is not None:
                if batch.jobs.errors:
                    self.refused_lines += len(batch.jobs.errors)
                    self._tell("error", str(refusal(batch.jobs.errors, "input")))
                change = submit(
                    self.store,
                    batch.jobs.specs,
                    self.rules,
                    now,
                    complete=batch.complete,
                    append=batch.append,
                )
                self._head_complete = False
                if change.add or change.cancel or change.requeue:
                    parts = [
                        (len(change.add), "new"),
                        (len(change.cancel), "removed"),
                        (len(change.requeue), "back"),
                    ]
                    told = ", ".join(f"{n} {word}" for n, word in parts if n)
                    self._tell("queue", f"the list was read: {told}")
        except GpuschedError as error:
            self._tell("warning", f"the list was changed but is not taken: {error}")
        except OSError as error:
            self._tell("warning", f"the list cannot be read: {error}")

    def _note_disk_full(self, text: str, now: float) -> None:
        self._disk_again_at = now + DISK_AGAIN_S
        if not self._disk_full:
            self._tell("error", f"the disk is full: nothing new starts until there is room ({text})")
        self._disk_full = "the disk is full"

    # ---- telling ----

    def _tell(self, kind: str, text: str, job_id: int | None = None) -> None:
        level = {"warning": logging.WARNING, "error": logging.ERROR}.get(kind, logging.INFO)
        log.log(level, "%s", text)
        self.observer.event(Event(self.clock(), kind, text, job_id))

    def _tell_devices(self, now: float) -> None:
        """Say once what has become of a device, or of the whole source."""
        if self.devices.error != self._gpus_said:
            back = "the GPUs can be read again: counting begins anew"
            running = "running jobs go on, nothing new starts on a GPU"
            self._gpus_said = self.devices.error
            self._tell("device", f"{self.devices.error}: {running}" if self.devices.error else back)
        if self.devices.error:
            return
        odd = (DeviceState.LOST, DeviceState.SET_ASIDE)
        for uuid, state in self.devices.states().items():
            before = self._states.get(uuid)
            if state is before:
                continue
            self._states[uuid] = state
            if state in odd or (before in odd and state is not DeviceState.UNKNOWN):
                device, why = self.devices.device(uuid), self.devices.availability(uuid).why
                name = f"GPU {device.index} ({uuid}, {device.bus_id})"
                text = f"{name} is set aside: {why}" if state in odd else f"{name} is back: {why}"
                self._tell("device", text)

    def _measure(self, reading: Reading) -> None:
        samples: dict[str, Sample] = {s.uuid: s for s in reading.samples if not s.error}
        used: dict[str, float] = {}
        for uuid, sample in samples.items():
            if sample.energy_j is None:
                continue
            before = self._energy.get(uuid)
            if before is not None and sample.energy_j >= before:
                used[uuid] = sample.energy_j - before
            self._energy[uuid] = sample.energy_j
        self.attempts.measure(samples, used)
        for live in self.attempts.live.values():
            if live.strange_device and not live.fields.get("told_strange"):
                live.fields = {**live.fields, "told_strange": "yes"}
                text = f"job {live.job.id} uses {live.strange_device}, which it was not given"
                self._tell("warning", f"{text}: it must choose its own GPU", live.job.id)

    def _board(self, now: float) -> Board:
        on = {uuid: live.job.id for live in self.attempts.live.values() for uuid in live.devices}
        devices = tuple(
            BoardDevice(self.devices.device(view.uuid), view, on.get(view.uuid)) for view in self.devices.views()
        )
        return Board(
            at=now,
            pid=os.getpid(),
            source=self.source.describe(),
            limits=self.limits,
            max_checks=self.devices.criteria.max_checks,
            threshold_bytes=self.devices.criteria.threshold_bytes,
            devices=devices,
            closed=self.draining or self._disk_full,
            gpus_closed=self.devices.error,
        )

    def _publish(self, now: float) -> None:
        try:
            board.write(self.queue.board, self._board(now))
        except OSError as error:
            self._note_disk_full(str(error), now)

    def _show(self, plan: Plan, now: float) -> None:
        reason = next(iter(plan.reasons.values()), None)
        if reason is not None and reason.kind != "max_gpus" and reason.text != self._reason:
            log.debug("waiting: %s", reason.text)
        self._reason = reason.text if reason else ""
        if now >= self._next_metrics:
            self._next_metrics = now + METRICS_EVERY_S
            self._write_metrics(now, every_job=False)
        refresh = self.observer.refresh_s
        if refresh is not None and now >= self._next_frame:
            self._next_frame = now + refresh
            self.observer.frame(self._frame(now))

    def _frame(self, now: float) -> Frame:
        return Frame(
            at=now,
            queue=self.queue.path,
            started_at=self.started_at,
            board=self._board(now),
            counts=self.store.counts(),
            removed=self.store.count_removed(),
            running=tuple(live.view() for live in self.attempts.live.values()),
            reason=self._reason,
            finished_now=self.succeeded_here,
            closing=self.draining,
        )

    def _write_metrics(self, now: float, *, every_job: bool) -> None:
        try:
            for live in self.attempts.live.values():
                text = live.progress.decode("utf-8", "replace")
                self.store.save_usage(live.job.id, live.row.number, live.usage, text)
            self.store.touch_dispatch(self.dispatch_id, now)
            metrics.write(
                self.queue.metrics,
                self.store,
                self._device_documents(),
                self.queue.path,
                now,
                every_job=every_job,
            )
            self._data_version = self.store.data_version()
        except (OSError, DiskFull) as error:
            self._note_disk_full(str(error), now)

    def _device_documents(self) -> list[dict[str, object]]:
        return [
            _device_document(self.devices.device(view.uuid), view.availability.state.value, view.availability.why)
            for view in self.devices.views()
        ]

    # ---- pausing and leaving ----

    def _pause(self, now: float) -> float:
        """How long nothing needs to be done."""
        moments = [self._next_poll, self._next_metrics]
        for moment in (self.devices.next_look(), self.feed.deadline(), self._head_retry_at):
            if moment is not None:
                moments.append(moment)
        if self.attempts.lingering():
            moments.append(now + LINGER_AGAIN_S)
        if self.observer.refresh_s is not None:
            moments.append(self._next_frame)
        if self._disk_full:
            moments.append(self._disk_again_at)
        return max(0.0, min(moments) - self.clock())

    def _finished(self) -> bool:
        if self.attempts.live:
            return False
        if self.draining:
            return True
        if self.follow or not self.feed.ended() or self._head:
            return False
        return self.store.counts()[JobState.QUEUED] == 0

    def _end(self) -> int:
        if self.exit_code is not None:
            return self.exit_code
        counts = self.store.counts()
        bad = counts[JobState.FAILED] + counts[JobState.CANCELLED] - self.store.count_removed()
        return EXIT_SOME_FAILED if bad or self.refused_lines else EXIT_OK

    def _leave(self) -> None:
        now = self.clock()
        if self.quit:
            self.store.touch_dispatch(self.dispatch_id, now)
        else:
            self._write_metrics(now, every_job=True)
        self.step("leaving")
        self.devices.release_all()
        self.attempts.close()
        self.feed.detach()
        self.sleeper.close()
        board.remove(self.queue.board)


def _device_document(device: Device, state: str, why: str) -> dict[str, object]:
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "total_bytes": device.total_bytes,
        "state": state,
        "why": why,
    }
