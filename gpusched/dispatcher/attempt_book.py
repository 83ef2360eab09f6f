"""The open attempts of one dispatcher: launched or adopted, looked at, stopped. Decides nothing about their jobs."""

from __future__ import annotations

import errno
import os
import selectors
import shlex
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpusched.common.files import write_atomically
from gpusched.common.text import log_stem
from gpusched.core.jobs.lifecycle import TERMINATED
from gpusched.core.jobs.outcome import classify
from gpusched.core.model import (
    AttemptFact,
    AttemptRow,
    JobRow,
    Outcome,
    OutcomeKind,
)
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.open_attempt import OpenAttempt, marker_of, outcome_of
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir, reaper
from gpusched.host.attempts.launcher import Launcher, Order, ShepherdNotice
from gpusched.host.queue.queue_dirs import LOGS, QueueDir
from gpusched.lists.jobfile import needs_script

STRAY_GRACE_S = 10.0  # TERM to KILL for what a killed shepherd left
SHUTDOWN_WINDOW_S = 1.0  # failures this shortly before a TERM belong to it
DOUBT_S = 1.0  # a failure waits so long for a reading of its devices, which may have been lost

_DISK_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_OWN_ENDS = (OutcomeKind.EXITED, OutcomeKind.SIGNALLED)


def log_paths(job: JobRow, number: int, split: bool) -> tuple[str, str]:
    """Log file of an attempt, and of its stderr if the streams are split; relative to the queue directory."""
    stem = f"{LOGS}/{job.id:04d}.{number}-{log_stem(job.command)}"
    return (f"{stem}.out.log", f"{stem}.err.log") if split else (f"{stem}.log", "")


class AttemptBook:
    def __init__(self, queue: QueueDir, selector: selectors.BaseSelector) -> None:
        self.queue = queue
        self.live: dict[str, OpenAttempt] = {}  # by directory
        self.told: dict[str, str] = {}  # directories to look at, with an error that came along
        self._selector = selector
        self._launcher = Launcher(selector, self._hear, f"{queue.state}/shepherd.err")

    def _hear(self, told: ShepherdNotice) -> None:
        self.told[told.directory] = told.error

    # ---- beginning ----

    def adopt(self, rows: Iterable[tuple[JobRow, AttemptRow]], now: float) -> list[OpenAttempt]:
        """Take over the attempts that an earlier dispatcher left open."""
        found = []
        for job, row in rows:
            directory = attempt_dir.directory(self.queue.state, job.id, row.number)
            live = OpenAttempt(job, row, directory, marker_of(self.queue, job.id, row.number), adopted=True)
            live.cancel_requested = job.cancel_requested_at is not None
            live.usage = row.usage
            live.seen_at = now  # nobody knows how long it has been idle
            sight = reaper.look(directory, live.marker)
            live.fields = sight.fields
            live.handle = reaper.shepherd_handle(sight.fields)
            if live.handle is not None:
                self._selector.register(live.handle, selectors.EVENT_READ, lambda d=directory: self._gone(d))
            self.live[directory] = live
            self.told[directory] = ""
            found.append(live)
        return found

    def _gone(self, directory: str) -> None:
        live = self.live.get(directory)
        if live is not None:
            self._close_handle(live)
        self.told[directory] = ""

    def _close_handle(self, live: OpenAttempt) -> None:
        if live.handle is not None:
            self._selector.unregister(live.handle)
            os.close(live.handle)
            live.handle = None

    def prepare(self, job_id: int, number: int) -> int | None:
        """Make the attempt's directory and take its life lock; the descriptor."""
        life = attempt_dir.make(attempt_dir.directory(self.queue.state, job_id, number))
        if locks.try_lock(life):
            return life
        os.close(life)
        return None

    def launch(
        self,
        job: JobRow,
        row: AttemptRow,
        life: int,
        claims: list[int],
        environment: dict[bytes, bytes],
        style: LaunchStyle,
    ) -> OpenAttempt:
        """Hand a booked attempt to a shepherd and let go of the life lock here.

        Raises OSError when that cannot be; the attempt is then seen as not started.
        """
        directory = attempt_dir.directory(self.queue.state, job.id, row.number)
        marker = marker_of(self.queue, job.id, row.number)
        environment = {
            **environment,
            **dict(job.env),
            **dict(word.split(b"=", 1) for word in marker),
            b"GPUSCHED_ATTEMPT_DIR": os.fsencode(directory),
            b"GPUSCHED_PROGRESS": os.fsencode(f"{directory}/{attempt_dir.PROGRESS}"),
        }
        live = OpenAttempt(job, row, directory, marker)
        self.live[directory] = live
        try:
            order = Order(
                directory=directory,
                argv=_argv(style, job.command, directory),
                cwd=job.cwd,
                environment=environment,
                log=f"{self.queue.path}/{row.log}",
                error_log=row.error_log and f"{self.queue.path}/{row.error_log}",
                time_limit_s=job.time_limit_s,
                grace_s=style.grace_s,
                leftovers=style.leftovers,
                marker=marker,
            )
            self._launcher.launch(order, life, claims)
        except OSError as error:
            self.told[directory] = error.strerror or str(error)
            raise
        finally:
            os.close(life)
        return live

    # ---- looking ----

    def look(self, now: float, everywhere: bool, stopping_since: float | None) -> list[OpenAttempt]:
        """Look at the attempts that were told of (or at all); those that have just ended."""
        ended = []
        directories = list(self.live) if everywhere else list(self.told)
        for directory in directories:
            error = self.told.pop(directory, "")
            live = self.live.get(directory)
            if live is None or live.ended:
                continue
            if self._launcher.has(directory) and not attempt_dir.exists(directory):
                continue  # its files were removed: that it has ended, its shepherd will tell
            sight = reaper.look(directory, live.marker)
            live.fields = sight.fields
            live.fact = sight.fact
            if sight.fact is AttemptFact.ALIVE:
                continue
            if sight.fact is AttemptFact.LINGERING:
                self._end_strays(live, now)
                continue
            self._close_handle(live)
            live.read_progress()
            live.outcome = self._outcome(live, error, stopping_since)
            if live.devices and live.outcome.kind in _OWN_ENDS and not live.outcome.ok and not live.outcome.cause:
                live.doubt_until = now + DOUBT_S
            ended.append(live)
        return ended

    def settle_doubts(self, now: float, devices: DeviceBook) -> None:
        """Say of the attempts that have failed whether their device was lost, as soon as that is known."""
        for live in self.live.values():
            if live.doubt_until is None or live.outcome is None:
                continue
            if any(devices.is_lost(uuid) for uuid in live.devices):
                live.outcome = replace(live.outcome, cause="gpu_lost")
            elif now < live.doubt_until and not all(devices.is_read_since_settling(uuid) for uuid in live.devices):
                continue
            live.doubt_until = None

    def clock_went_back(self, now: float) -> None:
        for live in self.live.values():
            if live.lingering_since is not None:
                live.lingering_since = min(live.lingering_since, now)
            if live.doubt_until is not None:
                live.doubt_until = min(live.doubt_until, now + DOUBT_S)

    def next_doubt(self) -> float | None:
        """When settle_doubts() has to be called at the latest."""
        return min((live.doubt_until for live in self.live.values() if live.doubt_until is not None), default=None)

    def _end_strays(self, live: OpenAttempt, now: float) -> None:
        if live.lingering_since is None:
            live.lingering_since = now
        late = now - live.lingering_since >= STRAY_GRACE_S
        reaper.end_strays(live.marker, signal.SIGKILL if late else signal.SIGTERM)
        self.told.setdefault(live.directory, "")

    def lingering(self) -> bool:
        return any(live.fact is AttemptFact.LINGERING for live in self.live.values())

    def _outcome(self, live: OpenAttempt, error: str, stopping_since: float | None) -> Outcome:
        if live.fact is AttemptFact.NOT_STARTED and not error and not attempt_dir.exists(live.directory):
            return Outcome(OutcomeKind.LOST, note="its files were removed, so nobody knows how it ended")
        if live.fact is AttemptFact.NOT_STARTED:
            cause = "dispatcher_gone" if live.adopted else ""
            if error:
                cause = "disk_full" if error.startswith(_DISK_FULL) else "cannot_start"
            return Outcome(OutcomeKind.NOT_STARTED, cause=cause, note=error)
        if live.fact is AttemptFact.LOST:
            return Outcome(OutcomeKind.LOST, note="its shepherd was killed, or the box went down")
        outcome = outcome_of(live.fields, live.cancel_requested)
        if live.stop_cause and outcome.kind is OutcomeKind.INTERRUPTED:
            return replace(outcome, kind=OutcomeKind.TIMED_OUT, cause=live.stop_cause)
        asked = live.adopted or live.stop_sent or stopping_since is not None
        if outcome.kind is OutcomeKind.INTERRUPTED and not asked:
            note = "its shepherd got a TERM that was not gpusched's"
            return Outcome(outcome.kind, outcome.exit_code, outcome.signal, TERMINATED, note)
        if outcome.ok or outcome.kind not in _OWN_ENDS:
            return outcome
        if stopping_since is not None and live.ended_at(0.0) >= stopping_since - SHUTDOWN_WINDOW_S:
            return Outcome(OutcomeKind.INTERRUPTED, outcome.exit_code, outcome.signal, note="ended with the shutdown")
        logs = [f"{self.queue.path}/{name}" for name in (live.row.log, live.row.error_log) if name]
        tail = b"\n".join(reaper.log_tail(path) for path in logs)
        text = tail.decode("utf-8", "replace")
        cause = classify(outcome.exit_code, outcome.signal, text, devices=len(live.devices))
        return Outcome(outcome.kind, outcome.exit_code, outcome.signal, cause, outcome.note)

    # ---- ending ----

    def stop(self, live: OpenAttempt) -> None:
        """Have the attempt ended: TERM, grace, KILL. The wish is stored before this is called."""
        live.stop_sent = self._launcher.stop(live.directory) or reaper.terminate(live.fields)
        if not live.stop_sent:
            self.told.setdefault(live.directory, "")

    def shepherd_of(self, directory: str) -> int | None:
        """Pid of the shepherd of an attempt that this dispatcher launched."""
        return self._launcher.pid(directory)

    def unfinished(self) -> int:
        """How many have not ended."""
        return sum(not live.ended for live in self.live.values())

    def find(self, job_id: int, number: int) -> OpenAttempt:
        return self.live[attempt_dir.directory(self.queue.state, job_id, number)]

    def forget(self, live: OpenAttempt) -> None:
        """The attempt is closed in the store."""
        self._close_handle(live)
        self.live.pop(live.directory, None)

    def occupied(self) -> set[str]:
        return {uuid for live in self.live.values() if not live.ended for uuid in live.devices}

    def close(self) -> None:
        """Leave; running attempts go on with their shepherds."""
        for live in self.live.values():
            self._close_handle(live)
        self._launcher.close()


@dataclass(frozen=True, slots=True)
class LaunchStyle:
    """How commands of this queue are run."""

    shell: tuple[bytes, ...]  # the words before a command, ending in -c
    setup: str | None = None
    grace_s: float = 10.0
    leftovers: str = "wait"
    split_streams: bool = False


def _argv(style: LaunchStyle, command: bytes, directory: str) -> tuple[bytes, ...]:
    if style.setup:
        command = b". " + os.fsencode(shlex.quote(style.setup)) + b" || exit $?\n" + command
    if not needs_script(command):
        return (*style.shell, command)
    # one argument cannot be this long: the same text runs from a file
    script = f"{directory}/command.sh"
    write_atomically(script, command + b"\n")
    return (*style.shell[:-1], os.fsencode(script))
