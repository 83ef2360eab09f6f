"""An open attempt as a dispatcher knows it: values, and what follows from them. Decides nothing about its job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpusched.core.model import (
    NOTHING_USED,
    Attempt,
    AttemptFact,
    AttemptRow,
    JobRow,
    Outcome,
    OutcomeKind,
    RunningView,
    Usage,
)
from gpusched.host.attempts import attempt_dir
from gpusched.host.queue.queue_dirs import QueueDir


@dataclass(slots=True)
class OpenAttempt:
    """An open attempt and what was last seen of it."""

    job: JobRow
    row: AttemptRow
    directory: str
    marker: tuple[bytes, ...]
    fact: AttemptFact = AttemptFact.ALIVE
    outcome: Outcome | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    cancel_requested: bool = False
    stop_sent: bool = False
    adopted: bool = False
    handle: int | None = None  # pidfd of an adopted attempt's shepherd
    usage: Usage = NOTHING_USED
    progress: bytes = b""
    lingering_since: float | None = None
    doubt_until: float | None = None  # it failed, and its devices have not been read since
    used_bytes: dict[str, int] = field(default_factory=dict)  # by device, at the last reading that told
    told_over_budget: bool = False
    seen_at: float | None = None  # when a process of its own was last seen on its devices
    told_idle: bool = False
    stop_cause: str = ""  # why the dispatcher has it stopped, if of its own accord
    told_leftovers: bool = False
    strange_device: str = ""  # a device that it uses without having been given it

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.uuid for device in self.row.devices)

    @property
    def ended(self) -> bool:
        return self.fact not in (AttemptFact.ALIVE, AttemptFact.LINGERING)

    def read_progress(self) -> None:
        """Take in what the job says of itself."""
        progress = attempt_dir.read_progress(self.directory)
        if progress is not None:
            self.progress = progress

    def ended_at(self, now: float) -> float:
        """When its record says that it ended, or `now`; not before it began, whatever the clock did."""
        return max(self.row.started_at, float(self.fields.get("ended_at", now)))

    def planned(self) -> Attempt:
        """The attempt as the plan sees it."""
        return Attempt(
            self.job.id,
            self.row.number,
            self.devices,
            self.fact,
            self.outcome if self.doubt_until is None else None,
            self.cancel_requested,
            self.stop_sent,
            self.job.tries,
            self.job.retries,
            self.job.losses,
            self.job.mem_bytes,
            self.job.tags,
            self.usage.peak_device_bytes,
            self.ended_at(0.0) - self.row.started_at if self.ended else 0.0,
            self.job.gpu_model,
        )

    def view(self) -> RunningView:
        row = AttemptRow(
            self.row.job_id,
            self.row.number,
            self.row.started_at,
            None,
            None,
            self.row.log,
            self.row.error_log,
            self.row.devices,
            self.usage,
            progress=self.progress.decode("utf-8", "replace"),
        )
        return RunningView(self.job, row, self.fields.get("leftovers", ""), self.stop_sent)


def marker_of(queue: QueueDir, job_id: int, number: int) -> tuple[bytes, ...]:
    """The words in the environment of every process of an attempt."""
    return (
        b"GPUSCHED_QUEUE=" + os.fsencode(queue.path),
        b"GPUSCHED_JOB_ID=%d" % job_id,
        b"GPUSCHED_ATTEMPT=%d" % number,
    )


def outcome_of(fields: Mapping[str, str], cancel_requested: bool) -> Outcome:
    """The outcome that an exit record tells, before its log was read."""
    code = int(fields["exit_code"]) if "exit_code" in fields else None
    number = int(fields["signal"]) if "signal" in fields else None
    note = fields.get("note", "")
    cause = "unkillable" if note == "unkillable" else ""
    stopped = fields.get("stopped")
    if stopped == "timed_out":
        return Outcome(OutcomeKind.TIMED_OUT, code, number, cause, note)
    if stopped and cancel_requested:
        return Outcome(OutcomeKind.CANCELLED, code, number, cause, note)
    if stopped:
        return Outcome(OutcomeKind.INTERRUPTED, code, number, cause, note)
    if "error" in fields:
        return Outcome(OutcomeKind.NOT_STARTED, cause="bad_command", note=fields["error"])
    kind = OutcomeKind.SIGNALLED if number is not None else OutcomeKind.EXITED
    return Outcome(kind, code, number, cause, note)
