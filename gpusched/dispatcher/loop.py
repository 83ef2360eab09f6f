"""The dispatcher: observe -> plan -> act, until every job has ended. Each tick looks at the world, not at events.

So taking up the work of a dispatcher that was killed is not a mode: it is the first tick. What to do is decided by
core/plan; here it is done, in the order that docs/architecture.md gives reasons for.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpusched.config import Settings
from gpusched.core import selection
from gpusched.core.availability import Criteria
from gpusched.core.findings import render_findings
from gpusched.core.lifecycle import BACKOFF_MAX_S, JobEvent
from gpusched.core.model import MIB, JobRow, JobState, Reading
from gpusched.core.plan import Close, Limits, Plan, Snapshot, make_plan
from gpusched.dispatcher.actor import Actor
from gpusched.dispatcher.attemptbook import AttemptBook, LaunchStyle, Live
from gpusched.dispatcher.devicebook import DeviceBook
from gpusched.dispatcher.feed import Batch, Feed, NoFeed
from gpusched.dispatcher.reporter import Observer, Quiet, Reporter
from gpusched.dispatcher.wake import Sleeper
from gpusched.errors import (
    EXIT_CANNOT_WORK,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_SOME_FAILED,
    EXIT_TERMINATED,
    GpuschedError,
)
from gpusched.host import launcher
from gpusched.host.board import Board
from gpusched.host.claims import Claims
from gpusched.host.devices import DeviceSource
from gpusched.host.queuedir import QueueDir
from gpusched.host.store import DiskFull, Store, StoreError
from gpusched.submit import Rules, submit

log = logging.getLogger("gpusched.dispatcher")

METRICS_EVERY_S = 30.0
TROUBLE_AGAIN_S = 5.0
CLOCK_SLACK_S = 1.0  # a clock that is set back by less is left alone
LINGER_AGAIN_S = 0.2
WAIT_IS_LONG_S = 2.0  # then it is said what an idle queue waits for
WAITS_AGAIN_S = 600.0  # and said again so often
HEAD_SPARE = 8  # waiting jobs looked at beyond those that could start
HEAD_PAGES = 4  # fetched at once: as many times what is looked at
SHUTDOWN_WINDOW_S = 1.0  # failures this shortly before a TERM belong to it
_FINAL = (JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED)


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
        self.refused_lines = 0
        self.quit = False
        self.draining = ""  # why nothing new starts any more
        self.stop_all_since: float | None = None
        self.exit_code: int | None = None
        self._trouble = ""  # why the box lets nothing start
        self._trouble_until = 0.0
        self._trouble_told = ""
        self._batch: Batch | None = None  # read from the feed, not stored yet
        self._gone = False  # the queue's files were removed
        self._seen_at = 0.0  # when the last tick was
        self._next_poll = self._next_metrics = self._next_frame = 0.0
        self._head: list[JobRow] = []
        self._head_complete = False  # whether _head is still what the store would say
        self._head_more = (False, False)  # whether more GPU jobs, more CPU jobs wait behind it
        self._head_retry_at: float | None = None
        self._data_version = -1
        self._reason = ""
        self._tell_wait_at = clock() + WAIT_IS_LONG_S
        self._apply(rules.settings)

    # ---- settings ----

    def _apply(self, settings: Settings) -> None:
        """Take new options; raises GpuschedError for what this box can never meet, and changes nothing then."""
        chosen = selection.select(
            self.devices.known(),
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
        self.reporter = Reporter(self.queue, self.store, self.devices, self.observer, self.clock)
        self.actor = Actor(
            self.store,
            self.source,
            self.devices,
            self.attempts,
            self.reporter,
            self.style,
            self.settings.visible_devices,
            self.clock,
            self.step,
        )
        fileno = self.source.fileno()
        if fileno is not None:
            self.sleeper.selector.register(fileno, selectors.EVENT_READ, lambda: None)
        self.feed.attach(self.sleeper.selector)
        gc.freeze()  # a long list, once read, is not looked through again and again
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
        for request, kind, _ in self.store.open_requests():
            if kind in ("stop", "stop_now"):  # was meant for a dispatcher that has left
                self.store.acknowledge(request, self.clock())
        self.store.shorten_back_offs(self.clock() + BACKOFF_MAX_S)  # noted by a clock that was ahead
        for text in self.warnings:
            self.reporter.tell("warning", text)
        order = os.environ.get("CUDA_DEVICE_ORDER")
        if order not in (None, "PCI_BUS_ID"):
            text = f"CUDA_DEVICE_ORDER={order} in your environment: jobs get PCI_BUS_ID, which the indices here follow"
            self.reporter.tell("warning", text)
        for live in self.attempts.adopt(self.store.running()):
            self.reporter.tell(
                "started", f"job {live.job.id} was left by an earlier dispatcher: taken over", live.job.id
            )
        log.info("dispatching %s on %s", self.queue.path, self.source.describe())

    def _clock_went_back(self, now: float) -> None:
        """The box's clock was set back: what was due at its old time is due now."""
        log.warning("the clock went back by %.0f s", self._seen_at - now)
        self._next_poll = self._next_metrics = self._next_frame = now
        self._trouble_until = min(self._trouble_until, now + TROUBLE_AGAIN_S)
        self._tell_wait_at = now + WAIT_IS_LONG_S
        self._head_complete = False
        self.devices.clock_went_back(now)
        self.attempts.clock_went_back(now)
        try:
            self.store.shorten_back_offs(now + BACKOFF_MAX_S)
        except DiskFull as error:
            self._note_trouble(error, now)

    def _observe(self, now: float) -> None:
        if now < self._seen_at - CLOCK_SLACK_S:
            self._clock_went_back(now)
        self._seen_at = now
        if self._trouble and now >= self._trouble_until:
            self._trouble = ""
        self._hear_signals(now)
        version = self.store.data_version()
        if version != self._data_version:
            self._data_version = version
            self._head_complete = False
            self._hear_requests(now)
        polled = now >= self._next_poll
        if polled:
            if not self.queue.exists():
                raise self._queue_gone()
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
                self.actor.forget_labels()
                for live in self.attempts.measure({s.uuid: s for s in reading.samples if not s.error}):
                    self._tell_stranger(live)
                self._publish(now)
        self.reporter.tell_devices()
        self.attempts.settle_doubts(now, self.devices)

    def _queue_gone(self) -> GpuschedError:
        self._gone = True
        running = len(self.attempts.live)
        return GpuschedError(
            "this queue's files were removed while it was dispatched: leaving",
            where=self.queue.state,
            hint=f"{running} running job(s) go on and keep their GPUs to their end; nobody records how they end",
            exit_code=EXIT_CANNOT_WORK,
        )

    def _look(self, now: float, *, everywhere: bool) -> None:
        ended = self.attempts.look(now, everywhere, self.stop_all_since)
        for live in ended:
            if live.outcome is not None and live.outcome.cause in ("disk_full", "cannot_start"):
                self._note_trouble(live.outcome.note, now, full=live.outcome.cause == "disk_full")
            self.devices.settle(live.devices, now)
        for live in self.attempts.live.values():
            left = live.fields.get("leftovers", "")
            if left and not live.told_leftovers:
                live.told_leftovers = True
                text = f"job {live.job.id}: its command has ended, but not what it left running: {left}"
                kept = "its GPU is kept for them" if live.devices else "they still count"
                self.reporter.tell("warning", f"{text}; {kept} (--leftovers stop ends them)", live.job.id)

    def _snapshot(self, now: float) -> Snapshot:
        attempts = tuple(live.planned() for live in self.attempts.live.values())
        return Snapshot(
            now=now,
            limits=self.limits,
            devices=self.devices.views(),
            waiting=() if self.draining else tuple(row.waiting for row in self._waiting(now)),
            attempts=attempts,
            closed_to_starts=self.draining or self._trouble,
            gpus_closed=self.devices.error,
            stop_all=self.stop_all_since is not None,
            threshold_bytes=self.devices.criteria.threshold_bytes,
        )

    def _waiting(self, now: float) -> list[JobRow]:
        """The head of the queue: what could start now, and a few more; fetched only when it may have changed."""
        wanted = self.limits.max_gpus + self.limits.cpu_jobs + HEAD_SPARE
        retry_due = self._head_retry_at is not None and now >= self._head_retry_at
        if not self._head_complete or retry_due or self._runs_short(wanted):
            self._head, self._head_complete = self.store.head(now, HEAD_PAGES * wanted), True
            sizes = _sizes(self._head)
            self._head_more = (sizes[0] >= HEAD_PAGES * wanted, sizes[1] >= HEAD_PAGES * wanted)
            self._head_retry_at = self.store.next_not_before(now)
        gpu = [row for row in self._head if row.gpus][:wanted]
        cpu = [row for row in self._head if not row.gpus][:wanted]
        return gpu + cpu

    def _runs_short(self, wanted: int) -> bool:
        return any(more and size < wanted for more, size in zip(self._head_more, _sizes(self._head), strict=True))

    # ---- acting ----

    def _act(self, plan: Plan, now: float) -> None:
        try:
            gone = self.actor.act(plan, {row.id: row for row in self._head}, now)
        except (DiskFull, OSError) as error:
            self._note_trouble(error, now)
            self._head_complete = False
            return
        if gone and self._trouble_told:
            self._trouble_told = ""
            self.reporter.tell("queue", "jobs can start again")
        if gone:
            self._head = [row for row in self._head if row.id not in gone]
        if any(isinstance(a, Close) and a.verdict.event not in _FINAL for a in plan.actions):
            self._head_complete = False  # a job waits again

    # ---- hearing ----

    def _hear_signals(self, now: float) -> None:
        while self.sleeper.received:
            number = self.sleeper.received.pop(0)
            if number == signal.SIGHUP:
                self.observer.detach()
                log.info("the terminal is gone; going on without it")
            elif number == signal.SIGQUIT:
                self.quit, self.exit_code = True, EXIT_QUIT
                self.reporter.tell("queue", "leaving at once; running jobs go on, the next start takes them over")
            elif number == signal.SIGINT and not self.draining:
                self._drain("Ctrl-C", EXIT_INTERRUPTED)
            else:
                code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
                self._stop_everything("Ctrl-C" if number == signal.SIGINT else "TERM", code, now)

    def _drain(self, why: str, code: int) -> None:
        self.draining, self.exit_code = f"stopping ({why})", code
        running = len(self.attempts.live)
        text = f"{why}: nothing new starts; {running} running job(s) go on to their end; the same command resumes"
        self.reporter.tell("queue", f"{text} (once more: they are stopped and queued again)")

    def _stop_everything(self, why: str, code: int, now: float) -> None:
        if self.stop_all_since is not None:
            return
        self.draining = self.draining or f"stopping ({why})"
        self.stop_all_since, self.exit_code = now, code
        again: list[int] = []
        try:
            again = self.store.blame_shutdown(now - SHUTDOWN_WINDOW_S)
        except DiskFull as error:
            self._note_trouble(error, now)
        what = f"stopping {len(self.attempts.live)} running job(s): TERM, and KILL after {self.style.grace_s:g} s"
        with_these = f", and so are those that failed just now: {', '.join(map(str, again))}" if again else ""
        self.reporter.tell("queue", f"{why}: {what}; they are queued again{with_these}")

    def _hear_requests(self, now: float) -> None:
        heard = []
        for request, kind, _ in self.store.open_requests():
            if kind == "submitted" and self.draining:
                continue  # whoever submitted waits for the lock and dispatches itself
            if kind == "stop" and not self.draining:
                self._drain("gpusched stop", EXIT_INTERRUPTED)
            elif kind == "stop_now":
                self._stop_everything("gpusched stop --now", EXIT_TERMINATED, now)
            elif kind == "submitted":
                self._take_options()
            heard.append(request)
        for live in self.attempts.live.values():
            live.cancel_requested = self.store.job(live.job.id).cancel_requested_at is not None
        try:
            with self.store.transaction():
                for request in heard:
                    self.store.acknowledge(request, now)
            self._data_version = self.store.data_version()
        except DiskFull as error:
            self._note_trouble(error, now)
            self._data_version = -1  # heard again

    def _take_options(self) -> None:
        """Another `gpusched run` of this queue gave newer options."""
        text = self.store.meta("settings")
        if text is None:
            return
        try:
            self._apply(Settings.from_json(text))
            self.actor.style, self.actor.visible_devices = self.style, self.settings.visible_devices
            self.rules = replace(self.rules, settings=self.settings)
        except GpuschedError as error:
            self.reporter.tell("warning", f"newer options are not taken: {error}")

    def _read_feed(self, now: float) -> None:
        if self._trouble:
            return  # what comes meanwhile waits in the feed
        try:
            while (batch := self._batch or self.feed.poll(now)) is not None:
                if batch.jobs.errors and batch is not self._batch:
                    self.refused_lines += len(batch.jobs.errors)
                    lines = render_findings(batch.jobs.errors, "standard input")
                    self.reporter.tell("error", f"left out, for it cannot be right (the other lines run):\n{lines}")
                self._batch = batch
                change = submit(
                    self.store,
                    batch.jobs.specs,
                    # asked for once: what has failed since then stays so
                    self.rules if batch.append else replace(self.rules, retry_failed=False),
                    now,
                    complete=batch.complete,
                    append=batch.append,
                )
                self._batch = None
                self._head_complete = False
                if change.add or change.cancel or change.requeue:
                    parts = [
                        (len(change.add), "new"),
                        (len(change.cancel), "removed"),
                        (len(change.requeue), "back"),
                    ]
                    told = ", ".join(f"{n} {word}" for n, word in parts if n)
                    self.reporter.tell("queue", f"the list was read: {told}")
        except DiskFull as error:
            self._note_trouble(error, now)
        except StoreError:
            raise
        except GpuschedError as error:
            self.reporter.tell("warning", f"the list was changed but is not taken: {error}")
        except OSError as error:
            self.reporter.tell("warning", f"the list cannot be read: {error}")

    def _note_trouble(self, error: Exception | str, now: float, *, full: bool = False) -> None:
        """The box cannot do what it is asked: nothing new starts for a while, running jobs go on. Said once."""
        full = full or isinstance(error, DiskFull)
        full = full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
        self._trouble = "the disk is full" if full else "no job can be started"
        self._trouble_until = now + TROUBLE_AGAIN_S
        if self._trouble != self._trouble_told:
            self._trouble_told = self._trouble
            again = f"nothing new starts, running jobs go on; tried again every {TROUBLE_AGAIN_S:g} s"
            self.reporter.tell("error", f"{self._trouble}: {again} ({error})")

    # ---- telling ----

    def _tell_stranger(self, live: Live) -> None:
        text = f"job {live.job.id} uses {live.strange_device}, which it was not given: it must choose its own GPU"
        self.reporter.tell("warning", text, live.job.id)

    def _board(self, now: float) -> Board:
        closed = self.draining or self._trouble
        return self.reporter.board(now, self.attempts.live.values(), self.limits, closed)

    def _publish(self, now: float) -> None:
        try:
            self.reporter.publish(self._board(now))
        except OSError as error:
            self._note_trouble(error, now)

    def _show(self, plan: Plan, now: float) -> None:
        if log.isEnabledFor(logging.DEBUG):
            for action in plan.actions:
                log.debug("%s", action)
        reason = next(iter(plan.reasons.values()), None)
        self._reason = reason.text if reason else ""
        if reason is None or reason.kind in ("closed", "nvml") or self.attempts.live:  # or it was told
            self._tell_wait_at = now + WAIT_IS_LONG_S
        elif now >= self._tell_wait_at:
            self._tell_wait_at = now + WAITS_AGAIN_S
            self.reporter.tell("waiting", f"the next job {reason.text}")
        if now >= self._next_metrics:
            self._next_metrics = now + METRICS_EVERY_S
            self._write_metrics(now, every_job=False)
        refresh = self.observer.refresh_s
        if refresh is not None and now >= self._next_frame:
            self._next_frame = now + refresh
            running = self.attempts.live.values()
            self.observer.frame(self.reporter.frame(self._board(now), running, self._reason, self.draining))

    def _write_metrics(self, now: float, *, every_job: bool) -> None:
        try:
            self.reporter.write_metrics(now, self.attempts.live.values(), every_job=every_job)
        except (OSError, DiskFull) as error:
            self._note_trouble(error, now)

    # ---- pausing and leaving ----

    def _pause(self, now: float) -> float:
        """How long nothing needs to be done."""
        moments = [self._next_poll, self._next_metrics]
        for moment in (
            self.devices.next_look(),
            self.attempts.next_doubt(),
            None if self._trouble else self.feed.deadline(),
            self._head_retry_at,
        ):
            if moment is not None:
                moments.append(moment)
        if self.attempts.lingering():
            moments.append(now + LINGER_AGAIN_S)
        if self.observer.refresh_s is not None:
            moments.append(self._next_frame)
        if self._trouble:
            moments.append(self._trouble_until)
        return max(0.0, min(moments) - self.clock())

    def _finished(self) -> bool:
        if self.attempts.live:
            return False
        if self.draining:
            return True
        if self.follow or self._batch is not None or not self.feed.ended() or self._head:
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
        if not self._gone:
            self._write_metrics(now, every_job=not self.quit)
        self.step("leaving")
        self.devices.release_all()
        self.attempts.close()
        self.feed.detach()
        self.sleeper.close()
        self.reporter.leave(now)


def _sizes(rows: Sequence[JobRow]) -> tuple[int, int]:
    """How many GPU jobs and CPU jobs there are."""
    gpu = sum(1 for row in rows if row.gpus)
    return gpu, len(rows) - gpu
