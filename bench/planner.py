"""Measure the cost of decisions: the plan of the queue's head, of all waiting jobs, and a tick of a dispatcher."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.common import Box, Row, Unusable, cpu_seconds, median
from gpusched.common import simulation
from gpusched.core.model import MIB, Attempt, JobRow, JobState
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import DeviceView, Limits, Snapshot, Start
from gpusched.host.store import job_table

DEVICES = 64
HEAD = DEVICES + 10  # jobs that a dispatcher plans with
TICK_POLL_S = 0.1


def snapshot(waiting: int) -> Snapshot:
    """Return a snapshot: half of the devices run a job, a quarter is busy, a quarter is free and claimed."""
    devices, attempts = [], []
    for n in range(DEVICES):
        uuid = f"GPU-{n:08x}"
        kind = n % 4
        state = DeviceState.RUNNING if kind < 2 else DeviceState.BUSY if kind == 2 else DeviceState.FREE
        why = "8000 MiB in use by bo's python (pid 51), threshold 500 MiB" if kind == 2 else ""
        availability = Availability(uuid, 10, state, why, foreign_bytes=8000 * MIB if kind == 2 else 0)
        free = kind == 3
        devices.append(DeviceView(availability, 81920 * MIB, f"GPU {n}", held=kind < 2 or free, looked=free))
        if kind < 2:
            attempts.append(Attempt(JobRow(n + 1), 1, (uuid,)))
    rows = (JobRow(1000 + n, avoid=frozenset({"GPU-0"}) if n % 50 == 0 else frozenset()) for n in range(waiting))
    jobs = tuple(rows)
    return Snapshot(0.0, Limits(DEVICES, 2), tuple(devices), jobs, tuple(attempts))


def plan_ms(waiting: int, times: int) -> float:
    """Return the milliseconds of one plan, the median of `times`."""
    view = snapshot(waiting)
    results = []
    for _ in range(times):
        began = time.perf_counter()
        plan = make_plan(view)
        results.append((time.perf_counter() - began) * 1000)
        starts = sum(isinstance(action, Start) for action in plan.actions)
        if starts != DEVICES // 4 or starts + len(plan.reasons) != waiting:
            raise Unusable(f"{starts} starts and {len(plan.reasons)} reasons for {waiting} jobs")
    return median(results)


def tick_ms(directory: Path, waiting: int, seconds: float) -> float:
    """Return the CPU time of a dispatcher between two polls, while others use all of its devices."""
    directory.mkdir(parents=True)
    box = Box(directory, DEVICES, poll_s=TICK_POLL_S)
    for n in range(DEVICES):
        simulation.change_keys(f"{simulation.gpu_path(box.simulation, n)}/state", foreign=20_000)
    with box.running([f"true {n}" for n in range(waiting)], "--grace", "1") as process:
        board = box.queue / "devices.json"
        box.wait_for(board.exists, process)
        time.sleep(1.0)
        before, began = cpu_seconds(process.pid), time.monotonic()
        time.sleep(seconds)
        used, took = cpu_seconds(process.pid) - before, time.monotonic() - began
        with box.store() as store:
            if job_table.counts(store)[JobState.QUEUED] != waiting:
                raise Unusable("jobs were started on devices that others use")
    return used / (took / TICK_POLL_S) * 1000


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    few, many, times, seconds = (100, 1000, 3, 1.0) if quick else (1000, 10_000, 21, 10.0)
    report("plans")
    head, small, large = plan_ms(HEAD, times * 5), plan_ms(few, times), plan_ms(many, times)
    report(f"a dispatcher's ticks, {seconds:g} s")
    tick = tick_ms(work_dir / "tick", many, seconds)
    return [
        Row(f"plan of the head, {DEVICES} devices", head, "ms", at_most=20),
        Row(f"tick of a dispatcher, {many:,} waiting, {DEVICES} devices", tick, "ms of CPU", at_most=20),
        Row(f"plan of all {many:,}", large, "ms", f"plan of {few:,}", small, at_most=12, of_ratio=True),
    ]
