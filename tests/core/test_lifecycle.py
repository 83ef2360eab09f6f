"""The states of a job, what an attempt's end does to it, and where the next attempt goes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    EXIT_TRY_AGAIN,
    FREE_CAUSES,
    LOSS_LIMIT,
    MEMORY_CAUSES,
    NO_FAULT_CAUSES,
    TERMINATED,
    TRANSITIONS,
    InvalidTransition,
    JobEvent,
    Verdict,
    asks_again,
    judge,
    next_state,
    steer,
)
from gpusched.core.model import ENDED_STATES, DeviceUse, JobState, Outcome, OutcomeKind
from tests.support import build

# The table as the design states it; "-" is a job that does not exist yet.
TABLE = """
- submitted queued
queued held held
held released queued
queued cancelled cancelled
held cancelled cancelled
queued started running
running succeeded succeeded
running retried queued
running interrupted queued
running failed failed
running cancelled cancelled
failed requeued queued
cancelled requeued queued
succeeded repeated queued
"""
STATED = {
    (None if before == "-" else JobState(before), JobEvent(event)): JobState(after)
    for before, event, after in (line.split() for line in TABLE.split("\n") if line)
}
PAIRS = list(itertools.product([None, *JobState], JobEvent))

OK = Outcome(OutcomeKind.EXITED, exit_code=0)
BAD = Outcome(OutcomeKind.EXITED, exit_code=3)
LOST = Outcome(OutcomeKind.LOST)


# ---- the table -------------------------------------------------------------------------------------


def test_the_table_is_the_stated_one() -> None:
    assert dict(TRANSITIONS) == STATED


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair in STATED])
def test_a_legal_event_leads_to_its_state(state: JobState | None, event: JobEvent) -> None:
    assert next_state(state, event) is STATED[state, event]


@pytest.mark.parametrize(("state", "event"), [pair for pair in PAIRS if pair not in STATED])
def test_an_illegal_event_raises_with_the_jobs_story(state: JobState | None, event: JobEvent) -> None:
    with pytest.raises(InvalidTransition, match=rf"{state.value if state else 'new'} .*{event.value} \(job 7") as error:
        next_state(state, event, "job 7, line 12")
    assert (error.value.state, error.value.event) == (state, event)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[JobState.RUNNING, JobEvent.HELD] = JobState.HELD  # type: ignore[index]


def test_a_success_is_final_unless_it_is_repeated_by_name() -> None:
    assert [event for event in JobEvent if (JobState.SUCCEEDED, event) in TRANSITIONS] == [JobEvent.REPEATED]


# ---- the judgement ---------------------------------------------------------------------------------


def verdict(
    outcome: Outcome, *, retries: int = 0, tries: int = 0, losses: int = 0, cancel_asked: bool = False
) -> Verdict:
    return judge(outcome, build.job(retries=retries, tries=tries, losses=losses), cancel_asked=cancel_asked)


@pytest.mark.parametrize("cancel_asked", [False, True])
def test_exit_0_is_a_success_even_if_a_cancel_came_too_late(cancel_asked: bool) -> None:
    assert verdict(OK, tries=1, losses=2, cancel_asked=cancel_asked) == Verdict(JobEvent.SUCCEEDED, 2, 2)


@pytest.mark.parametrize(
    "outcome",
    [
        BAD,
        Outcome(OutcomeKind.EXITED, exit_code=None),
        Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_oom"),
        Outcome(OutcomeKind.EXITED, exit_code=1, cause="host_oom"),
        Outcome(OutcomeKind.SIGNALLED, signal=9),
        Outcome(OutcomeKind.SIGNALLED, signal=9, cause="host_oom"),
        Outcome(OutcomeKind.TIMED_OUT, signal=15),
        Outcome(OutcomeKind.TIMED_OUT, cause="unkillable"),
        Outcome(OutcomeKind.NOT_STARTED, cause="bad_command"),
    ],
    ids=str,
)
def test_a_failure_spends_a_try(outcome: Outcome) -> None:
    assert verdict(outcome) == Verdict(JobEvent.FAILED, 1, 0)
    assert verdict(outcome, retries=1, losses=1) == Verdict(JobEvent.RETRIED, 1, 1, BACKOFF_FIRST_S)
    assert verdict(outcome, retries=1, tries=1) == Verdict(JobEvent.FAILED, 2, 0)


@pytest.mark.parametrize(
    "outcome",
    [
        LOST,
        Outcome(OutcomeKind.NOT_STARTED),
        Outcome(OutcomeKind.INTERRUPTED, signal=15, cause=TERMINATED),
        *(Outcome(OutcomeKind.EXITED, exit_code=1, cause=cause) for cause in sorted(FREE_CAUSES)),
        *(Outcome(OutcomeKind.SIGNALLED, signal=6, cause=cause) for cause in sorted(FREE_CAUSES)),
        Outcome(OutcomeKind.EXITED, exit_code=EXIT_TRY_AGAIN),
        Outcome(OutcomeKind.EXITED, exit_code=EXIT_TRY_AGAIN, cause="host_oom"),
    ],
    ids=str,
)
def test_what_is_not_the_jobs_fault_spends_no_try_but_has_a_limit(outcome: Outcome) -> None:
    first = verdict(outcome, tries=1, retries=5)
    assert first == Verdict(JobEvent.INTERRUPTED, 1, 1, BACKOFF_FIRST_S)
    assert verdict(outcome, losses=LOSS_LIMIT - 1).event is JobEvent.INTERRUPTED
    last = verdict(outcome, tries=1, retries=5, losses=LOSS_LIMIT)
    assert (last.event, last.tries, last.losses) == (JobEvent.FAILED, 1, LOSS_LIMIT + 1)
    kind = "exit 75" if asks_again(outcome) else outcome.kind.value
    assert (outcome.cause or kind) in last.note


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(OutcomeKind.INTERRUPTED),
        Outcome(OutcomeKind.INTERRUPTED, signal=9, cause="unkillable"),
        *(Outcome(OutcomeKind.NOT_STARTED, cause=cause) for cause in sorted(NO_FAULT_CAUSES)),
    ],
    ids=str,
)
def test_an_interruption_from_outside_costs_nothing(outcome: Outcome) -> None:
    assert verdict(outcome, tries=3, losses=3) == Verdict(JobEvent.INTERRUPTED, 3, 3)


@pytest.mark.parametrize("kind", [kind for kind in OutcomeKind if kind is not OutcomeKind.CANCELLED])
def test_whatever_ends_after_a_cancel_was_asked_for_is_cancelled(kind: OutcomeKind) -> None:
    outcome = Outcome(kind, exit_code=1, signal=15)
    assert verdict(outcome, retries=5, tries=1, losses=1, cancel_asked=True) == Verdict(JobEvent.CANCELLED, 1, 1)


def test_a_cancelled_attempt_is_cancelled() -> None:
    assert verdict(Outcome(OutcomeKind.CANCELLED), retries=5) == Verdict(JobEvent.CANCELLED, 0, 0)


def test_repetitions_come_slower_and_slower() -> None:
    delays = [verdict(BAD, retries=5000, tries=n).delay_s for n in range(5000)]
    assert delays[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert max(delays) == BACKOFF_MAX_S
    assert [verdict(LOST, losses=n).delay_s for n in range(LOSS_LIMIT)] == [1, 2, 4]


CAUSES = st.sampled_from(
    ["", "gpu_oom", "host_oom", "unkillable", "bad_command", TERMINATED, *sorted(FREE_CAUSES | NO_FAULT_CAUSES)]
)
OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(OutcomeKind),
    exit_code=st.sampled_from([None, 0, 1, 127]),
    signal=st.sampled_from([None, 9, 15]),
    cause=CAUSES,
)


def from_outside(outcome: Outcome) -> bool:
    not_begun = outcome.kind is OutcomeKind.NOT_STARTED and outcome.cause in NO_FAULT_CAUSES
    return not_begun or (outcome.kind is OutcomeKind.INTERRUPTED and outcome.cause != TERMINATED)


@settings(deadline=None, max_examples=40)
@given(OUTCOMES, st.integers(0, 5), st.integers(0, 7), st.integers(0, 7), st.booleans())
def test_every_verdict_is_a_legal_step_of_a_running_job(
    outcome: Outcome, retries: int, tries: int, losses: int, cancel_asked: bool
) -> None:
    found = verdict(outcome, retries=retries, tries=tries, losses=losses, cancel_asked=cancel_asked)
    after = next_state(JobState.RUNNING, found.event)
    assert tries <= found.tries <= tries + 1
    assert losses <= found.losses <= losses + 1
    assert (found.tries - tries) + (found.losses - losses) <= 1
    assert 0 <= found.delay_s <= BACKOFF_MAX_S
    assert found.delay_s == 0 or after is JobState.QUEUED


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 5), st.lists(OUTCOMES, max_size=20))
def test_no_sequence_of_outcomes_goes_on_for_ever(retries: int, outcomes: list[Outcome]) -> None:
    """Only interruptions from outside repeat a job without limit."""
    tries = losses = repetitions = 0
    for outcome in outcomes:
        found = verdict(outcome, retries=retries, tries=tries, losses=losses)
        tries, losses = found.tries, found.losses
        if next_state(JobState.RUNNING, found.event) in ENDED_STATES:
            break
        repetitions += not from_outside(outcome)
    assert repetitions <= retries + LOSS_LIMIT
    assert tries <= retries + 1
    assert losses <= LOSS_LIMIT + 1


# ---- where the next attempt goes -------------------------------------------------------------------

USES = (DeviceUse("GPU-a", 0, "A10", 22_000), DeviceUse("GPU-b", 1, "A10", 23_000))


@pytest.mark.parametrize("cause", [*sorted(FREE_CAUSES - MEMORY_CAUSES), ""])
def test_a_device_on_which_a_job_failed_is_passed_over_the_next_time(cause: str) -> None:
    outcome = Outcome(OutcomeKind.EXITED, exit_code=1, cause=cause)
    assert steer(outcome, USES[:1], frozenset({"GPU-z"}), 7) == (frozenset({"GPU-z", "GPU-a"}), 7)


def test_a_program_that_asks_for_another_try_gets_it_elsewhere() -> None:
    outcome = Outcome(OutcomeKind.EXITED, exit_code=EXIT_TRY_AGAIN, cause="gpu_oom")
    assert steer(outcome, USES[:1], frozenset({"GPU-z"}), 7) == (frozenset({"GPU-z", "GPU-a"}), 22_000)


def test_after_out_of_memory_more_than_was_free_is_wanted() -> None:
    outcome = Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_oom")
    assert steer(outcome, USES, frozenset({"GPU-z"}), 0) == (frozenset({"GPU-z"}), 23_000)
    assert steer(outcome, USES, frozenset(), 40_000) == (frozenset(), 40_000)
    assert steer(outcome, [DeviceUse("GPU-c", 2)], frozenset(), 0) == (frozenset(), 0)
    assert steer(outcome, [], frozenset(), 0) == (frozenset(), 0)


@settings(deadline=None)
@given(OUTCOMES)
def test_other_ends_change_no_wish(outcome: Outcome) -> None:
    before = frozenset({"GPU-z"}), 9
    by_itself = outcome.kind in (OutcomeKind.EXITED, OutcomeKind.SIGNALLED)
    changes_none = outcome.ok or outcome.cause == "host_oom" or not by_itself
    if outcome.cause != "gpu_oom" and changes_none and not asks_again(outcome):
        assert steer(outcome, USES, *before) == before
