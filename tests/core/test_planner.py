"""The scheduler: what one plan starts, claims, stops, closes and releases, and why each other job waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.model import MIB, Attempt, AttemptFact, DeviceProcess, JobRow, Outcome, OutcomeKind, Sample
from gpusched.core.plan.availability import RUNS_OURS, Availability, Criteria, DeviceState, fold
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import (
    Action,
    Claim,
    Close,
    DeviceView,
    Limits,
    Plan,
    Reason,
    Release,
    Snapshot,
    Start,
    Stop,
)
from tests.support import build
from tests.support.traces import read_trace

FREE, CHECKING, BUSY, RUNNING = DeviceState.FREE, DeviceState.CHECKING, DeviceState.BUSY, DeviceState.RUNNING
SETTLING, LOST, SET_ASIDE = DeviceState.SETTLING, DeviceState.LOST, DeviceState.SET_ASIDE
WORDS = {
    RUNNING: RUNS_OURS,
    BUSY: "20000 MiB in use by bo's python (pid 5), threshold 500 MiB",
    CHECKING: "free at 2 of 3 checks",
}


def view(n: int, state: DeviceState = FREE, **more: Any) -> DeviceView:
    """Return GPU n with the words of its state."""
    return build.device_view(n, state, why=WORDS.get(state, ""), **more)


def plan(
    devices: Sequence[DeviceView] = (),
    waiting: Sequence[JobRow] = (),
    attempts: Sequence[Attempt] = (),
    *,
    max_gpus: int = 4,
    cpu_jobs: int = 2,
    **more: Any,
) -> Plan:
    snapshot = Snapshot(100.0, Limits(max_gpus, cpu_jobs), tuple(devices), tuple(waiting), tuple(attempts))
    return make_plan(replace(snapshot, **more))


def why(found: Plan, job_id: int = 1) -> tuple[str, str]:
    reason = found.reasons[job_id]
    return reason.kind, reason.text


def jobs(n: int, **more: Any) -> list[JobRow]:
    return [build.job(i, **more) for i in range(1, n + 1)]


# ---- claim, look, start ----------------------------------------------------------------------------


def test_a_free_device_is_claimed_then_looked_at_then_used() -> None:
    assert plan([view(0)], jobs(1)) == Plan((Claim(1, ("GPU-0",)),), {})
    assert plan([view(0, held=True, looked=False)], jobs(1)) == Plan(
        (), {1: Reason("look", "last check of GPU 0 before the start")}
    )
    assert plan([view(0, held=True)], jobs(1)) == Plan((Start(1, ("GPU-0",)),), {})


def test_a_held_device_whose_newest_look_found_it_free_serves_the_next_job_at_once() -> None:
    found = plan([view(0, RUNNING, held=True), view(1, held=True)], jobs(2), [build.attempt(9, 0)])
    assert found.actions == (Start(1, ("GPU-1",)),)
    assert why(found, 2)[0] == "devices"


def test_a_look_that_found_somebody_lets_the_claim_go() -> None:
    found = plan([view(0, BUSY, held=True)], jobs(1))
    assert found.actions == (Release("GPU-0"),)
    assert why(found) == (
        "devices",
        "waits for a GPU (GPU 0: 20000 MiB in use by bo's python (pid 5), threshold 500 MiB)",
    )


def test_jobs_start_beside_one_that_waits_for_its_look() -> None:
    devices = [view(0, held=True, looked=False), view(1, held=True), view(2)]
    found = plan(devices, jobs(3))
    assert found.actions == (Start(2, ("GPU-1",)), Claim(3, ("GPU-2",)))
    assert why(found)[0] == "look"


def test_claims_that_wait_for_their_looks_are_all_kept() -> None:
    found = plan([view(n, held=True, looked=False) for n in range(3)], jobs(3))
    assert found.actions == ()
    assert [reason.kind for reason in found.reasons.values()] == ["look"] * 3


def test_a_job_with_several_devices_gets_all_or_none() -> None:
    two = jobs(1, gpus=2)
    assert plan([view(0), view(1, BUSY), view(2)], two).actions == (Claim(1, ("GPU-0", "GPU-2")),)
    short = plan([view(0), view(1, CHECKING)], two)
    assert short.actions == ()
    assert why(short) == ("devices", "waits for 2 GPUs, has 1 (GPU 0: free, GPU 1: free at 2 of 3 checks)")


def test_of_several_devices_only_those_not_held_yet_are_claimed() -> None:
    devices = [view(0, held=True), view(1), view(2, held=True, looked=False)]
    assert plan(devices[:2], jobs(1, gpus=2)).actions == (Claim(1, ("GPU-1",)),)
    found = plan([devices[0], devices[2]], jobs(1, gpus=2))
    assert (found.actions, why(found)) == ((), ("look", "last check of GPU 2 before the start"))


def test_a_partly_held_set_is_let_go_when_the_rest_is_refused() -> None:
    """So that two queues that each hold what the other wants do not wait for ever."""
    found = plan([view(0, held=True), view(1, refused="claimed by bo's gpusched")], jobs(1, gpus=2))
    assert found.actions == (Release("GPU-0"),)
    assert why(found)[1] == "waits for 2 GPUs, has 1 (GPU 0: free, GPU 1: claimed by bo's gpusched)"


def test_a_refused_device_is_passed_over() -> None:
    found = plan([view(0, refused="claimed by bo's gpusched"), view(1)], jobs(1))
    assert found.actions == (Claim(1, ("GPU-1",)),)


def test_the_order_of_the_list_is_the_order_of_preference() -> None:
    devices = [view(3), view(0, BUSY), view(7), view(1)]
    assert plan(devices, jobs(2)).actions == (Claim(1, ("GPU-3",)), Claim(2, ("GPU-7",)))


@pytest.mark.parametrize("state", [state for state in DeviceState if state is not FREE])
def test_no_device_is_used_that_is_not_free(state: DeviceState) -> None:
    found = plan([view(0, state)], jobs(1))
    assert (found.actions, why(found)[0]) == ((), "devices")


def test_a_device_with_a_job_on_it_is_full_whatever_its_reading_says() -> None:
    found = plan([view(0, FREE, held=True)], jobs(1), [build.attempt(9, 0)])
    assert (found.actions, why(found)[0]) == ((), "devices")


def test_nothing_is_allowed() -> None:
    assert why(plan([], jobs(1))) == ("never", "waits for a GPU: no GPU that may be used is seen")


def test_a_device_that_a_job_before_gets_is_named() -> None:
    found = plan([view(0, held=True), view(1, BUSY)], jobs(2))
    assert found.actions == (Start(1, ("GPU-0",)),)
    assert why(found, 2) == ("devices", f"waits for a GPU (GPU 0: goes to a job before this one, GPU 1: {WORDS[BUSY]})")


def test_a_reason_names_at_most_eight_hurdles() -> None:
    devices = [view(n, BUSY) for n in range(64)]
    different = [replace(d, availability=replace(d.availability, why=f"hurdle {n}")) for n, d in enumerate(devices)]
    text = why(plan(different, jobs(1)))[1]
    assert text.count("hurdle") == 8
    assert text.endswith(", 56 more)")


def test_devices_with_one_hurdle_are_named_together() -> None:
    text = why(plan([view(n, RUNNING) for n in range(5)] + [view(n, BUSY) for n in range(5, 7)], jobs(1)))[1]
    assert text == f"waits for a GPU (5 GPUs run your jobs, GPU 5, GPU 6: {WORDS[BUSY]})"
    assert why(plan([view(n, BUSY) for n in range(4)], jobs(1)))[1] == f"waits for a GPU (4 GPUs: {WORDS[BUSY]})"


def test_the_users_of_busy_devices_are_named_with_the_memory() -> None:
    def used(n: int, user: str, mib: int) -> DeviceView:
        processes = (DeviceProcess(7, 10 * MIB, "G", "root", "Xorg"), DeviceProcess(8, mib * MIB, "C", user, "python"))
        sample = Sample(f"GPU-{n}", 1.0, mib * MIB, 24 * build.GIB, processes)
        known = Availability(f"GPU-{n}", state=BUSY, why=f"{mib}", sample=sample, foreign_bytes=mib * MIB)
        return build.device_view(n, availability=known)

    devices = [*(view(n, RUNNING) for n in range(5)), used(5, "bo", 9216), view(6, CHECKING)]
    notes = "5 GPUs run your jobs, GPU 5 is used by bo (9.0 GiB, python), GPU 6: free at 2 of 3 checks"
    assert why(plan(devices, jobs(1)))[1] == f"waits for a GPU ({notes})"
    notes = "GPU 0, GPU 2 are used by bo (3.0 GiB in all, python), GPU 1 is used by cy (3.0 GiB, python)"
    devices = [used(0, "bo", 1024), used(1, "cy", 3072), used(2, "bo", 2048)]
    assert why(plan(devices, jobs(1)))[1] == f"waits for a GPU ({notes})"


# ---- what is not needed ----------------------------------------------------------------------------


def test_what_is_held_and_not_needed_is_released() -> None:
    assert plan([view(0, held=True), view(1, held=True)], jobs(1)).actions == (Release("GPU-1"), Start(1, ("GPU-0",)))
    assert plan([view(0, held=True), view(1)]).actions == (Release("GPU-0"),)


@pytest.mark.parametrize("state", [BUSY, CHECKING, LOST, SET_ASIDE, DeviceState.UNKNOWN])
def test_a_device_that_will_not_serve_soon_is_released(state: DeviceState) -> None:
    assert plan([view(0, state, held=True)], jobs(1)).actions == (Release("GPU-0"),)


@pytest.mark.parametrize("fact", [AttemptFact.ALIVE, AttemptFact.LINGERING])
def test_the_devices_of_open_attempts_and_settling_ones_are_kept(fact: AttemptFact) -> None:
    devices = [view(0, RUNNING, held=True), view(1, SETTLING, held=True)]
    assert plan(devices, [], [build.attempt(9, 0, fact=fact)]).actions == ()


def test_devices_are_released_before_others_are_claimed() -> None:
    assert plan([view(0), view(1, held=True)], jobs(1), max_gpus=1).actions == (
        Release("GPU-1"),
        Claim(1, ("GPU-0",)),
    )


def test_the_device_of_an_attempt_that_cannot_be_ended_is_left_to_its_shepherd() -> None:
    stuck = Outcome(OutcomeKind.TIMED_OUT, cause="unkillable")
    attempt = build.attempt(9, 0, fact=AttemptFact.EXITED, outcome=stuck)
    found = plan([view(0, SETTLING, held=True), view(1)], jobs(1), [attempt], max_gpus=1)
    assert [type(action) for action in found.actions] == [Close, Release, Claim]
    assert found.actions[1:] == (Release("GPU-0"), Claim(1, ("GPU-1",)))
    found = plan([view(0, FREE, held=True)], jobs(1), [attempt])
    assert found.actions[1:] == (Release("GPU-0"),)


# ---- limits ----------------------------------------------------------------------------------------


def test_no_more_than_max_gpus() -> None:
    found = plan([view(n) for n in range(4)], jobs(3), max_gpus=2)
    assert found.actions == (Claim(1, ("GPU-0",)), Claim(2, ("GPU-1",)))
    assert why(found, 3) == ("max_gpus", "this queue holds 2 of the 2 GPUs that it may (--max-gpus)")


def test_a_full_queue_says_so_whatever_the_other_devices_do() -> None:
    found = plan([view(0, RUNNING, held=True), view(1, CHECKING)], jobs(1), [build.attempt(9, 0)], max_gpus=1)
    assert why(found) == ("max_gpus", "this queue holds 1 of the 1 GPUs that it may (--max-gpus)")


def test_running_and_settling_devices_count_for_max_gpus() -> None:
    devices = [view(0, RUNNING, held=True), view(1, SETTLING, held=True), view(2), view(3)]
    assert why(plan(devices, jobs(1), [build.attempt(9, 0)], max_gpus=2))[0] == "max_gpus"
    assert plan(devices, jobs(1), [build.attempt(9, 0)], max_gpus=3).actions == (Claim(1, ("GPU-2",)),)


def test_a_settling_device_that_is_not_held_counts_for_nobody() -> None:
    assert plan([view(0, SETTLING), view(1)], jobs(1), max_gpus=1).actions == (Claim(1, ("GPU-1",)),)


def test_the_devices_of_several_attempts_and_jobs_count_one_by_one() -> None:
    devices = [view(n, RUNNING, held=True) for n in range(3)] + [view(3), view(4)]
    found = plan(devices, jobs(1, gpus=2), [build.attempt(9, 0, 1, 2)], max_gpus=4)
    assert why(found) == ("max_gpus", "this queue holds 3 of the 4 GPUs that it may (--max-gpus)")


def test_a_job_that_is_larger_than_max_gpus_says_so() -> None:
    assert why(plan([view(n) for n in range(4)], jobs(1, gpus=3), max_gpus=2)) == (
        "never",
        "waits in vain: wants 3 GPUs, and this queue may hold 2 at most: "
        "--max-gpus 3 at a start, or `gpusched set max-gpus=3`, raises that",
    )


def test_lowered_limits_leave_running_jobs_alone() -> None:
    devices = [view(0, RUNNING, held=True), view(1, RUNNING, held=True), view(2)]
    found = plan(devices, jobs(1), [build.attempt(8, 0), build.attempt(9, 1)], max_gpus=1)
    assert (found.actions, why(found)[0]) == ((), "max_gpus")


def test_cpu_jobs_wait_for_no_gpu() -> None:
    found = plan([view(0, BUSY)], [build.job(1), build.job(2, 0), build.job(3, 0), build.job(4, 0)])
    assert found.actions == (Start(2, ()), Start(3, ()))
    assert why(found, 4) == ("cpu_jobs", "no more than 2 CPU jobs at once (--cpu-jobs)")


def test_running_cpu_jobs_count() -> None:
    found = plan([], [build.job(1, 0), build.job(2, 0)], [build.attempt(9), build.attempt(8, 0)])
    assert (found.actions, why(found, 2)[0]) == ((Start(1, ()),), "cpu_jobs")


# ---- order -----------------------------------------------------------------------------------------


def test_smaller_jobs_pass_a_larger_one_for_a_while_only() -> None:
    waiting = [build.job(1, 2), build.job(2), build.job(3)]
    found = plan([view(0), view(1, BUSY)], waiting)
    assert found.actions == (Claim(2, ("GPU-0",)),)
    assert why(found, 1)[0] == why(found, 3)[0] == "devices"
    assert found.passed == (1,)
    late = plan([view(0), view(1, BUSY)], waiting, waited_since={1: 100.0 - 600.0})
    assert late.actions == ()
    assert why(late, 2) == ("devices", "waits for a GPU; GPU 0 is kept for job 1, which has waited 10 min for 2 GPUs")
    assert why(late, 3) == ("behind", f"behind job 2: {late.reasons[2].text}")


def test_a_job_that_backs_off_holds_nobody_up() -> None:
    found = plan([view(0)], [build.job(1, not_before=104.6), build.job(2)])
    assert found.actions == (Claim(2, ("GPU-0",)),)
    assert why(found) == ("back_off", "tried again in 5 s")
    assert plan([view(0)], [build.job(1, not_before=100.0)]).actions == (Claim(1, ("GPU-0",)),)


def test_a_device_to_avoid_is_used_last() -> None:
    job = build.job(1, avoid=frozenset({"GPU-0", "GPU-1"}))
    assert plan([view(0), view(1), view(2)], [job]).actions == (Claim(1, ("GPU-2",)),)
    assert plan([view(0), view(1), view(2, BUSY)], [job]).actions == (Claim(1, ("GPU-0",)),)
    assert plan([view(0), view(1), view(2)], [replace(job, gpus=2)]).actions == (Claim(1, ("GPU-2", "GPU-0")),)


# ---- after an out-of-memory ------------------------------------------------------------------------

SMALL = 24 * build.GIB - 4 * MIB  # what was free on a card of 24 GiB when the job ran out of memory


def test_after_out_of_memory_a_larger_device_is_taken() -> None:
    found = plan([view(0), view(1, total_gib=80), view(2, total_gib=80)], [build.job(1, above_bytes=SMALL)])
    assert found.actions == (Claim(1, ("GPU-1",)),)


def test_a_larger_device_is_waited_for_and_others_go_by() -> None:
    found = plan([view(0), view(1, BUSY, total_gib=80)], [build.job(1, above_bytes=SMALL), build.job(2), build.job(3)])
    assert found.actions == (Claim(2, ("GPU-0",)),)
    assert why(found)[0] == "devices"
    assert why(found)[1].startswith("waits for a GPU with more than 24572 MiB free, too little the last time (GPU 0: ")
    assert why(found, 3)[0] == "devices"


def test_a_larger_device_goes_to_the_first_that_waits_for_it() -> None:
    waiting = [build.job(1, above_bytes=SMALL), build.job(2, above_bytes=SMALL), build.job(3)]
    found = plan([view(0), view(1, total_gib=80)], waiting)
    assert found.actions == (Claim(1, ("GPU-1",)), Claim(3, ("GPU-0",)))


def test_larger_devices_are_kept_for_a_job_with_several_that_has_waited() -> None:
    devices = [view(0), view(1, total_gib=80), view(2, BUSY, total_gib=80)]
    found = plan(
        devices, [build.job(1, 2, above_bytes=SMALL), build.job(2), build.job(3)], waited_since={1: 0.0 - 600.0}
    )
    assert found.actions == (Claim(2, ("GPU-0",)),)
    assert why(found)[0] == why(found, 3)[0] == "devices"


def test_cards_of_one_size_are_not_waited_for() -> None:
    """Idle cards differ by a few MiB: a job that failed on the emptiest would wait for ever."""
    found = plan([view(0, foreign_mib=9), view(1, foreign_mib=5)], [build.job(1, above_bytes=SMALL)])
    assert found.actions == (Claim(1, ("GPU-1",)),)
    found = plan([view(0, foreign_mib=9), view(1, BUSY)], [build.job(1, above_bytes=SMALL)])
    assert found.actions == (Claim(1, ("GPU-0",)),)


def test_where_much_foreign_memory_is_allowed_an_emptier_device_is_not_certain() -> None:
    devices = [view(0, foreign_mib=2000), view(1, CHECKING, foreign_mib=2000)]
    job = build.job(1, above_bytes=24 * build.GIB - 2000 * MIB)
    assert plan(devices, [job], threshold_bytes=3000 * MIB).actions == (Claim(1, ("GPU-0",)),)


@pytest.mark.parametrize("state", [LOST, SET_ASIDE])
def test_a_larger_device_that_is_out_of_use_is_not_waited_for(state: DeviceState) -> None:
    found = plan([view(0), view(1, state, total_gib=80)], [build.job(1, above_bytes=SMALL)])
    assert found.actions == (Claim(1, ("GPU-0",)),)


def test_one_larger_device_is_no_help_for_a_job_with_two() -> None:
    found = plan([view(0), view(1), view(2, BUSY, total_gib=80)], [build.job(1, 2, above_bytes=SMALL)])
    assert found.actions == (Claim(1, ("GPU-0", "GPU-1")),)


def test_unknown_memory_is_not_room() -> None:
    devices = [view(0, total_gib=None, foreign_mib=None), view(1, total_gib=80, foreign_mib=None), view(2)]
    found = plan(devices, [build.job(1, above_bytes=SMALL - build.GIB)])
    assert found.actions == (Claim(1, ("GPU-2",)),)


# ---- closed ----------------------------------------------------------------------------------------


def test_nothing_starts_when_closed_and_claims_are_let_go() -> None:
    found = plan([view(0, held=True), view(1)], [build.job(1), build.job(2, 0)], closed_to_starts="stopping (Ctrl-C)")
    assert found.actions == (Release("GPU-0"),)
    assert why(found) == why(found, 2) == ("closed", "stopping (Ctrl-C)")


def test_while_nvml_is_silent_only_cpu_jobs_start() -> None:
    devices = [view(0, DeviceState.UNKNOWN, held=True)]
    found = plan(
        devices, [build.job(1), build.job(2, 0)], [build.attempt(9, 0)], gpus_closed="NVML has not answered for 10 s"
    )
    assert found.actions == (Start(2, ()),)
    assert why(found) == ("nvml", "NVML has not answered for 10 s")


# ---- attempts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", [AttemptFact.EXITED, AttemptFact.LOST, AttemptFact.NOT_STARTED])
def test_an_ended_attempt_is_closed_with_its_verdict(fact: AttemptFact) -> None:
    outcome = Outcome(OutcomeKind.EXITED, exit_code=1)
    attempt = build.attempt(9, 0, fact=fact, outcome=outcome, tries=1, retries=2, losses=1, cancel_requested=False)
    assert plan([], [], [attempt]).actions == (Close(attempt, Verdict(JobEvent.RETRIED, 2, 1, 2.0)),)
    cancelled = replace(attempt, cancel_requested=True)
    assert plan([], [], [cancelled], stop_all=True).actions == (Close(cancelled, Verdict(JobEvent.CANCELLED, 1, 1)),)


@pytest.mark.parametrize("fact", [AttemptFact.ALIVE, AttemptFact.LINGERING])
def test_an_attempt_is_stopped_once(fact: AttemptFact) -> None:
    asked, other = build.attempt(8, 0, fact=fact, cancel_requested=True), build.attempt(9, 1, fact=fact)
    assert plan([], [], [asked, other]).actions == (Stop(asked),)
    assert plan([], [], [replace(asked, stop_sent=True), other]).actions == ()
    assert plan([], [], [asked, other], stop_all=True).actions == (Stop(asked), Stop(other))
    assert plan([], [], [replace(asked, stop_sent=True)], stop_all=True).actions == ()


def test_the_device_of_an_ended_attempt_settles_before_it_serves_again() -> None:
    ended = build.attempt(9, 0, fact=AttemptFact.EXITED, outcome=Outcome(OutcomeKind.EXITED, exit_code=0))
    found = plan([view(0, SETTLING, held=True)], jobs(1), [ended])
    assert found.actions == (Close(ended, Verdict(JobEvent.SUCCEEDED, 1, 0)),)
    assert why(found)[0] == "devices"


# ---- a story ---------------------------------------------------------------------------------------


def test_somebody_takes_the_card_between_check_and_launch() -> None:
    trace = read_trace("33-arrives.nvml.json")
    criteria = Criteria(max_checks=3)
    known = {uuid: Availability(uuid) for uuid in trace.uuids}
    held: set[str] = set()
    looked: set[str] = set()
    story: list[tuple[int, tuple[Action, ...]]] = []
    for tick in range(10):
        for polled in (True, False):  # a look, where a claim was just taken, sees what the next poll will
            reading = trace[tick if polled else tick + 1]
            for device, sample in zip(reading.devices, reading.samples, strict=True):
                if polled or device.uuid in held:
                    known[device.uuid] = fold(known[device.uuid], device, sample, polled=polled, criteria=criteria)
                    looked |= {device.uuid} & held
            views = [
                build.device_view(n, availability=known[u], held=u in held, looked=u in looked)
                for n, u in enumerate(trace.uuids)
            ]
            found = plan(views, [] if any(isinstance(a, Start) for _, acts in story for a in acts) else jobs(1))
            if found.actions:
                story.append((tick, found.actions))
            for action in found.actions:
                if isinstance(action, Claim):
                    held |= set(action.devices)
                elif isinstance(action, Release):
                    held.discard(action.uuid)
                    looked.discard(action.uuid)
    one, three = trace.uuids[1], trace.uuids[3]
    assert story[:4] == [
        (2, (Claim(1, (one,)),)),
        (2, (Release(one),)),
        (7, (Claim(1, (three,)),)),
        (7, (Start(1, (three,)),)),
    ]


# ---- properties ------------------------------------------------------------------------------------

STATES = st.sampled_from([FREE, FREE, FREE, CHECKING, BUSY, SETTLING, LOST, SET_ASIDE, DeviceState.UNKNOWN])
FACTS = st.sampled_from([AttemptFact.ALIVE, AttemptFact.ALIVE, AttemptFact.LINGERING, AttemptFact.EXITED])
WAITING = st.builds(
    build.job,
    gpus=st.sampled_from([0, 1, 1, 1, 2, 3]),
    not_before=st.sampled_from([0.0, 0.0, 0.0, 101.0]),
    avoid=st.frozensets(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]), max_size=2),
    above_bytes=st.sampled_from([0, 0, 0, 0, 10 * build.GIB, SMALL, 79 * build.GIB]),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    devices, attempts = [], []
    numbers = draw(st.permutations(range(draw(st.integers(0, 6)))))
    for n in numbers:
        occupied = draw(st.booleans()) and draw(st.booleans())
        held = draw(st.booleans())
        devices.append(
            view(
                n,
                RUNNING if occupied else draw(STATES),
                held=held or occupied,
                looked=held and draw(st.booleans()),
                total_gib=draw(st.sampled_from([24, 24, 80, None])),
                foreign_mib=draw(st.sampled_from([0, 4, 400, None])),
                refused="" if held else draw(st.sampled_from(["", "", "claimed by bo's gpusched"])),
            )
        )
        if occupied:
            fact = draw(FACTS)
            outcome = Outcome(OutcomeKind.EXITED, exit_code=draw(st.integers(0, 1)))
            attempts.append(
                build.attempt(
                    100 + n,
                    n,
                    fact=fact,
                    outcome=outcome if fact is AttemptFact.EXITED else None,
                    cancel_requested=draw(st.booleans()),
                    stop_sent=draw(st.booleans()),
                )
            )
    waiting = [replace(job, id=i) for i, job in enumerate(draw(st.lists(WAITING, max_size=12)), 1)]
    return Snapshot(
        100.0,
        Limits(draw(st.integers(1, 5)), draw(st.integers(1, 2))),
        tuple(devices),
        tuple(waiting),
        tuple(attempts),
        closed_to_starts=draw(st.sampled_from(["", "", "", "stopping"])),
        gpus_closed=draw(st.sampled_from(["", "", "", "NVML is silent"])),
        stop_all=draw(st.booleans()),
    )


def of(kind: type, actions: Iterable[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots())
def test_every_waiting_job_gets_an_action_or_exactly_one_reason(snapshot: Snapshot) -> None:
    found = make_plan(snapshot)
    acted = [action.job_id for action in found.actions if isinstance(action, (Start, Claim))]
    told = Counter([*acted, *found.reasons])
    assert told == Counter(job.id for job in snapshot.waiting)
    assert all(reason.text and reason.kind for reason in found.reasons.values())


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots())
def test_one_snapshot_gives_one_plan(snapshot: Snapshot) -> None:
    assert make_plan(snapshot) == make_plan(snapshot)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots())
def test_what_starts_is_free_held_looked_at_and_nobody_elses(snapshot: Snapshot) -> None:
    views = {device.uuid: device for device in snapshot.devices}
    gpus = {job.id: job.gpus for job in snapshot.waiting}
    on_jobs = {uuid for attempt in snapshot.attempts for uuid in attempt.devices}
    found = make_plan(snapshot)
    used: list[str] = []
    for action in found.actions:
        if isinstance(action, (Start, Claim)):
            used += action.devices
            for uuid in action.devices:
                device = views[uuid]
                assert device.availability.state is FREE
                assert (device.held, device.looked or isinstance(action, Claim)) == (isinstance(action, Start), True)
                assert not (device.refused and isinstance(action, Claim))
        if isinstance(action, Start):
            assert len(action.devices) == gpus[action.job_id]
    assert len(used) == len(set(used))
    assert not on_jobs.intersection(used)
    if snapshot.closed_to_starts:
        assert not of(Start, found.actions) + of(Claim, found.actions)
    if snapshot.gpus_closed:
        assert not used


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots())
def test_never_more_than_the_limits_and_nothing_is_kept_for_nothing(snapshot: Snapshot) -> None:
    found = make_plan(snapshot)
    on_jobs = {u for a in snapshot.attempts if a.fact is not AttemptFact.EXITED for u in a.devices}
    settling = {d.uuid for d in snapshot.devices if d.held and d.availability.state is SETTLING}
    released = {action.uuid for action in found.actions if isinstance(action, Release)}
    claimed = {uuid for action in found.actions if isinstance(action, Claim) for uuid in action.devices}
    held = {device.uuid for device in snapshot.devices if device.held}
    assert released <= held - on_jobs - settling
    after = (held - released) | claimed
    assert len(after | on_jobs) <= max(snapshot.limits.max_gpus, len(on_jobs | settling))
    waits = {job.id for job in snapshot.waiting if job.gpus}
    if not waits:
        assert after <= on_jobs | settling
    cpu = [a for a in snapshot.attempts if not a.devices and a.fact is not AttemptFact.EXITED]
    started = [action for action in found.actions if isinstance(action, Start) and not action.devices]
    assert len(cpu) + len(started) <= max(snapshot.limits.cpu_jobs, len(cpu))


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots(), st.integers(1, 3))
def test_the_preferred_devices_are_used_first(snapshot: Snapshot, gpus: int) -> None:
    """For jobs without a wish of their own, whatever is held already."""
    plain = tuple(build.job(job.id, gpus) for job in snapshot.waiting)
    found = make_plan(replace(snapshot, waiting=plain))
    kept = {uuid for attempt in snapshot.attempts for uuid in attempt.devices}
    ready = [d.uuid for d in snapshot.devices if d.availability.state is FREE and not d.refused and d.uuid not in kept]
    released = {action.uuid for action in found.actions if isinstance(action, Release)}
    views = {device.uuid: device for device in snapshot.devices}
    used = [uuid for uuid in ready if views[uuid].held and uuid not in released]
    used += [uuid for action in found.actions if isinstance(action, Claim) for uuid in action.devices]
    assert set(used) == set(ready[: len(used)])
    assert len(used) % gpus == 0


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(snapshots())
def test_ended_attempts_are_closed_and_unwanted_ones_stopped_once(snapshot: Snapshot) -> None:
    found = make_plan(snapshot)
    closed = [action.attempt for action in found.actions if isinstance(action, Close)]
    assert closed == [a for a in snapshot.attempts if a.fact is AttemptFact.EXITED]
    stopped = [action.attempt for action in found.actions if isinstance(action, Stop)]
    unwanted = [a for a in snapshot.attempts if (a.cancel_requested or snapshot.stop_all) and not a.stop_sent]
    assert stopped == [a for a in unwanted if a not in closed]
