"""Trouble that passes: a full disk, a busy database, no process or shepherd to be had. Nothing new starts meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpusched.common.errors import disk_full, is_disk_full
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.timers import Moment
from gpusched.host.attempts.launcher import Launcher
from gpusched.host.attempts.starter import AGAIN_FIRST_S, AGAIN_MAX_S
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Busy, TransientError

TROUBLE_AGAIN_S = 5.0


class Trouble:
    """The trouble of the box as one dispatcher sees it; reported once an outage."""

    def __init__(self, queue: QueueDir, reporter: Reporter) -> None:
        self.reason = ""  # why nothing starts now
        self.no_shepherd = ""  # why no job can be handed over now
        self.keeps_from_booking = False  # the newest plan could not be written down
        self._queue, self._reporter = queue, reporter
        self._reported = ""  # the reason, from the report until jobs start again
        self._shepherds_fail = False  # as reported
        self._since_s = self._until_s = 0.0  # of the newest failure

    @contextmanager
    def noted(self, now: Moment) -> Iterator[None]:
        """Note the trouble that ends the block, and go on."""
        try:
            yield
        except (TransientError, OSError) as error:
            self.note(error, now)

    def note(self, error: Exception | str, now: Moment) -> None:
        """Let nothing start until it is time to try again."""
        self.reason = "no job can be started"
        full_disk = self._queue.full_disk()
        if isinstance(error, Busy):
            self.reason = "queue.db is busy"
        elif full_disk or is_disk_full(error):
            self.reason = disk_full(full_disk or self._queue.state)
        elif isinstance(error, TransientError):
            self.reason = f"queue.db: {error.what}"
        self._since_s = now.monotonic_s
        self._until_s = now.monotonic_s + TROUBLE_AGAIN_S
        if self.reason != self._reported:
            self._reported = self.reason
            again = f"nothing new starts, running jobs go on; tried again every {TROUBLE_AGAIN_S:g} s"
            self._reporter.report("error", f"{self.reason}: {again} ({error})")

    def watch_shepherds(self, launcher: Launcher) -> None:
        """Report once an outage that no shepherd can be started, and that they can again."""
        error = launcher.starter.error
        self.no_shepherd = error if launcher.is_broken else ""
        if bool(error) == self._shepherds_fail:
            return
        self._shepherds_fail = bool(error)
        if error:
            again = f"jobs stay queued, running ones go on; tried again every {AGAIN_FIRST_S:g} to {AGAIN_MAX_S:g} s"
            self._reporter.report("error", f"{error}: {again}")
        else:
            self._reporter.report("queue", "shepherds can be started again")

    def review(self, attempts: Iterable[OpenAttempt], ended: Iterable[OpenAttempt], now: Moment) -> None:
        """Go by what became of attempts: one that runs and was opened since shows that the trouble is over."""
        if self._reported and any(a.life.fields.get("pid") and a.opened_s >= self._since_s for a in attempts):
            self._reported = ""
            self._reporter.report("queue", "jobs can start again")
        for attempt in ended:
            outcome = attempt.outcome
            if outcome is not None and outcome.cause in ("disk_full", "cannot_start"):
                self.note(outcome.note, now)

    def reasons(self) -> tuple[str, str]:
        """Return why nothing starts now; empty texts where jobs may start."""
        return self.reason, self.no_shepherd

    def expire(self, now: Moment) -> None:
        """Let jobs start again, once it is time to try."""
        if self.reason and now.monotonic_s >= self._until_s:
            self.reason = ""

    def deadline_s(self) -> float | None:
        """Return when it is tried again; None without trouble."""
        return self._until_s if self.reason else None
