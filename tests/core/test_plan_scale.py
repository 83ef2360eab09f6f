"""The planner alone with 100,000 jobs on 64 devices, and how its work grows. Counts work, never seconds."""

from __future__ import annotations

import heapq
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from types import FrameType
from typing import Any

import pytest

from gpusched.core.jobs.lifecycle import JobEvent
from gpusched.core.model import MIB, Attempt, AttemptFact, Job, Outcome, OutcomeKind
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, Close, DeviceView, Limits, Release, Snapshot, Start
from tests.support import build

pytestmark = pytest.mark.slow

DEVICES = 64
OK = Outcome(OutcomeKind.EXITED, exit_code=0)
FREE = {n: Availability(f"GPU-{n}", 10, DeviceState.FREE, "free", foreign_bytes=4 * MIB) for n in range(DEVICES)}
STATES = {
    state: {n: replace(known, state=state) for n, known in FREE.items()}
    for state in (DeviceState.FREE, DeviceState.RUNNING, DeviceState.SETTLING, DeviceState.BUSY)
}


@dataclass
class Simulation:
    """Jobs that take a few ticks each; memory is back one tick after a job's end. Nobody else is on the box."""

    jobs: list[Job]
    seed: int = 1
    limits: Limits = field(default_factory=lambda: Limits(DEVICES, 4))
    plans: int = 0
    most_looked_at: int = 0
    started: list[int] = field(default_factory=list)  # in order
    now: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.gpu_jobs = deque(job for job in self.jobs if job.gpus)
        self.cpu_jobs = deque(job for job in self.jobs if not job.gpus)
        self.state = dict.fromkeys(range(DEVICES), DeviceState.FREE)
        self.held: set[int] = set()
        self.looked: set[int] = set()
        self.open: dict[int, Attempt] = {}
        self.ends: list[tuple[int, int]] = []  # tick, job
        self.back: list[tuple[int, int]] = []  # tick, device whose memory is back
        self.wanted = self.limits.max_gpus + self.limits.cpu_jobs + 8

    def run(self) -> None:
        while self.gpu_jobs or self.cpu_jobs or self.open:
            self.step()
            moments = [heap[0][0] for heap in (self.ends, self.back) if heap]
            if self.plan() or not moments:
                continue  # a claim or an end asks for another turn at once
            self.now = min(moments)

    def step(self) -> None:
        """Note what has happened by now, as the loop does before it plans."""
        while self.ends and self.ends[0][0] <= self.now:
            _, job_id = heapq.heappop(self.ends)
            attempt = self.open[job_id] = replace(self.open[job_id], fact=AttemptFact.EXITED, outcome=OK)
            for device in map(number, attempt.devices):
                self.state[device] = DeviceState.SETTLING
                heapq.heappush(self.back, (self.now + 1, device))
        while self.back and self.back[0][0] <= self.now:
            self.state[heapq.heappop(self.back)[1]] = DeviceState.FREE
        self.looked |= self.held

    def plan(self) -> bool:
        """Plan and act; whether another plan may find more to do without anything happening."""
        head = (*islice(self.gpu_jobs, self.wanted), *islice(self.cpu_jobs, self.wanted))
        views = tuple(
            build.device_view(n, availability=STATES[state][n], held=n in self.held, looked=n in self.looked)
            for n, state in self.state.items()
        )
        plan = make_plan(Snapshot(float(self.now), self.limits, views, head, tuple(self.open.values())))
        self.plans += 1
        self.most_looked_at = max(self.most_looked_at, len(head))
        again = False
        for action in plan.actions:
            if isinstance(action, Close):
                assert action.verdict.event is JobEvent.SUCCEEDED
                del self.open[action.attempt.job_id]
                again = True
            elif isinstance(action, Start):
                self.start(action)
            elif isinstance(action, Claim):
                self.held |= set(map(number, action.devices))
                again = True
            elif isinstance(action, Release):
                self.held.remove(number(action.uuid))
                self.looked.discard(number(action.uuid))
        return again

    def start(self, action: Start) -> None:
        job = self.jobs[action.job_id]
        (self.gpu_jobs if action.devices else self.cpu_jobs).remove(job)  # raises for one that has started already
        assert job.gpus == len(action.devices)
        for device in map(number, action.devices):
            assert self.state[device] is DeviceState.FREE  # so it is on no other job
            assert device in self.held
            self.state[device] = DeviceState.RUNNING
        self.open[job.id] = build.attempt(job.id, *action.devices)
        self.started.append(job.id)
        heapq.heappush(self.ends, (self.now + self.random.randint(2, 8), job.id))


def number(uuid: str) -> int:
    return int(uuid.removeprefix("GPU-"))


def test_100_000_jobs_on_64_devices() -> None:
    simulation = Simulation([build.job(i) for i in range(100_000)])
    simulation.run()
    assert simulation.started == list(range(100_000))
    assert simulation.most_looked_at == simulation.wanted
    assert simulation.plans < 2.1 * simulation.now  # one when jobs end, one when their memory is back
    assert simulation.now < 1.01 * 100_000 / DEVICES * (5 + 1)  # no device idles while jobs wait


@pytest.mark.parametrize("seed", range(3))
def test_jobs_of_every_size(seed: int) -> None:
    draw = random.Random(seed)
    simulation = Simulation([build.job(i, draw.choice([0, 1, 1, 2, 4])) for i in range(4000)], seed, Limits(48, 3))
    simulation.run()
    assert sorted(simulation.started) == list(range(4000))
    assert simulation.most_looked_at <= 2 * simulation.wanted


# ---- how the work grows ----------------------------------------------------------------------------


def count_steps(work: Callable[[], object]) -> int:
    """Bytecode instructions that `work` takes."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


def box(state: DeviceState, *, free: int = 0) -> tuple[DeviceView, ...]:
    """64 devices, the first `free` of them free, the others in `state`."""
    states = [DeviceState.FREE if n < free else state for n in range(DEVICES)]
    return tuple(build.device_view(n, availability=STATES[each][n]) for n, each in enumerate(states))


WAITS = {
    "behind": (box(DeviceState.BUSY, free=8), build.job(0)),
    "back_off": (box(DeviceState.BUSY, free=8), build.job(0, not_before=9.0)),
    "cpu_jobs": (box(DeviceState.BUSY), build.job(0, 0)),
    "max_gpus": (box(DeviceState.BUSY, free=DEVICES), build.job(0)),
    "devices": (box(DeviceState.BUSY, free=DEVICES - 1), build.job(0, above_bytes=24 * build.GIB - 501 * MIB, gpus=2)),
}


@pytest.mark.parametrize("kind", WAITS)
def test_the_plan_of_a_whole_queue_is_linear(kind: str) -> None:
    views, sort = WAITS[kind]

    def steps(n: int) -> int:
        waiting = tuple(replace(sort, id=i) for i in range(n))
        snapshot = Snapshot(0.0, Limits(32, 2), views, waiting)
        assert n / 2 < sum(reason.kind in (kind, "behind") for reason in make_plan(snapshot).reasons.values()) <= n
        return count_steps(lambda: make_plan(snapshot))

    assert steps(10_000) < 10.5 * steps(1000)


def test_a_tick_costs_the_same_with_100_jobs_and_with_100_000() -> None:
    """After the same 300 starts the same instructions plan the head of a short queue and of a long one."""
    costs = []
    for n in (1000, 100_000):
        simulation = Simulation([build.job(i) for i in range(n)])
        while len(simulation.started) < 300:
            simulation.step()
            if not simulation.plan():
                simulation.now += 1
        simulation.step()
        costs.append(count_steps(simulation.plan))
    assert costs[0] == costs[1]
