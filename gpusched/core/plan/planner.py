"""Make the plan of a snapshot: attempts to close and stop, devices to claim, read and release, jobs to start.

This file is the scheduler; core/plan/placement chooses the devices of a job. Both are pure: time is a field of the
snapshot, and a plan is a proposal (another user's gpusched may have the claim; then the next snapshot says so).

The way of a device: free -> Claim -> one more look -> Start. A device that is still claimed after a job of ours, and
that was free at its newest look (newer than the claim), skips the first two steps. Jobs that state their memory may
join a device that this dispatcher has claimed already: Look -> Start.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.core.jobs.job import round_budget
from gpusched.core.jobs.lifecycle import JobEvent, judge
from gpusched.core.model import MIB, Attempt, Outcome
from gpusched.core.plan.hand_back import find_surplus
from gpusched.core.plan.occupancy import Occupancy
from gpusched.core.plan.placement import Placement
from gpusched.core.plan.snapshot import (
    ENDED_FACTS,
    MARGIN_BYTES,
    Action,
    Close,
    DeviceView,
    Gather,
    Plan,
    Reason,
    Release,
    Snapshot,
    Stop,
)

GROWTH = 1.25  # of a budget, after an out-of-memory


def make_plan(snapshot: Snapshot) -> Plan:
    """Decide everything that can be decided now."""
    actions: list[Action] = []
    surplus = find_surplus(snapshot.attempts, snapshot.limits.max_gpus) if snapshot.hand_back else []
    for attempt in snapshot.attempts:
        if attempt.fact in ENDED_FACTS:
            if attempt.outcome is not None:  # else it is not known yet
                actions.append(close_of(attempt, attempt.outcome, snapshot.devices))
        elif (attempt.cancel_requested or snapshot.stop_all or attempt in surplus) and not attempt.stop_sent:
            actions.append(Stop(attempt))
    occupancy = Occupancy(snapshot)
    placement = Placement(snapshot, occupancy)
    starts: list[Action] = []
    reasons: dict[int, Reason] = {}
    for job in snapshot.waiting:
        placed = placement.place(job)
        if isinstance(placed, Reason):
            reasons[job.id] = placed
        else:
            starts.append(placed)
    gathered = placement.gather()
    occupancy.keep(device.uuid for device in gathered)
    gathers = [Gather((device.uuid,)) for device in gathered if not device.held]
    # released before others are claimed, so that max_gpus holds in between too
    releases = map(Release, occupancy.unused())
    return Plan(
        (*actions, *occupancy.looks(), *releases, *starts, *gathers),
        reasons,
        placement.passed,
        want=placement.want,
        left_to=placement.left_to,
        gathered=tuple(device.uuid for device in gathered),
    )


def close_of(attempt: Attempt, outcome: Outcome, devices: Sequence[DeviceView]) -> Close:
    """Return how an attempt that ended so is closed, where the next one may get these devices."""
    verdict = judge(outcome, attempt.job, cancel_asked=attempt.cancel_requested)
    if outcome.cause != "gpu_oom" or not attempt.job.mem_bytes:
        return Close(attempt, verdict)
    budget = grown_budget(attempt.job.mem_bytes, attempt.peak_device_bytes)
    if _could_fit(budget, attempt, devices):
        return Close(attempt, verdict, budget)
    if verdict.event is JobEvent.RETRIED:
        note = f"would need {budget // MIB} MiB after an out-of-memory, and too few allowed GPUs have that much"
        verdict = verdict._replace(event=JobEvent.FAILED, delay_s=0.0, note=note)
    return Close(attempt, verdict)


def _could_fit(budget_bytes: int, attempt: Attempt, devices: Sequence[DeviceView]) -> bool:
    """Return True if as many devices as the attempt had could ever offer this budget."""
    fitting = [d for d in devices if not d.total_bytes or d.capacity_bytes - MARGIN_BYTES >= budget_bytes]
    return sum(device.is_model(attempt.job.gpu_model) for device in fitting) >= len(attempt.devices)


def grown_budget(budget_bytes: int, peak_bytes: int | None) -> int:
    """Return the budget of the next attempt after an out-of-memory."""
    return round_budget(int(GROWTH * max(budget_bytes, peak_bytes or 0)))
