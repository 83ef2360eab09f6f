"""An open attempt as a dispatcher knows it: values, and what follows from them. Decides nothing about its job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpusched.common.errors import is_disk_full
from gpusched.core.jobs.failure import find_reason
from gpusched.core.jobs.lifecycle import FENCED, MISPLACED, SETUP_FAILED, TERMINATED
from gpusched.core.jobs.outcome import classify, ends_in_traceback
from gpusched.core.model import Attempt, AttemptFact, AttemptRow, JobRow, Outcome, OutcomeKind, RunningView, Usage
from gpusched.core.plan.learned_memory import Trace
from gpusched.core.plan.snapshot import ENDED_FACTS
from gpusched.host.attempts import attempt_dir, reaper
from gpusched.host.attempts.reaper import LifeReading

SHUTDOWN_WINDOW_S = 1.0  # failures this shortly before a TERM belong to it
BESIDE_S = 60.0  # for so long jobs that were beside an attempt count
OWN_ENDS = (OutcomeKind.EXITED, OutcomeKind.SIGNALLED)  # by the command itself
_UNREAD = LifeReading(AttemptFact.ALIVE)


@dataclass(slots=True)
class AttemptUse:
    """The use of its devices that was seen of an attempt, and the progress that it has written."""

    seen_s: float  # when a process of its own was last seen on its devices, in monotonic seconds
    usage: Usage = Usage()  # noqa: RUF009 (frozen)
    used_bytes: dict[str, int] = field(default_factory=dict)  # by device, at the last reading that says
    unassigned_device: str = ""  # a device that it uses without having been given it
    progress: bytes = b""
    report: Mapping[str, Any] = field(default_factory=dict)  # its progress, as it was before the newest reading
    trace: Trace = Trace()  # noqa: RUF009 (frozen)
    is_settled: bool = False  # its memory has stayed on one level, or it says that it is ready
    is_alone: bool = True  # no other job is on its devices
    jobs_beside: int = 0  # on one of its devices, the most at the readings of the last minute
    beside_s: float = 0.0  # when these were there, in monotonic seconds
    reported: set[str] = field(default_factory=set)  # kinds of warnings that people have had

    def note_beside(self, jobs: int, now_s: float) -> None:
        """Note the jobs beside it; they count for a minute, since a job may end long after it ran out of memory."""
        self.is_alone = not jobs
        if jobs >= self.jobs_beside or now_s - self.beside_s > BESIDE_S:
            self.jobs_beside, self.beside_s = jobs, now_s

    def progress_text(self) -> str:
        return self.progress.decode("utf-8", "replace")


@dataclass(slots=True)
class OpenAttempt:
    """An open attempt, and the newest look at it."""

    job: JobRow
    row: AttemptRow
    devices: tuple[str, ...]  # UUIDs
    directory: str
    marker: tuple[bytes, ...]  # words in the environment of each of its processes
    opened_s: float  # when this dispatcher launched or adopted it, in monotonic seconds
    use: AttemptUse
    seen: dict[int, int] = field(default_factory=dict)  # its processes while its shepherd lives: start times by pid
    is_adopted: bool = False  # launched by an earlier dispatcher
    has_indices: bool = False  # in CUDA_VISIBLE_DEVICES
    life: LifeReading = _UNREAD
    outcome: Outcome | None = None
    is_cancelled: bool = False  # somebody asks for its end
    stop_sent: bool = False
    ending_s: float = math.inf  # since when its end is waited for, in monotonic seconds
    record: Mapping[str, str] = field(default_factory=dict)  # as its shepherd tells it while it cannot write it
    crash: str = ""  # how its shepherd has ended without a record, if that was seen
    stop_cause: str = ""  # why the dispatcher has it stopped, if of its own accord
    claims: list[int] = field(default_factory=list)  # held for it beside those of its shepherd
    shepherd_fd: int | None = None  # pidfd of an adopted attempt's shepherd
    outcome_due_s: float | None = None  # it failed: until then at most a reading of its devices is waited for

    @property
    def has_ended(self) -> bool:
        return self.life.fact in ENDED_FACTS

    @property
    def is_lingering(self) -> bool:
        """True if its shepherd was killed and processes of it live on."""
        return self.life.fact is AttemptFact.LINGERING

    def is_first(self, kind: str) -> bool:
        """Return True the first time that this kind of warning is due."""
        if kind in self.use.reported:
            return False
        self.use.reported.add(kind)
        return True

    def read_progress(self) -> None:
        """Take in the progress file of the job, if it has one."""
        progress = attempt_dir.read_progress(self.directory)
        if progress is not None:
            self.use.progress = progress

    def ended_at(self, otherwise: float) -> float:
        """Return the end that its record states, else `otherwise`; not before it began, whatever the clock did."""
        return max(self.row.started_at, float(self.life.fields.get("ended_at", otherwise)))

    def planned(self) -> Attempt:
        """Return the attempt as the plan sees it."""
        return Attempt(
            job=self.job,
            number=self.row.number,
            devices=self.devices,
            fact=self.life.fact,
            outcome=self.outcome if self.outcome_due_s is None else None,
            cancel_requested=self.is_cancelled,
            stop_sent=self.stop_sent,
            peak_device_bytes=self.use.usage.peak_device_bytes,
            started_at=self.row.started_at,
            lasted_s=self.ended_at(0.0) - self.row.started_at if self.has_ended else 0.0,
        )

    def view(self) -> RunningView:
        """Return the attempt as people see it."""
        row = replace(self.row, usage=self.use.usage, progress=self.use.progress_text())
        return RunningView(self.job, row, self.life.fields.get("leftovers", ""), self.stop_sent)


def outcome_of(attempt: OpenAttempt, error: str, queue_path: str, stopping_at: float | None) -> Outcome:
    """Return how an attempt ended that has ended.

    `error` came from its shepherd. `stopping_at` says since when the dispatcher has everything stopped, if so.
    """
    fact = attempt.life.fact
    if fact is AttemptFact.NOT_STARTED and not error and not attempt_dir.exists(attempt.directory):
        return Outcome(OutcomeKind.LOST, note="its life file is gone, so nobody knows how it ended")
    if fact is AttemptFact.NOT_STARTED:
        cause = "dispatcher_gone" if attempt.is_adopted else ""
        if error:
            cause = "disk_full" if is_disk_full(error) else "cannot_start"
        return Outcome(OutcomeKind.NOT_STARTED, cause=cause, note=error or attempt.crash)
    if fact is AttemptFact.LOST:
        return Outcome(OutcomeKind.LOST, note=attempt.crash or "its shepherd was killed, or the box went down")
    outcome = recorded_outcome(attempt.life.fields, attempt.is_cancelled)
    if outcome.kind is OutcomeKind.INTERRUPTED:
        return _interrupted(attempt, outcome, stopping_at)
    if outcome.kind in OWN_ENDS and (where := attempt_dir.read_setup(attempt.directory)) is not None:
        kind = OutcomeKind.NOT_STARTED if outcome.ok else outcome.kind
        return replace(outcome, kind=kind, cause=SETUP_FAILED, note=where)
    if outcome.kind not in OWN_ENDS:
        return outcome
    logs = [f"{queue_path}/{name}" for name in (attempt.row.log, attempt.row.error_log) if name]
    tails = [reaper.log_tail(path).decode("utf-8", "replace") for path in logs]
    if outcome.ok:
        notes = [outcome.note, "but its log ends in a traceback" if any(map(ends_in_traceback, tails)) else ""]
        return replace(outcome, note=", ".join(filter(None, notes)))
    if stopping_at is not None and attempt.ended_at(0.0) >= stopping_at - SHUTDOWN_WINDOW_S:
        return replace(outcome, kind=OutcomeKind.INTERRUPTED, cause="", note="ended with the shutdown")
    text = "\n".join(tails)
    cause = classify(outcome.exit_code, outcome.signal, text, devices=len(attempt.row.devices))
    outcome = replace(outcome, cause=cause)
    return replace(outcome, note=outcome.note or find_reason(outcome, text))


def _interrupted(attempt: OpenAttempt, outcome: Outcome, stopping_at: float | None) -> Outcome:
    """Return the outcome of an attempt that was ended by TERM, with its cause."""
    if attempt.life.fields.get("stopped") == "fenced":
        return replace(outcome, cause=FENCED, note="no news of its lease came in time")
    if attempt.stop_cause == MISPLACED:
        return replace(outcome, cause=MISPLACED)
    if attempt.stop_cause:
        return replace(outcome, kind=OutcomeKind.TIMED_OUT, cause=attempt.stop_cause)
    if attempt.is_adopted or attempt.stop_sent or stopping_at is not None:
        return outcome
    return replace(outcome, cause=TERMINATED, note="its shepherd got a TERM that was not gpusched's")


def recorded_outcome(fields: Mapping[str, str], cancel_requested: bool) -> Outcome:
    """Return the outcome that an exit record states, without a look at the log."""
    code = int(fields["exit_code"]) if "exit_code" in fields else None
    number = int(fields["signal"]) if "signal" in fields else None
    note = fields.get("note", "")
    cause = "unkillable" if note == "unkillable" else ""
    stopped = fields.get("stopped")
    if stopped:
        interrupted = OutcomeKind.CANCELLED if cancel_requested else OutcomeKind.INTERRUPTED
        kind = OutcomeKind.TIMED_OUT if stopped == "timed_out" else interrupted
    elif "error" in fields:
        return Outcome(OutcomeKind.NOT_STARTED, cause="bad_command", note=fields["error"])
    else:
        kind = OutcomeKind.EXITED if number is None else OutcomeKind.SIGNALLED
    return Outcome(kind, code, number, cause, note)
