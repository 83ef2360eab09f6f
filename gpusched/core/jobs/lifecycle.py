"""The states of a job, the one transition table, and the judgement of an ended attempt. Changes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gpusched.core.jobs.job import JobRow, JobState, OutcomeKind

if TYPE_CHECKING:
    from gpusched.core.model import DeviceUse, Outcome


class JobEvent(str, Enum):
    SUBMITTED = "submitted"
    HELD = "held"
    RELEASED = "released"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    REPEATED = "repeated"


TRANSITIONS = MappingProxyType(
    {
        (None, JobEvent.SUBMITTED): JobState.QUEUED,
        (JobState.QUEUED, JobEvent.HELD): JobState.HELD,
        (JobState.HELD, JobEvent.RELEASED): JobState.QUEUED,
        (JobState.QUEUED, JobEvent.CANCELLED): JobState.CANCELLED,
        (JobState.HELD, JobEvent.CANCELLED): JobState.CANCELLED,
        (JobState.QUEUED, JobEvent.STARTED): JobState.RUNNING,
        (JobState.RUNNING, JobEvent.SUCCEEDED): JobState.SUCCEEDED,
        (JobState.RUNNING, JobEvent.RETRIED): JobState.QUEUED,
        (JobState.RUNNING, JobEvent.INTERRUPTED): JobState.QUEUED,
        (JobState.RUNNING, JobEvent.FAILED): JobState.FAILED,
        (JobState.RUNNING, JobEvent.CANCELLED): JobState.CANCELLED,
        (JobState.FAILED, JobEvent.REQUEUED): JobState.QUEUED,
        (JobState.CANCELLED, JobEvent.REQUEUED): JobState.QUEUED,
        (JobState.SUCCEEDED, JobEvent.REPEATED): JobState.QUEUED,
    }
)


class InvalidTransition(Exception):
    """An event that the table has no entry for in this state; the job stays as it was."""

    def __init__(self, state: JobState | None, event: JobEvent, story: str = "") -> None:
        at = state.value if state else "new"
        super().__init__(f"a job that is {at} cannot be {event.value}" + (f" ({story})" if story else ""))
        self.state = state
        self.event = event


def next_state(state: JobState | None, event: JobEvent, story: str = "") -> JobState:
    """Return the state after `event`. Raises InvalidTransition if there is none; `story` goes into its message."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransition(state, event, story) from None


# ---- judgement -------------------------------------------------------------------------------------

LOSS_LIMIT = 3  # repetitions after ends that spend no try: FREE_CAUSES, lost, not_started, and EXIT_TRY_AGAIN
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the program can succeed at another time, or on another device
BACKOFF_FIRST_S = 1.0  # before the first repetition after a loss or a failed try; doubles
BACKOFF_MAX_S = 60.0
BACKOFF_HORIZON_S = BACKOFF_MAX_S + 1.0  # no back-off ends later than this, unless the clock was set back since
CROWDED_OOM = "crowded_oom"  # cause: out of GPU memory beside others, where its own need had to be learned (mem=auto)
FREE_CAUSES = frozenset({"gpu_busy", "gpu_lost", CROWDED_OOM})
MEMORY_CAUSES = frozenset({"gpu_oom", "host_oom", CROWDED_OOM})  # another GPU is no remedy, unless it is larger
MISPLACED = "misplaced"  # cause of an interruption: CUDA had counted the GPUs anew
FENCED = "fenced"  # cause of an interruption: the lease under which a node ran it was not renewed in time
TERMINATED = "terminated"  # cause of an interruption by a signal that gpusched did not send
SETUP_FAILED = "setup_failed"  # the command never began, since the set-up ended the shell
CAUSE_FAILURES = "failures"  # held because jobs of its program fail as soon as they start
GIVEN_BACK = "given_back"  # cause: it waited on a node of a cluster, and was wanted elsewhere
NO_FAULT_CAUSES = frozenset({"disk_full", "dispatcher_gone", "cannot_start", GIVEN_BACK})  # of one that never began


class Verdict(NamedTuple):
    """The effect of an attempt's end on its job."""

    event: JobEvent
    tries: int  # tries spent, this attempt included
    losses: int
    delay_s: float = 0.0  # before the job may start again
    note: str = ""


def judge(outcome: Outcome, job: JobRow, *, cancel_asked: bool) -> Verdict:
    """Decide the next event of the job whose attempt ended with `outcome`; the job is as it was before that."""
    tries, losses = job.tries, job.losses
    if outcome.ok:
        return Verdict(JobEvent.SUCCEEDED, tries + 1, losses)
    if outcome.kind is OutcomeKind.CANCELLED or cancel_asked:
        return Verdict(JobEvent.CANCELLED, tries, losses)
    if job.origin == "lease":
        return Verdict(JobEvent.FAILED, tries, losses)  # the head of the cluster judges
    if _spends_nothing(outcome):
        return Verdict(JobEvent.INTERRUPTED, tries, losses)
    if _is_loss(outcome):
        losses += 1
        if losses <= LOSS_LIMIT:
            return Verdict(JobEvent.INTERRUPTED, tries, losses, _backoff_s(losses))
        reason = outcome.cause or (f"exit {EXIT_TRY_AGAIN}" if asks_again(outcome) else outcome.kind.value)
        return Verdict(JobEvent.FAILED, tries, losses, note=f"given up after {LOSS_LIMIT} repetitions for {reason}")
    tries += 1
    if tries <= job.retries:
        return Verdict(JobEvent.RETRIED, tries, losses, _backoff_s(tries))
    return Verdict(JobEvent.FAILED, tries, losses)


def _spends_nothing(outcome: Outcome) -> bool:
    """Return True if gpusched or a full disk ended the attempt, so that it counts neither as try nor as loss."""
    if outcome.kind is OutcomeKind.INTERRUPTED:
        return outcome.cause != TERMINATED
    return outcome.kind is OutcomeKind.NOT_STARTED and outcome.cause in NO_FAULT_CAUSES


def _is_loss(outcome: Outcome) -> bool:
    """Return True if the end is probably no fault of the job."""
    if outcome.cause in FREE_CAUSES or outcome.cause == TERMINATED or asks_again(outcome):
        return True
    has_no_fault = outcome.cause not in ("bad_command", SETUP_FAILED)
    return outcome.kind in (OutcomeKind.LOST, OutcomeKind.NOT_STARTED) and has_no_fault


def asks_again(outcome: Outcome) -> bool:
    """Return True if the program's own exit code asks for another try."""
    return outcome.kind is OutcomeKind.EXITED and outcome.exit_code == EXIT_TRY_AGAIN


def _backoff_s(repetition: int) -> float:
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(repetition - 1, 30))


def is_backing_off(not_before: float, now: float) -> bool:
    """Return True while a job that may start at `not_before` has to wait for that; both are wall time.

    A moment beyond the longest back-off was written before the clock was set back: nothing waits for it.
    """
    return now < not_before <= now + BACKOFF_HORIZON_S


def steer(
    outcome: Outcome, devices: Sequence[DeviceUse], avoid: frozenset[str], above_bytes: int
) -> tuple[frozenset[str], int]:
    """Return the devices that the next attempt should avoid, and the free memory that was too little."""
    own_end = not outcome.ok and outcome.kind in (OutcomeKind.EXITED, OutcomeKind.SIGNALLED)
    if (own_end and outcome.cause not in MEMORY_CAUSES) or asks_again(outcome) or outcome.cause == MISPLACED:
        avoid |= {d.uuid for d in devices}
    if outcome.cause == "gpu_oom":
        above_bytes = max([above_bytes, *(d.free_bytes or 0 for d in devices)])
    return avoid, above_bytes
