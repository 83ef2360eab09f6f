"""The dispatcher: observe -> plan -> act, until every job has ended. Each tick looks at the world, not at events.

So taking up the work of a dispatcher that was killed is not a mode: it is the first tick. What to do is decided by
core/plan; here it is done, in the order that docs/architecture.md gives reasons for.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.core.model import Reading
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Limits, Plan, Resident
from gpusched.dispatcher.actor import Actor
from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.jobs.list_reader import ListReader
from gpusched.dispatcher.jobs.queue_head import QueueHead
from gpusched.dispatcher.leaving import Leaving, RequestReader
from gpusched.dispatcher.options import Hooks, QueueOptions
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.ticket_book import TicketBook
from gpusched.dispatcher.timers import Moment, Sleeper
from gpusched.dispatcher.trouble import Trouble
from gpusched.dispatcher.watchdog import Watchdog
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, TransientError, meta_table
from gpusched.lists.submit import SubmitOptions

log = logging.getLogger("gpusched.dispatcher")

WORKED_OFF = (EXIT_OK, EXIT_SOME_FAILED)
NOTICES_S = 5.0  # at the end of a queue, it is waited so long, at most, that people have been told


class Dispatcher:
    """Dispatches one queue. Call run() only once, and hold the lock of the queue meanwhile, which no job inherits."""

    def __init__(
        self,
        queue: QueueDir,
        store: Store,
        source: DeviceSource,
        claims: Claims,
        submit: SubmitOptions,
        first: Reading,
        hooks: Hooks,
    ) -> None:
        """Make a dispatcher of this queue; `first` is a complete reading of `source`.

        Raises GpuschedError when the allowed set is empty or can never serve a job.
        """
        self._queue, self._clock = queue, hooks.clock
        self._devices = devices = DeviceBook(source, claims, queue.path, first)
        self.options = options = QueueOptions(store, devices, submit, is_standing=hooks.idle_exit_s is not None)
        self._sleeper, self._tickets = Sleeper(queue.wake), TicketBook(devices)
        self._attempts = attempts = AttemptBook(queue, meta_table.queue_id(store), self._sleeper.selector)
        self._head, self._lists = QueueHead(store), ListReader(hooks.feed, store)
        self._reporter = reporter = Reporter(queue, store, devices, hooks.observer, hooks.clock)
        self._watchdog = Watchdog(store, attempts, reporter)
        self._trouble = trouble = Trouble(queue, reporter)
        self.leaving = leaving = Leaving(store, attempts, reporter, trouble, hooks)
        self._requests = RequestReader(store, attempts, options, leaving, reporter=reporter, trouble=trouble)
        self._actor = Actor(
            store, devices, attempts, reporter=reporter, options=options, clock=hooks.clock, step=hooks.step
        )

    def run(self, signals: Iterable[int] = (), before: Dispatcher | None = None) -> int:
        """Dispatch until all has ended, or until it is to leave; return the exit code.

        `signals` came before it could hear them. `before` is the one that has failed in this process, if any.
        """
        gc.freeze()  # a long list, once read, is not looked through again and again
        with self._sleeper:
            try:
                self._begin(self._clock.moment(), signals, before)
                while True:
                    now = self._clock.moment()
                    self._observe(now)
                    if self.leaving.is_immediate:
                        break
                    plan = self._plan(now)
                    again = self._act(plan, now)
                    self._show(plan, now)
                    self._requests.take_wishes(now)
                    if self.leaving.is_time(now, more_to_come=bool(self._head.rows) or not self._lists.is_done()):
                        break
                    _send_notices(self._reporter, self.options, now)
                    self._sleeper.sleep(0.0 if again else self._pause_s())
                code = self.leaving.final_code(self._lists.refused_lines)
                _send_notices(self._reporter, self.options, now, NOTICES_S if code in WORKED_OFF else 0.0)
                return code
            finally:
                self._leave(self._clock.moment())

    def _begin(self, now: Moment, signals: Iterable[int], before: Dispatcher | None) -> None:
        self._sleeper.wake_for(self._devices.source.fileno())
        self._lists.feed.attach(self._sleeper.selector)
        self._reporter.begin(now)
        if before is None:
            self._requests.discard_old(self._queue.taken_at())
        else:
            self.leaving.inherit(before.leaving)
            self.options.inherit(before.options, self._reporter)
        self._requests.take_signals(signals, now)
        for text in self.options.warnings:
            self._reporter.report("warning", text)
        self._actor.adopt(now)
        log.info("dispatching %s on %s", self._queue.path, self._devices.source.describe())

    # ---- observe ----

    def _observe(self, now: Moment) -> None:
        self._trouble.expire(now)
        self._attempts.launcher.starter.tend(now.monotonic_s)
        self._trouble.watch_shepherds(self._attempts.launcher)
        self._requests.take_signals(self._sleeper.take_signals(), now)
        has_new_terms = self._take_requests(now)
        polled = self._devices.poll.is_due(now)
        if polled:
            if not self._queue.exists():
                raise self.leaving.queue_removed(self._queue)
            self._devices.poll.repeat(now, self.options.settings.poll_interval)
            self._head.forget()
            self.leaving.renew()
        if not self._trouble.reason:  # what comes meanwhile waits in the feed
            with self._trouble.noted(now):
                self._head.close_lost()
                if self._lists.take(self.options.submit, self._devices.devices(), now, self._reporter.report):
                    self._head.forget()
        frees_gpus = (polled or bool(self._attempts.due)) and self._look_at_attempts(now, everywhere=polled)
        self._read_devices(now, polled=polled, is_news=frees_gpus or has_new_terms)

    def _take_requests(self, now: Moment) -> bool:
        """Take what other commands have written; return True if it changes what may start."""
        before = self.options.settings, self._requests.paused, self.leaving.reason
        if not self._requests.take_requests(now):
            return False
        self._head.forget()
        return before != (self.options.settings, self._requests.paused, self.leaving.reason)

    def _look_at_attempts(self, now: Moment, *, everywhere: bool) -> bool:
        """Look at the attempts that are due, or at all; return True if one on a GPU has ended."""
        grace_s, stopping_at = self.options.settings.grace, self.leaving.stopping_at
        ended = self._attempts.look(now, everywhere=everywhere, grace_s=grace_s, stopping_at=stopping_at)
        self._trouble.review(self._attempts, ended, now)
        for attempt in self._attempts:
            if not attempt.has_ended:
                self._devices.share_claims(attempt.devices, attempt.claims, now)
            if attempt.is_lingering:
                attempt.claims += self._devices.secure(attempt.devices, attempt.claims, now)
        occupied = self._attempts.occupied()
        for attempt in ended:
            self._devices.settle(attempt.devices, now, occupied)
        self._watchdog.check_ends(ended)
        return any(attempt.devices for attempt in ended)

    def _read_devices(self, now: Moment, *, polled: bool, is_news: bool) -> None:
        if polled:
            with self._trouble.noted(now):
                for uuid, claims in self._devices.verify_claims(now).items():
                    self._attempts.add_claims(uuid, claims)
                    self._reporter.report("device", f"the lock file of the claim of {uuid} was gone: locked anew")
        if polled or is_news or self._tickets.is_claiming:
            self._tickets.look(now, self.options.settings, polled=polled)
        self._devices.ask(now, poll=polled)
        readings = self._devices.take_in(now, self._watchdog.meter.own_use)
        complete = [reading for reading in readings if reading.complete]
        for reading in complete:
            self._watchdog.check_reading(reading, self._devices, self.options.settings, now)
        self._watchdog.review_devices(self._devices, now)
        if complete or is_news or (polled and self._devices.error):
            with self._trouble.noted(now):
                self._reporter.files.publish(self._board(now), now)
        self._reporter.report_devices()
        self._watchdog.check_for_lost_devices(now, self._devices)

    def _board(self, now: Moment) -> Board:
        """Return the allowed devices and our jobs on them, as the plan and other commands see them."""
        limits, meter = self.options.submit.limits, self._watchdog.meter
        closed = "; ".join(filter(None, (self.leaving.reason, self._requests.paused, *self._trouble.reasons())))
        board = board_of(self._devices, meter.residents(limits), now.at, limits)
        return replace(
            board,
            closed=closed,
            sharing=self._tickets.sharing,
            learned=meter.siblings.learned,
            waited_since=self._head.waited_since(now),
        )

    # ---- plan ----

    def _plan(self, now: Moment) -> Plan:
        attempts = [attempt.planned() for attempt in self._attempts]
        board, stopping, hand_back = self._board(now), self.leaving.is_stopping, self._requests.take_hand_back()
        snapshot = observe.snapshot(board, now.at, attempts=attempts, stop_all=stopping, hand_back=hand_back)
        plan = make_plan(snapshot) if self.leaving.reason else self._head.plan(snapshot)
        self._head.note_passed(plan.passed, now)
        self._tickets.note(plan, now)
        return plan

    # ---- act ----

    def _act(self, plan: Plan, now: Moment) -> bool:
        """Do what the plan says; return True if it is worth to plan again at once.

        It is after a failure, since nothing was started then, and for a job whose claim was refused.
        """
        try:
            effects = self._actor.act(plan, self._head.rows, now)
        except (TransientError, OSError) as error:
            self._trouble.note(error, now)
            self._trouble.keeps_from_booking = True
            self._head.forget()
            return False
        self._trouble.keeps_from_booking = False
        self._head.take_out(effects.gone)
        failed_before = self._watchdog.failed
        held = self._watchdog.count_failures(plan, now, self.options.quick_fails_max)
        self.leaving.drain_after(self._watchdog.failed, self.options.settings.max_fails)
        if held or effects.has_new_jobs or effects.has_freed_jobs:
            self._head.forget()
        return effects.has_freed_jobs or effects.has_refusals or self._watchdog.failed > failed_before

    # ---- show, pause, leave ----

    def _show(self, plan: Plan, now: Moment) -> None:
        self._reporter.report_wait(plan, now, list(self._attempts))
        with self._trouble.noted(now):
            self._reporter.update_files(self._attempts, now, self.options.settings.metrics_textfile)
        self._reporter.update_frame(lambda: self._board(now), self._attempts, now, can_go_on=self.leaving.can_go_on)

    def _pause_s(self) -> float:
        """Return how long nothing needs to be done."""
        now = self._clock.moment()
        deadlines_s = (
            self._devices.poll.due_s,
            self._reporter.deadline_s(),
            self._devices.deadline_s(),
            self._attempts.deadline_s(now.monotonic_s),
            self._attempts.launcher.starter.deadline_s(),
            None if self._trouble.reason else self._lists.feed.deadline(),
            None if self.leaving.reason else self._head.deadline_s(now),
            self._trouble.deadline_s(),
            self.leaving.deadline_s(),
        )
        return max(0.0, min(due_s for due_s in deadlines_s if due_s is not None) - now.monotonic_s)

    def _leave(self, now: Moment) -> None:
        with ExitStack() as steps:  # all are done, the last one first, whatever one of them raises
            steps.callback(self._reporter.files.leave, now)
            steps.callback(self._lists.feed.detach)
            steps.callback(self._attempts.close)
            steps.callback(self._devices.release_all)
            steps.callback(self._tickets.close)
            steps.callback(self._actor.step, "leaving")
            if self._queue.exists():
                with self._trouble.noted(now):
                    every_job = not self.leaving.is_immediate
                    self._reporter.files.write(now, self._attempts, every_job=every_job)


def board_of(devices: DeviceBook, residents: Mapping[str, tuple[Resident, ...]], at: float, limits: Limits) -> Board:
    """Return what these devices are now."""
    return Board(
        at=at,
        pid=os.getpid(),
        source=devices.source.describe(),
        limits=limits,
        max_checks=devices.criteria.max_checks,
        threshold_bytes=devices.criteria.threshold_bytes,
        devices=tuple(BoardDevice(e.device, e.view(residents.get(u, ()))) for u, e in devices.entries.items()),
        gpus_closed=devices.error,
    )


def _send_notices(reporter: Reporter, options: QueueOptions, now: Moment, wait_s: float = 0.0) -> None:
    """Start what tells people of events, wait so long for it, and report what has failed at that."""
    failures = reporter.notices.send(options.settings, options.shell, now.monotonic_s)
    for failure in failures + reporter.notices.reap(wait_s):
        reporter.report("warning", failure)
