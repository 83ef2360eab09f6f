"""The end of a dispatcher: its reason and exit code, and the signals and requests that bring it about."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterable

from gpusched.common import errors
from gpusched.common.text import count
from gpusched.core.model import SET_REQUEST, JobState
from gpusched.core.plan.board import Wish, paused_text
from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.dispatcher.attempts.open_attempt import SHUTDOWN_WINDOW_S
from gpusched.dispatcher.options import Hooks, QueueOptions
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.timers import Moment
from gpusched.dispatcher.trouble import Trouble
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, request_table, startable_jobs

log = logging.getLogger("gpusched.dispatcher")


class Leaving:
    """A dispatcher leaves when all has ended, after what runs (drain), with it (stop_everything), or at once."""

    def __init__(self, store: Store, attempts: AttemptBook, reporter: Reporter, trouble: Trouble, hooks: Hooks) -> None:
        """With `hooks.follow` it stays when all has ended, for `hooks.idle_exit_s` at most."""
        self._hooks = hooks
        self._idle_since_s: float | None = None  # in monotonic seconds
        self._has_worked = not hooks.follow  # since the last end that people were told of
        self.reason = ""  # why nothing new starts any more; empty while jobs may start
        self.asked_at: float | None = None  # since when it leaves by a wish that a later submission overrules
        self.is_immediate = False
        self.hands_over = False  # to a process that goes on from here
        self.stopping_at: float | None = None  # since when everything is stopped, in wall time
        self._exit_code: int | None = None  # where it is not for the jobs to say
        self._store, self._attempts, self._reporter, self._trouble = store, attempts, reporter, trouble

    @property
    def is_stopping(self) -> bool:
        """True if what runs is stopped."""
        return self.stopping_at is not None

    @property
    def has_later_jobs(self) -> bool:
        """True if it leaves by a wish, and jobs were submitted after that, which another dispatcher is to run."""
        return self.asked_at is not None and startable_jobs.has_any_submitted_since(self._store, self.asked_at)

    def inherit(self, before: Leaving) -> None:
        """Go on with what was asked of a dispatcher of this process that has failed."""
        self.reason, self._exit_code, self.asked_at = before.reason, before._exit_code, before.asked_at
        self.is_immediate, self.stopping_at = before.is_immediate, before.stopping_at

    def leave_at_once(self) -> None:
        """Leave what runs to the next start."""
        self.is_immediate, self._exit_code = True, errors.EXIT_QUIT
        self._reporter.report("queue", "leaving at once; running jobs go on, the next start takes them over")

    def hand_over(self, why: str) -> None:
        """Leave what runs, and the lock of the queue, to a process that goes on from here."""
        self.is_immediate, self.hands_over, self._exit_code = True, True, errors.EXIT_QUIT
        self._reporter.report("queue", why)

    def renew(self) -> None:
        """Hand over if there is a reason for another process to go on, unless a launch is half done."""
        has_half_done = any(not attempt.life.fields.get("pid") for attempt in self._attempts)
        if not self.reason and not has_half_done and (why := self._hooks.renew()):
            self.hand_over(why)

    def drain(self, why: str, code: int) -> None:
        """Start nothing more, and leave when what runs has ended."""
        if self.reason:
            return
        self.reason, self._exit_code, self.asked_at = f"stopping ({why})", code, self._hooks.clock.now()
        running = self._attempts.unfinished()
        text = f"{why}: nothing new starts"
        if running:
            text += f"; {count(running, 'running job')} go{'es' * (running == 1)} on to the end"
        if running and meta_table.maker(self._store) == "pool":
            text += ", those of a pool: to its last item, unless `gpusched stop --now` ends them"
        if running and code == errors.EXIT_INTERRUPTED:
            again = "gpusched stop --now" if why == "gpusched stop" else "once more"
            text += f" ({again}: what runs is stopped and queued again)"
        if job_table.counts(self._store)[JobState.QUEUED]:
            text += "; the same command goes on with what is queued"
        self._reporter.report("queue", text)

    @property
    def can_go_on(self) -> bool:
        """True if a person has asked to leave, and what runs is not being stopped yet."""
        return bool(self.reason) and self._exit_code == errors.EXIT_INTERRUPTED and not self.is_stopping

    def go_on(self) -> None:
        """Take a wish to leave back, if that is possible."""
        if self.can_go_on:
            self.reason, self._exit_code, self.asked_at = "", None, None
            self._reporter.report("queue", "going on: jobs start again")

    def stop_everything(self, why: str, code: int, now: Moment, grace_s: float) -> None:
        """Have what runs stopped and queued again, and leave then."""
        if self.is_stopping:
            return
        self.reason = self.reason or f"stopping ({why})"
        self.stopping_at, self._exit_code = now.at, code
        again: list[int] = []
        with self._trouble.noted(now):
            again = attempt_table.blame_shutdown(self._store, now.at - SHUTDOWN_WINDOW_S)
        running = self._attempts.unfinished()
        text = "leaving; nothing runs"
        if running:
            text = f"stopping {count(running, 'running job')}: TERM, and KILL after {grace_s:g} s; "
            text += "what is stopped is queued again"
        if again:
            text += f"; what failed just now is queued again: {', '.join(map(str, again))}"
        self._reporter.report("queue", f"{why}: {text}")

    def is_time(self, now: Moment, *, more_to_come: bool) -> bool:
        """Return True if nothing is left to do. `more_to_come`: jobs wait, or can be on their way."""
        if len(self._attempts) or more_to_come or startable_jobs.has_any(self._store):
            self._idle_since_s = None
            self._has_worked |= len(self._attempts) > 0
        elif self._idle_since_s is None:
            self._idle_since_s = now.monotonic_s
            if self._has_worked and not self.reason:
                self._tell_end("all jobs have ended")
            self._has_worked = False
        if len(self._attempts):  # those that have ended and cannot be booked are left to the next start
            return bool(self.reason) and self._trouble.keeps_from_booking and not self._attempts.unfinished()
        if self.reason:
            return True
        if self._idle_since_s is None:
            return False
        due_s = self.deadline_s()
        return not self._hooks.follow or (due_s is not None and now.monotonic_s >= due_s)

    def deadline_s(self) -> float | None:
        """Return when it leaves because nothing has come, in monotonic seconds."""
        if self._idle_since_s is None or self._hooks.idle_exit_s is None:
            return None
        return self._idle_since_s + self._hooks.idle_exit_s

    def drain_after(self, failed: int, limit: int | None) -> None:
        """Start nothing more once so many jobs have failed."""
        if limit is not None and failed >= limit:
            self.drain(f"{count(failed, 'job')} failed (--max-fails {limit})", errors.EXIT_SOME_FAILED)

    def queue_removed(self, queue: QueueDir) -> errors.GpuschedError:
        """Return the error with which to leave when the files of the queue are gone."""
        return errors.GpuschedError(
            "this queue's files were removed while it was dispatched: leaving",
            where=queue.state,
            hint="jobs that run go on and keep their GPUs to their end; nobody records how they end",
            exit_code=errors.EXIT_CANNOT_WORK,
        )

    def _tell_end(self, text: str) -> None:
        counts = job_table.current_counts(self._store)
        states = ", ".join(f"{counts[state]} {state.value}" for state in JobState if counts[state])
        self._reporter.notices.add("finished", f"{text}: {states}")

    def final_code(self, refused_lines: int) -> int:
        """Return the exit code; report the ends of jobs that cannot be noted."""
        if len(self._attempts) and not self.is_immediate:
            ids = ", ".join(str(attempt.job.id) for attempt in self._attempts)
            kept = "it is kept beside each of them, and the next start notes it"
            text = f"{self._trouble.reason}: how these jobs ended cannot be noted now: {ids}; {kept}"
            self._reporter.report("error", text)
        if self._exit_code == errors.EXIT_SOME_FAILED:  # nothing new starts after some failures
            self._tell_end(self.reason)
        if self._exit_code is not None:
            return self._exit_code
        counts = job_table.current_counts(self._store)  # what is left is held, or waits for one that is
        people = 0 if len(self._attempts) else counts[JobState.RUNNING]  # interactive ones
        is_good = not refused_lines and counts[JobState.SUCCEEDED] == sum(counts.values()) - people
        return errors.EXIT_OK if is_good else errors.EXIT_SOME_FAILED


class RequestReader:
    """Signals, and the requests that other commands have stored; each is passed to the part that it concerns."""

    def __init__(
        self,
        store: Store,
        attempts: AttemptBook,
        options: QueueOptions,
        leaving: Leaving,
        *,
        reporter: Reporter,
        trouble: Trouble,
    ) -> None:
        self._store, self._attempts, self._options, self._leaving = store, attempts, options, leaving
        self._reporter, self._trouble = reporter, trouble
        self._data_version = -1
        self._hands_back = False
        self.paused = ""  # that a person wants nothing to start; empty if that is not so

    def take_hand_back(self) -> bool:
        """Return True if, since the last call, somebody has asked to hand surplus GPUs back."""
        hands_back, self._hands_back = self._hands_back, False
        return hands_back

    def _note_pause(self) -> None:
        paused = paused_text(self._reporter.queue_name) if meta_table.is_paused(self._store) else ""
        if paused != self.paused:
            self.paused = paused
            self._reporter.report("queue", f"{paused}; what runs goes on" if paused else "the queue goes on")

    def discard_old(self, taken_at: float) -> None:
        """Acknowledge what was meant for a dispatcher that has left before the lock of the queue was taken."""
        for request, kind, asked_at in request_table.open_requests(self._store):
            if kind in ("stop", "stop_now") and asked_at < taken_at:
                request_table.acknowledge(self._store, request, taken_at)

    def take_signals(self, numbers: Iterable[int], now: Moment) -> None:
        for number in numbers:
            if number == signal.SIGHUP:
                self._reporter.observer.detach()
                log.info("the terminal is gone; going on without it")
            elif number == signal.SIGQUIT:
                self._leaving.leave_at_once()
            elif number == signal.SIGINT and not self._leaving.reason:
                self._leaving.drain("Ctrl-C", errors.EXIT_INTERRUPTED)
            elif number == signal.SIGINT:
                self._stop("Ctrl-C", errors.EXIT_INTERRUPTED, now)
            else:
                self._stop("TERM", errors.EXIT_TERMINATED, now)

    def take_wishes(self, now: Moment) -> None:
        """Do what a person at the terminal has chosen."""
        for wish in self._reporter.observer.take_wishes():
            if wish is Wish.GO_ON:
                self._leaving.go_on()
                self._data_version = -1  # a list that was submitted meanwhile is taken now
            elif wish is Wish.DETACH:
                self._leaving.hand_over("going on in the background")
            elif wish is Wish.STOP:
                self._stop("q", errors.EXIT_INTERRUPTED, now)
            else:
                self._leaving.drain("q", errors.EXIT_INTERRUPTED)

    def _stop(self, why: str, code: int, now: Moment) -> None:
        self._leaving.stop_everything(why, code, now, self._options.settings.grace)

    def take_requests(self, now: Moment) -> bool:
        """Take what other commands have written to the database. Return True if they have changed it."""
        version = self._store.data_version()
        if version == self._data_version:
            return False
        self._data_version = version
        self._note_pause()
        taken = [request for request, kind, _ in request_table.open_requests(self._store) if self._take(kind, now)]
        for attempt in self._attempts:
            attempt.is_cancelled = job_table.get(self._store, attempt.job.id).cancel_requested_at is not None
        if taken:
            self._data_version = -1  # until they are acknowledged
            with self._trouble.noted(now):
                with self._store.transaction():
                    for request in taken:
                        request_table.acknowledge(self._store, request, now.at)
                self._data_version = version
        return True

    def _take(self, kind: str, now: Moment) -> bool:
        """Do what one request asks for; False leaves it to another dispatcher."""
        if kind == "submitted" and self._leaving.reason:
            return False  # whoever submitted waits for the lock and dispatches itself
        if kind == "stop":
            self._leaving.drain("gpusched stop", errors.EXIT_INTERRUPTED)
        elif kind == "stop_now":
            self._leaving.asked_at = now.at
            self._stop("gpusched stop --now", errors.EXIT_TERMINATED, now)
        elif kind == "submitted":
            self._options.take_newest(self._reporter)
        elif kind == "hand_back":
            self._hands_back = True
        elif kind.startswith(SET_REQUEST):
            self._options.change(json.loads(kind.removeprefix(SET_REQUEST)), self._reporter)
        return True
