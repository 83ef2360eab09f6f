"""Cores and memory of the host: who gets them, who waits and why."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.model import MIB, JobRow
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Limits, Plan, Snapshot, Start
from tests.support import build
from tests.support.build import GIB

NOW = 1000.0
LIMITS = Limits(max_gpus=4, cpu_jobs=1, cpus=8, ram_bytes=16 * GIB)


def cpu_job(job_id: int, cpus: int = 0, ram_gib: float = 0) -> JobRow:
    return build.job(job_id, 0, cpus=cpus, ram_bytes=round(ram_gib * GIB), position=job_id)


def plan(*waiting: JobRow, running: tuple[JobRow, ...] = (), limits: Limits = LIMITS) -> Plan:
    attempts = tuple(build.attempt(job.id, cpus=job.cpus, ram_bytes=job.ram_bytes, gpus=0) for job in running)
    devices = tuple(build.device_view(n, held=True) for n in range(2))
    return make_plan(Snapshot(NOW, limits, devices, waiting, attempts))


def started(found: Plan) -> list[int]:
    return [action.job_id for action in found.actions if isinstance(action, Start)]


def test_jobs_that_state_cores_stay_within_them_and_others_are_counted_as_ever() -> None:
    found = plan(cpu_job(1, 4), cpu_job(2, 4), cpu_job(3, 1), cpu_job(4), cpu_job(5))
    assert started(found) == [1, 2, 4]
    assert found.reasons[3].text == "needs 1 core, 0 of 8 are left (--cpus)"
    assert found.reasons[5].kind == "cpu_jobs"


def test_memory_is_shared_and_what_runs_counts() -> None:
    found = plan(cpu_job(2, ram_gib=9), cpu_job(3, ram_gib=8), running=(cpu_job(1, 2, 8),))
    assert started(found) == []
    assert found.reasons[2].text == "needs 9G of memory, 8G of 16G are left (--ram)"
    assert found.reasons[3].text == "behind job 2, which waits for cores or memory of the host"


def test_a_job_that_asks_for_more_than_there_is_keeps_nobody_waiting() -> None:
    found = plan(cpu_job(1, 9), cpu_job(2, ram_gib=17), cpu_job(3, 8))
    assert started(found) == [3]
    assert found.reasons[1].text == "waits in vain: needs 9 cores, and 8 are allowed here (--cpus)"
    assert found.reasons[2].text == "waits in vain: needs 17G of memory, and 16G are allowed here (--ram)"


def test_jobs_with_gpus_are_counted_too_and_a_job_without_a_gpu_takes_no_cores() -> None:
    gpu_jobs = [build.job(n, 1, cpus=4, position=n) for n in (1, 2, 3)]
    found = plan(*gpu_jobs, cpu_job(4, 1))
    assert started(found) == [1, 2]
    assert found.reasons[3].kind == "host"
    wide = build.job(1, 3, cpus=8, position=1)
    assert started(plan(wide, cpu_job(2, 8))) == [2]


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 20)), max_size=12), st.data())
def test_no_more_is_given_than_there_is_and_in_order(needs: list[tuple[int, int]], data: st.DataObject) -> None:
    jobs = [cpu_job(n, cpus, ram) for n, (cpus, ram) in enumerate(needs, 1)]
    cut = data.draw(st.integers(0, len(jobs)))
    running, waiting = tuple(jobs[:cut]), jobs[cut:]
    chosen = set(started(plan(*waiting, running=running)))
    given_to = [job for job in waiting if job.id in chosen and job.states_host]
    if given_to:
        assert sum(job.cpus for job in [*running, *given_to]) <= LIMITS.cpus
        assert sum(job.ram_bytes for job in [*running, *given_to]) <= LIMITS.ram_bytes + MIB
    possible = [job.id for job in waiting if job.states_host and job.cpus <= 8 and job.ram_bytes <= 16 * GIB]
    assert possible[: len(given_to)] == [job.id for job in given_to]
