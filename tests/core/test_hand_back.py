"""The attempts that hand surplus GPUs back: the youngest, and no more than it takes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.model import Attempt, AttemptFact
from gpusched.core.plan.hand_back import find_surplus
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Limits, Snapshot, Stop
from tests.support import build


def ids(attempts: list[Attempt]) -> list[int]:
    return [attempt.job.id for attempt in attempts]


def test_the_youngest_go() -> None:
    running = [build.attempt(n, n, started_at=10.0 - n) for n in (1, 2, 3)]
    assert ids(find_surplus(running, 3)) == []
    assert ids(find_surplus(running, 2)) == [1]
    assert ids(find_surplus(running, 1)) == [1, 2]


def test_a_shared_device_is_as_old_as_its_oldest_job() -> None:
    shared = [build.attempt(1, 0, started_at=1.0), build.attempt(2, 0, started_at=9.0)]
    alone = build.attempt(3, 1, started_at=5.0)
    assert ids(find_surplus([*shared, alone], 1)) == [3]  # to stop job 2 would free nothing


def test_a_job_with_several_devices_frees_all_of_them() -> None:
    running = [build.attempt(1, 0, 1, started_at=9.0), build.attempt(2, 2, started_at=5.0)]
    assert ids(find_surplus(running, 2)) == [1]


def test_what_is_stopped_or_has_ended_already_counts_as_gone() -> None:
    first = build.attempt(1, 0, started_at=1.0)
    for going in ({"stop_sent": True}, {"cancel_requested": True}, {"fact": AttemptFact.EXITED}):
        assert find_surplus([first, build.attempt(2, 1, started_at=2.0, **going)], 1) == []


def test_cpu_jobs_stay() -> None:
    assert ids(find_surplus([build.attempt(1), build.attempt(2, 0)], 0)) == [2]


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 5), max_size=3), st.floats(0, 100)), max_size=8),
    st.integers(0, 6),
)
def test_what_stays_fits_and_nothing_goes_without_need(jobs: list[tuple[set[int], float]], limit: int) -> None:
    running = [build.attempt(n, *sorted(devices), started_at=at) for n, (devices, at) in enumerate(jobs)]
    surplus = find_surplus(running, limit)
    staying = [attempt for attempt in running if attempt not in surplus]
    assert len({uuid for attempt in staying for uuid in attempt.devices}) <= limit
    in_use = {uuid for attempt in running for uuid in attempt.devices}
    assert all(attempt.devices for attempt in surplus)
    assert not surplus or len(in_use) > limit


def test_the_plan_stops_them_only_when_it_is_asked_to() -> None:
    running = [build.attempt(n, n, started_at=float(n)) for n in (0, 1)]
    views = [build.device_view(n, held=True) for n in (0, 1)]
    at = Snapshot(0.0, Limits(max_gpus=1), tuple(views), attempts=tuple(running))
    for hand_back in (False, True):
        plan = make_plan(replace(at, hand_back=hand_back))
        stops = [action.attempt.job.id for action in plan.actions if isinstance(action, Stop)]
        assert stops == ([1] if hand_back else [])
    again = (running[0], replace(running[1], stop_sent=True))
    assert not make_plan(replace(at, attempts=again, hand_back=True)).actions
