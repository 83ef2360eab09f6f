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
from collections.abc import Callable
from dataclasses import replace

from gpusched.common.errors import (
    EXIT_CANNOT_WORK,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_QUIT,
    EXIT_SOME_FAILED,
    EXIT_TERMINATED,
    GpuschedError,
)
from gpusched.config.settings import Settings, changed
from gpusched.core.jobs.lifecycle import BACKOFF_MAX_S, JobEvent
from gpusched.core.model import JobState, Reading
from gpusched.core.plan import observe, selection
from gpusched.core.plan.board import Board
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, Close, Plan, Snapshot, Start
from gpusched.dispatcher.actor import Actor
from gpusched.dispatcher.attempt_book import SHUTDOWN_WINDOW_S, AttemptBook, LaunchStyle
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.feed import Feed, NoFeed
from gpusched.dispatcher.list_reader import ListReader
from gpusched.dispatcher.queue_head import QueueHead
from gpusched.dispatcher.reporter import Observer, Quiet, Reporter
from gpusched.dispatcher.usage_meter import UsageMeter
from gpusched.dispatcher.wake import Sleeper
from gpusched.dispatcher.watchdog import Watchdog
from gpusched.host.attempts import launcher
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import (
    DiskFull,
    Store,
    attempt_table,
    job_table,
    meta_table,
    request_table,
    startable_jobs,
    transitions,
)
from gpusched.lists.submit import SubmitOptions

log = logging.getLogger("gpusched.dispatcher")

METRICS_EVERY_S = 30.0
TROUBLE_AGAIN_S = 5.0
CLOCK_SLACK_S = 1.0  # a clock that is set back by less is left alone
LINGER_AGAIN_S = 0.2
WAIT_IS_LONG_S = 2.0  # then it is said what an idle queue waits for
WAITS_AGAIN_S = 600.0  # and said again so often
_FINAL = (JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED)


class Dispatcher:
    """Works on one queue. The caller holds the queue's lock while run() runs; no child inherits it."""

    def __init__(
        self,
        queue: QueueDir,
        store: Store,
        source: DeviceSource,
        claims: Claims,
        rules: SubmitOptions,
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
        self.quit = False
        self.draining = ""  # why nothing new starts any more
        self.stop_all_since: float | None = None
        self.exit_code: int | None = None
        self._trouble = ""  # why the box lets nothing start
        self._trouble_until = 0.0
        self._trouble_told = ""
        self._trouble_since = 0.0
        self._unbooked = False  # the last plan could not be booked
        self._gone = False  # the queue's files were removed
        self._seen_at = 0.0  # when the last tick was
        self._next_poll = self._next_metrics = self._next_frame = 0.0
        self._head = QueueHead(store)
        self.intake = ListReader(self.feed, store)
        self._waited_since: dict[int, float] = {}  # jobs that others have passed
        self._data_version = -1
        self._reason = ""
        self._tell_wait_at = clock() + WAIT_IS_LONG_S
        if rules.dirs is None:
            self._take_dirs()
        self._apply(rules.settings)

    # ---- settings ----

    def _apply(self, settings: Settings) -> None:
        """Take new options; raises GpuschedError for what this box can never meet, and changes nothing then."""
        chosen = selection.select(
            self.devices.known(),
            wanted=settings.gpu_list,
            outer_mask=os.environ.get("CUDA_VISIBLE_DEVICES"),
            outer_order=os.environ.get("CUDA_DEVICE_ORDER"),
            gpus_per_job=self._gpus_wanted(settings),
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
        self.devices.criteria = observe.criteria(settings)
        self.rules = replace(self.rules, settings=settings)
        self.limits = self.rules.limits

    def _gpus_wanted(self, settings: Settings) -> int:
        """What a job of the queue wants, by its own word or by the options; 0 only where no job wants a GPU."""
        if job_table.wants_gpus(self.store):
            return max(1, settings.gpus_per_job)
        return settings.gpus_per_job if self.devices.box else 0

    # ---- the loop ----

    def run(self) -> int:
        """Dispatch until all has ended, or until told to leave; the exit code."""
        self.sleeper = Sleeper(self.queue.wake)
        self.attempts = AttemptBook(self.queue, self.sleeper.selector)
        self.reporter = Reporter(self.queue, self.store, self.devices, self.observer, self.clock)
        self.meter = UsageMeter(self.attempts)
        self.minder = Watchdog(self.store, self.attempts, self.meter, self.reporter)
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
                snapshot = self._snapshot(now)
                plan = make_plan(snapshot) if self.draining else self._head.plan(snapshot)
                again = self._act(plan, now)
                self._show(plan, now)
                if self._finished():
                    break
                self.sleeper.sleep(0 if again else self._pause(now))
            return self._end()
        finally:
            self._leave()

    def _begin(self) -> None:
        for request, kind, _ in request_table.open_requests(self.store):
            if kind in ("stop", "stop_now"):  # was meant for a dispatcher that has left
                request_table.acknowledge(self.store, request, self.clock())
        startable_jobs.shorten_back_offs(self.store, self.clock() + BACKOFF_MAX_S)  # noted by a clock that was ahead
        for text in self.warnings:
            self.reporter.tell("warning", text)
        for live in self.attempts.adopt(attempt_table.running(self.store), self.clock()):
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
        self._head.forget()
        self.devices.clock_went_back(now)
        self.attempts.clock_went_back(now)
        try:
            startable_jobs.shorten_back_offs(self.store, now + BACKOFF_MAX_S)
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
            self._head.forget()
            self._hear_requests(now)
        polled = now >= self._next_poll
        if polled:
            if not self.queue.exists():
                raise self._queue_gone()
            # from the last due moment, so that the interval does not drift; late ones are not caught up with
            due = self._next_poll + self.settings.poll_interval
            self._next_poll = due if due > now else now + self.settings.poll_interval
            self._head.forget()
        self._read_feed(now)
        if polled or self.attempts.told:
            self._look(now, everywhere=polled)
        self.devices.ask(now, poll=polled)
        readings = self.devices.take_in(now, self.meter.ours_on, self.attempts.occupied())
        for reading in readings:
            if reading.complete:
                self.actor.forget_labels()
                self.minder.mind_reading(reading, self.settings, now)
                self._publish(now)
        self.reporter.tell_devices()
        self.attempts.settle_doubts(now, self.devices)

    def _queue_gone(self) -> GpuschedError:
        self._gone = True
        running = self.attempts.unfinished()
        goes_on = f"{_jobs(running)}: what runs goes on and keeps its GPU to its end; nobody records how it ends"
        return GpuschedError(
            "this queue's files were removed while it was dispatched: leaving",
            where=self.queue.state,
            hint=goes_on if running else "no job ran",
            exit_code=EXIT_CANNOT_WORK,
        )

    def _look(self, now: float, *, everywhere: bool) -> None:
        ended = self.attempts.look(now, everywhere, self.stop_all_since)
        began = (live for live in self.attempts.live.values() if "pid" in live.fields)
        if self._trouble_told and any(live.row.started_at >= self._trouble_since for live in began):
            self._trouble_told = ""
            self.reporter.tell("queue", "jobs can start again")
        for live in ended:
            if live.outcome is not None and live.outcome.cause in ("disk_full", "cannot_start"):
                self._note_trouble(live.outcome.note, now, full=live.outcome.cause == "disk_full")
            self.devices.settle(live.devices, now, self.attempts.occupied())
        self.minder.mind_leftovers()

    def _snapshot(self, now: float) -> Snapshot:
        attempts = [live.planned() for live in self.attempts.live.values()]
        return observe.snapshot(self._board(now), now, attempts=attempts, stop_all=self.stop_all_since is not None)

    # ---- acting ----

    def _act(self, plan: Plan, now: float) -> bool:
        """Do what the plan says; whether to plan again at once."""
        fails = any(isinstance(action, Close) and action.verdict.event is JobEvent.FAILED for action in plan.actions)
        if fails:  # whether more may start now is seen when the failures are counted
            kept = tuple(action for action in plan.actions if not isinstance(action, Start | Claim))
            plan = replace(plan, actions=kept)
        try:
            gone = self.actor.act(plan, self._head.rows, now)
        except (DiskFull, OSError) as error:
            self._note_trouble(error, now)
            self._head.forget()
            self._unbooked = True
            return False
        self._unbooked = False
        if gone:
            self._waited_since = {job: since for job, since in self._waited_since.items() if job not in gone}
            self._head.take_out(gone)
        if self.minder.mind_failures(plan):
            self._head.forget()
        limit = self.settings.max_fails
        if limit is not None and self.minder.failed >= limit and not self.draining:
            self._drain(f"{self.minder.failed} jobs have failed (--max-fails {limit})", EXIT_SOME_FAILED)
        if any(isinstance(a, Close) and a.verdict.event not in _FINAL for a in plan.actions):
            self._head.forget()  # a job waits again
        freed = transitions.take_freed(self.store)
        if freed:
            self._head.forget()
        return freed or fails

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
        running = self.attempts.unfinished()
        text = f"{why}: nothing new starts"
        if running:
            text += f"; {_jobs(running)} go{'es' * (running == 1)} on to the end"
        if running and code == EXIT_INTERRUPTED:
            text += " (once more: what runs is stopped and queued again)"
        if job_table.counts(self.store)[JobState.QUEUED]:
            text += "; the same command goes on with what is queued"
        self.reporter.tell("queue", text)

    def _stop_everything(self, why: str, code: int, now: float) -> None:
        if self.stop_all_since is not None:
            return
        self.draining = self.draining or f"stopping ({why})"
        self.stop_all_since, self.exit_code = now, code
        again: list[int] = []
        try:
            again = attempt_table.blame_shutdown(self.store, now - SHUTDOWN_WINDOW_S)
        except DiskFull as error:
            self._note_trouble(error, now)
        running = self.attempts.unfinished()
        parts = ["leaving; nothing runs"]
        if running:
            parts = [f"stopping {_jobs(running)}: TERM, and KILL after {self.style.grace_s:g} s"]
            parts.append("what is stopped is queued again")
        if again:
            parts.append(f"what failed just now is queued again: {', '.join(map(str, again))}")
        self.reporter.tell("queue", f"{why}: {'; '.join(parts)}")

    def _hear_requests(self, now: float) -> None:
        heard = []
        for request, kind, _ in request_table.open_requests(self.store):
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
            live.cancel_requested = job_table.get(self.store, live.job.id).cancel_requested_at is not None
        try:
            with self.store.transaction():
                for request in heard:
                    request_table.acknowledge(self.store, request, now)
        except DiskFull as error:
            self._note_trouble(error, now)
            self._data_version = -1  # heard again

    def _take_options(self) -> None:
        """Another `gpusched run` of this queue gave newer options."""
        text = meta_table.read(self.store, "settings")
        if text is None:
            return
        self._take_dirs()
        before = self.settings
        try:
            self._apply(Settings.from_json(text))
            self.actor.style, self.actor.visible_devices = self.style, self.settings.visible_devices
            changes = changed(before, self.settings)
            if changes:
                self.reporter.tell("queue", f"a newer start gave other options: {', '.join(changes)}")
        except GpuschedError as error:
            self.reporter.tell("warning", f"newer options are not taken: {error}")

    def _take_dirs(self) -> None:
        """Where the jobs of the newest submission run: what it has copied is not copied again."""
        told = meta_table.read(self.store, "dirs")
        if told is not None:
            self.rules = replace(self.rules, dirs=JobDirs.from_json(told))

    def _read_feed(self, now: float) -> None:
        if self._trouble:
            return  # what comes meanwhile waits in the feed
        try:
            if self.intake.take(self.rules, self.devices.devices(), now, self.reporter.tell):
                self._head.forget()
        except (DiskFull, OSError) as error:
            self._note_trouble(error, now)

    def _note_trouble(self, error: Exception | str, now: float, *, full: bool = False) -> None:
        """The box cannot do what it is asked: nothing new starts for a while, running jobs go on. Said once."""
        full = full or isinstance(error, DiskFull)
        full = full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
        where = self.queue.full_disk() or self.queue.state
        self._trouble = f"the disk is full ({where})" if full else "no job can be started"
        self._trouble_until = now + TROUBLE_AGAIN_S
        self._trouble_since = now
        if self._trouble != self._trouble_told:
            self._trouble_told = self._trouble
            again = f"nothing new starts, running jobs go on; tried again every {TROUBLE_AGAIN_S:g} s"
            self.reporter.tell("error", f"{self._trouble}: {again} ({error})")

    # ---- telling ----

    def _board(self, now: float) -> Board:
        return self.reporter.board(now, self.meter.residents(), self.limits, self._closed(), self._waited_since)

    def _closed(self) -> str:
        """Why nothing new starts."""
        return "; ".join(why for why in (self.draining, self._trouble) if why)

    def _publish(self, now: float) -> None:
        try:
            self.reporter.publish(self._board(now))
        except OSError as error:
            self._note_trouble(error, now)

    def _show(self, plan: Plan, now: float) -> None:
        if log.isEnabledFor(logging.DEBUG):
            for action in plan.actions:
                log.debug("%s", action)
        for job in plan.passed:
            self._waited_since.setdefault(job, now)
        reason = next(iter(plan.reasons.values()), None)
        self._reason = reason.text if reason else ""
        if reason is None or reason.kind in ("closed", "nvml", "look") or self.attempts.live:  # or it was told
            self._tell_wait_at = now + WAIT_IS_LONG_S
        elif now >= self._tell_wait_at:
            self._tell_wait_at = now + WAITS_AGAIN_S
            self.reporter.tell("waiting", f"the next job {reason.sentence}")
        if now >= self._next_metrics:
            self._next_metrics = now + METRICS_EVERY_S
            self._write_metrics(now, every_job=False)
        refresh = self.observer.refresh_s
        if refresh is not None and now >= self._next_frame:
            self._next_frame = now + refresh
            running = self.attempts.live.values()
            self.observer.frame(self.reporter.frame(self._board(now), running, self._reason, self._closed()))

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
            None if self.draining else self._head.retry_at,
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
        if self.attempts.live:  # those that have ended and cannot be booked are left to the next start
            return bool(self.draining) and self._unbooked and not self.attempts.unfinished()
        if self.draining:
            return True
        if self.follow or self.intake.waits() or not self.feed.ended() or self._head.rows:
            return False
        return not startable_jobs.has_any(self.store)

    def _end(self) -> int:
        if self.attempts.live and not self.quit:
            ids = ", ".join(str(live.job.id) for live in self.attempts.live.values())
            kept = "it is kept beside each of them, and the next start notes it"
            self.reporter.tell("error", f"{self._trouble}: how these jobs ended cannot be noted now: {ids}; {kept}")
        if self.exit_code is not None:
            return self.exit_code
        counts = job_table.counts(self.store)
        left = counts[JobState.QUEUED] + counts[JobState.HELD]  # held, or waiting for one that is
        bad = counts[JobState.FAILED] - job_table.count_failed_unlisted(self.store)
        bad += counts[JobState.CANCELLED] - job_table.count_removed(self.store) + left
        return EXIT_SOME_FAILED if bad or self.intake.refused_lines else EXIT_OK

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


def _jobs(running: int) -> str:
    return "1 running job" if running == 1 else f"{running} running jobs"
