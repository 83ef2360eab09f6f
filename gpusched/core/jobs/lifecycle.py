"""The states of a job, the one transition table, and the judgement of an ended attempt. Changes nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gpusched.core.model import DeviceUse, JobState, Outcome, OutcomeKind


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
    }
)


class InvalidTransition(Exception):
    """An event that the table does not know for a state; the job is left as it was."""

    def __init__(self, state: JobState | None, event: JobEvent, story: str = "") -> None:
        at = state.value if state else "new"
        super().__init__(f"a job that is {at} cannot be {event.value}" + (f" ({story})" if story else ""))
        self.state = state
        self.event = event


def next_state(state: JobState | None, event: JobEvent, story: str = "") -> JobState:
    """The state after `event`. Raises InvalidTransition with the job's story otherwise."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransition(state, event, story) from None


# ---- judgement -------------------------------------------------------------------------------------

LOSS_LIMIT = 3  # ends that spend no try: lost, gpu_busy, gpu_lost, not_started, and EXIT_TRY_AGAIN
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the program says that it can go well another time, or elsewhere
BACKOFF_FIRST_S = 1.0  # before the first repetition after a loss or a failed try; doubles
BACKOFF_MAX_S = 60.0
BACKOFF_HORIZON_S = BACKOFF_MAX_S + 1.0  # no back-off ends later than this, unless the clock was set back since
FREE_CAUSES = frozenset({"gpu_busy", "gpu_lost"})
TERMINATED = "terminated"  # cause of an interruption that nobody here asked for, with everything else running on
CAUSE_FAILURES = "failures"  # held, since jobs of its tag fail as soon as they start
NO_FAULT_CAUSES = frozenset({"disk_full", "dispatcher_gone", "cannot_start"})  # of an attempt that never began


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the end of an attempt does to its job."""

    event: JobEvent
    tries: int  # tries spent, this attempt included
    losses: int
    delay_s: float = 0.0  # before the job may start again
    note: str = ""


def judge(outcome: Outcome, *, retries: int, tries: int, losses: int, cancel_asked: bool) -> Verdict:
    """What becomes of the job whose attempt ended with `outcome`.

    `tries` and `losses` are those spent before this attempt; `retries` is how many tries may follow the first.
    """
    if outcome.ok:
        return Verdict(JobEvent.SUCCEEDED, tries + 1, losses)
    if outcome.kind is OutcomeKind.CANCELLED or cancel_asked:
        return Verdict(JobEvent.CANCELLED, tries, losses)
    if outcome.kind is OutcomeKind.INTERRUPTED and outcome.cause != TERMINATED:
        return Verdict(JobEvent.INTERRUPTED, tries, losses)
    if outcome.kind is OutcomeKind.NOT_STARTED and outcome.cause in NO_FAULT_CAUSES:
        return Verdict(JobEvent.INTERRUPTED, tries, losses)
    unmarked = outcome.kind in (OutcomeKind.LOST, OutcomeKind.NOT_STARTED) and outcome.cause != "bad_command"
    if unmarked or outcome.cause in FREE_CAUSES or outcome.cause == TERMINATED or asks_again(outcome):
        losses += 1
        if losses <= LOSS_LIMIT:
            return Verdict(JobEvent.INTERRUPTED, tries, losses, _backoff_s(losses))
        why = outcome.cause or (f"exit {EXIT_TRY_AGAIN}" if asks_again(outcome) else outcome.kind.value)
        return Verdict(JobEvent.FAILED, tries, losses, note=f"given up after {LOSS_LIMIT} repetitions for {why}")
    tries += 1
    if tries <= retries:
        return Verdict(JobEvent.RETRIED, tries, losses, _backoff_s(tries))
    return Verdict(JobEvent.FAILED, tries, losses)


def asks_again(outcome: Outcome) -> bool:
    """Did the program itself say that it should be tried again?"""
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
    """Where the next attempt should rather go: devices to pass over, and the free memory that was too little."""
    if outcome.cause in FREE_CAUSES or asks_again(outcome):
        avoid |= {d.uuid for d in devices}
    if outcome.cause == "gpu_oom":
        above_bytes = max([above_bytes, *(d.free_bytes or 0 for d in devices)])
    return avoid, above_bytes
