"""The open attempts of one dispatcher: launched or adopted, looked at, stopped. Decides nothing about their jobs."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace

from gpusched.common import processes
from gpusched.common.files import write_atomically
from gpusched.common.text import log_stem
from gpusched.core.model import AttemptFact, AttemptRow, JobRow
from gpusched.core.plan.snapshot import ENDED_FACTS
from gpusched.dispatcher.attempts.open_attempt import OWN_ENDS, AttemptUse, OpenAttempt, outcome_of
from gpusched.dispatcher.options import QueueOptions
from gpusched.dispatcher.timers import Moment
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir, fence, reaper, strays
from gpusched.host.attempts.launcher import Launcher, Order, ShepherdNotice
from gpusched.host.attempts.reaper import LifeReading
from gpusched.host.attempts.setup import with_setup
from gpusched.host.attempts.strays import Census
from gpusched.host.queue.queue_dirs import LOGS, QueueDir
from gpusched.lists.jobfile import needs_script

STRAY_GRACE_S = 10.0  # TERM to KILL for the processes that a killed shepherd left
STRAYS_AGAIN_S = 0.2
DEVICE_CHECK_S = 1.0  # a failure waits so long for a reading of its devices, which may have been lost


def log_paths(job: JobRow, number: int, split: bool) -> tuple[str, str]:
    """Return the log of an attempt, and that of its stderr if the streams are split; relative to the queue."""
    stem = f"{LOGS}/{job.id:04d}.{number}-{log_stem(job.name.replace('/', '-').encode() or job.command)}"
    return (f"{stem}.out.log", f"{stem}.err.log") if split else (f"{stem}.log", "")


class AttemptBook:
    """`due` holds the directories of the attempts to look at, each with the error that its shepherd has sent."""

    def __init__(self, queue: QueueDir, queue_id: str, selector: selectors.BaseSelector) -> None:
        self.due: dict[str, str] = {}
        self._queue, self._queue_id, self._selector = queue, queue_id, selector
        self._open: dict[str, OpenAttempt] = {}  # by directory
        self._booked: list[str] = []  # directories of attempts whose files are no longer needed
        self._census = Census()
        self.launcher = Launcher(selector, self._hear, f"{queue.state}/shepherd.err")

    def __iter__(self) -> Iterator[OpenAttempt]:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def _hear(self, notice: ShepherdNotice) -> None:
        attempt = self._open.get(notice.directory)
        if attempt is not None:
            attempt.claims += notice.claims
            attempt.record, attempt.crash = notice.record or attempt.record, notice.crash
        else:
            for fd in notice.claims:  # they come after its end: kept, they would bar the devices for ever
                os.close(fd)
        if notice.claims:
            self.due.setdefault(notice.directory, "")
        else:
            self.due[notice.directory] = notice.error

    # ---- beginning ----

    def adopt(self, rows: Iterable[tuple[JobRow, AttemptRow]], now: Moment) -> list[OpenAttempt]:
        """Take over the attempts that an earlier dispatcher left open; remove the files of all others."""
        adopted = []
        for job, row in rows:
            attempt = self.new(job, row, now)
            attempt.is_adopted = True
            attempt.is_cancelled = job.cancel_requested_at is not None
            attempt.use.usage = row.usage
            attempt.life = LifeReading(AttemptFact.ALIVE, self._read_life(attempt).fields)
            attempt.seen = strays.load(attempt.directory, attempt.life.fields)
            attempt.shepherd_fd = reaper.shepherd_handle(attempt.life.fields)
            if attempt.shepherd_fd is not None:
                self._selector.register(
                    attempt.shepherd_fd, selectors.EVENT_READ, lambda a=attempt: self._note_shepherd_end(a)
                )
            self._open[attempt.directory] = attempt
            self.due[attempt.directory] = ""
            self.launcher.adopt(attempt.directory, attempt.life.fields)
            adopted.append(attempt)
        reaper.remove_old_files(self._queue.state, self._open)
        return adopted

    def _note_shepherd_end(self, attempt: OpenAttempt) -> None:
        self._close_shepherd_fd(attempt)
        self.due[attempt.directory] = ""

    def _close_shepherd_fd(self, attempt: OpenAttempt) -> None:
        if attempt.shepherd_fd is not None:
            self._selector.unregister(attempt.shepherd_fd)
            os.close(attempt.shepherd_fd)
            attempt.shepherd_fd = None

    def _close_descriptors(self, attempt: OpenAttempt) -> None:
        self._close_shepherd_fd(attempt)
        while attempt.claims:
            os.close(attempt.claims.pop())

    def new(self, job: JobRow, row: AttemptRow, now: Moment) -> OpenAttempt:
        """Return the attempt that this row describes, opened now; nobody knows how long it has been idle."""
        return OpenAttempt(
            job=job,
            row=row,
            devices=tuple([device.uuid for device in row.devices]),
            directory=attempt_dir.directory(self._queue.state, job.id, row.number),
            marker=attempt_dir.marker(self._queue.path, job.id, row.number),
            opened_s=now.monotonic_s,
            use=AttemptUse(seen_s=now.monotonic_s),
        )

    def prepare(self, job_id: int, number: int) -> int | None:
        """Make the attempt's files and take its life lock; return the descriptor, or None if it is locked."""
        life = attempt_dir.make(attempt_dir.directory(self._queue.state, job_id, number))
        with ExitStack() as undo:
            undo.callback(os.close, life)
            if not locks.try_lock(life):
                return None
            os.ftruncate(life, 0)  # a record in it is of an earlier queue
            undo.pop_all()
        return life

    def launch(
        self,
        attempt: OpenAttempt,
        life: int,
        claims: list[int],
        environment: dict[bytes, bytes],
        options: QueueOptions,
        inherited: dict[bytes, bytes] | None = None,
    ) -> None:
        """Hand a booked attempt to a shepherd and let go of the life lock here.

        Raises OSError when that cannot be; the attempt is then seen as not started.
        """
        directory = attempt.directory
        self._open[directory] = attempt
        try:
            order = _order(attempt, self._queue, self._queue_id, environment, options)
            self.launcher.launch(replace(order, inherited=inherited), life, claims)
        except OSError as error:
            self.due[directory] = error.strerror or str(error)
            raise
        finally:
            os.close(life)

    def add_claims(self, uuid: str, claims: list[int]) -> None:
        """Hand these claims of a device to the shepherds of the attempts on it, which keep them beside their own."""
        for attempt in self:
            if uuid in attempt.devices:
                self.launcher.add_claims(attempt.directory, claims)

    # ---- looking ----

    def look(self, now: Moment, *, everywhere: bool, grace_s: float, stopping_at: float | None) -> list[OpenAttempt]:
        """Look at the attempts that are due, or at all; return those that have just ended."""
        ended: list[OpenAttempt] = []
        for directory in list(self._open) if everywhere else list(self.due):
            error = self.due.pop(directory, "")
            attempt = self._open.get(directory)
            if attempt is None or attempt.has_ended:
                continue
            if not attempt_dir.exists(directory):
                if self.launcher.has(directory):
                    continue  # its shepherd will say when it has ended
                attempt.seen.pop(int(attempt.life.fields.get("pid", 0)), None)  # that may have another attempt by now
            attempt.life = self._read_life(attempt)
            self._see_to_the_end(attempt, now, grace_s)
            if attempt.life.fact not in ENDED_FACTS:
                continue
            self._close_shepherd_fd(attempt)
            attempt.read_progress()
            outcome = attempt.outcome = outcome_of(attempt, error, self._queue.path, stopping_at)
            if attempt.devices and outcome.kind in OWN_ENDS and not outcome.ok and not outcome.cause:
                attempt.outcome_due_s = now.monotonic_s + DEVICE_CHECK_S
            ended.append(attempt)
        if everywhere:
            self._census.note((each.directory, each.life.fields, each.seen) for each in self if not each.has_ended)
        return ended

    def _read_life(self, attempt: OpenAttempt) -> LifeReading:
        if attempt.record:  # its shepherd has told it, since no disk takes it
            return LifeReading(AttemptFact.EXITED, attempt.record)
        return reaper.look(attempt.directory, self._queue_id, attempt.marker, attempt.seen)

    def deadline_s(self, now_s: float) -> float | None:
        """Return when an attempt has to be looked at, at the latest."""
        moments = [attempt.outcome_due_s for attempt in self if attempt.outcome_due_s is not None]
        if any(attempt.is_lingering for attempt in self):
            moments.append(now_s + STRAYS_AGAIN_S)
        return min(moments, default=None)

    def _see_to_the_end(self, attempt: OpenAttempt, now: Moment, grace_s: float) -> None:
        """Continue a shepherd that its job has stopped; where the shepherd was killed, end what is left of the job."""
        if attempt.stop_sent or attempt.is_lingering:
            attempt.ending_s = min(attempt.ending_s, now.monotonic_s)
        waited_s = now.monotonic_s - attempt.ending_s
        if attempt.life.fact is AttemptFact.ALIVE:
            reaper.continue_shepherd(attempt.life.fields, freeze=waited_s >= grace_s)
        elif attempt.is_lingering:
            for pid in attempt.life.strays:
                processes.send_signal(pid, signal.SIGKILL if waited_s >= STRAY_GRACE_S else signal.SIGTERM)
            self.due.setdefault(attempt.directory, "")

    # ---- ending ----

    def stop(self, attempt: OpenAttempt) -> None:
        """Have the attempt ended: TERM, grace, KILL. The wish is stored before this is called."""
        attempt.stop_sent = self.launcher.stop(attempt.directory) or reaper.terminate(attempt.life.fields)
        if not attempt.stop_sent:
            self.due.setdefault(attempt.directory, "")

    def shepherd_pids(self) -> dict[int, OpenAttempt]:
        """Return the pid of the shepherd of each attempt, as far as it is known."""
        pids = {}
        for attempt in self:
            pid = attempt.life.fields.get("pid") or self.launcher.pid(attempt.directory)
            if pid:
                pids[int(pid)] = attempt
        return pids

    def unfinished(self) -> int:
        """Return how many have not ended."""
        return sum(not attempt.has_ended for attempt in self)

    def find(self, job_id: int, number: int) -> OpenAttempt:
        return self._open[attempt_dir.directory(self._queue.state, job_id, number)]

    def forget(self, attempt: OpenAttempt) -> None:
        """Drop an attempt that is closed in the store."""
        if attempt.record:
            self.launcher.acknowledge(attempt.directory)
        self._booked.append(attempt.directory)
        self._close_descriptors(attempt)
        self._open.pop(attempt.directory, None)

    def remove_booked_files(self) -> None:
        """Remove the files of the attempts that were dropped, when nothing waits for that."""
        while self._booked:
            reaper.remove_files(self._booked.pop())

    def occupied(self) -> set[str]:
        """Return the devices that attempts are on."""
        return {uuid for attempt in self if not attempt.has_ended for uuid in attempt.devices}

    def close(self) -> None:
        """Leave; running attempts go on with their shepherds."""
        for attempt in self:
            self._close_descriptors(attempt)
        self.remove_booked_files()
        self.launcher.close()


def _order(
    attempt: OpenAttempt, queue: QueueDir, queue_id: str, environment: dict[bytes, bytes], options: QueueOptions
) -> Order:
    job, row, directory, settings = attempt.job, attempt.row, attempt.directory, options.settings
    return Order(
        directory=directory,
        argv=_argv(options, job.command, directory),
        cwd=job.cwd,
        environment={
            **environment,
            **dict(job.env),
            **dict([word.split(b"=", 1) for word in attempt.marker]),
            b"GPUSCHED_ATTEMPT_DIR": os.fsencode(directory),
            b"GPUSCHED_PROGRESS": os.fsencode(f"{directory}/{attempt_dir.PROGRESS}"),
        },
        log=f"{queue.path}/{row.log}",
        error_log=row.error_log and f"{queue.path}/{row.error_log}",
        time_limit_s=job.time_limit_s,
        grace_s=settings.grace,
        leftovers=settings.leftovers,
        queue_id=queue_id,
        marker=attempt.marker,
        fence=fence.path_of(queue.state, job.id) if job.origin == "lease" else "",
    )


def _argv(options: QueueOptions, command: bytes, directory: str) -> tuple[bytes, ...]:
    if options.settings.setup:
        command = with_setup(command, options.settings.setup, options.shell[0], directory)
    if not needs_script(command):
        return (*options.shell, command)
    # one argument cannot be this long: the same text runs from a file
    script = attempt_dir.beside(directory, attempt_dir.SCRIPT)
    write_atomically(script, command + b"\n")
    return (*options.shell[:-1], os.fsencode(script))
