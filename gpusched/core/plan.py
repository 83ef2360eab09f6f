"""Snapshot -> Plan: what to close, stop, claim, look at, start and release now, and why each other job waits.

This file is the scheduler; core/placement says which devices a job gets. Both are pure: time is a field of the
snapshot, and a plan is a proposal (a claim may be refused by a colleague's gpusched; then the next snapshot says so).

A device goes through: free -> Claim -> one more look -> Start. A device that is held after a job of ours, and
whose newest look (newer than the claim) found it free, skips the first two. Jobs that state their memory may join a
device that this dispatcher holds already: Look -> Start.
"""

from __future__ import annotations

from dataclasses import replace

from gpusched.core.lifecycle import JobEvent, Verdict, judge
from gpusched.core.model import MIB, Attempt
from gpusched.core.placement import Board
from gpusched.core.snapshot import (
    ENDED_FACTS,
    MARGIN_BYTES,
    Action,
    Close,
    Look,
    Plan,
    Reason,
    Release,
    Snapshot,
    Stop,
)

BUDGET_STEP_BYTES = 256 * MIB  # budgets are rounded up to this, so that there are few shapes of jobs
GROWTH = 1.25  # of a budget, after an out-of-memory


def make_plan(snapshot: Snapshot) -> Plan:
    """One step for everything that can be decided now."""
    actions: list[Action] = []
    for attempt in snapshot.attempts:
        if attempt.fact in ENDED_FACTS and attempt.outcome is not None:
            actions.append(Close(attempt, _verdict(attempt, snapshot)))
        elif attempt.fact in ENDED_FACTS:
            continue  # how it ended is not known yet
        elif (attempt.cancel_requested or snapshot.stop_all) and not attempt.stop_sent:
            actions.append(Stop(attempt))
    board = Board(snapshot)
    places: list[Action] = []
    reasons: dict[int, Reason] = {}
    for job in snapshot.waiting:
        found = board.place(job)
        if isinstance(found, Reason):
            reasons[job.id] = found
        else:
            places.append(found)
    looks = board.looks()
    if looks:
        actions.append(Look(looks))
    # released before others are claimed, so that max_gpus holds in between too
    actions.extend(Release(uuid) for uuid in board.unused())
    return Plan((*actions, *places), reasons, tuple(board.bypass.passed))


def _verdict(attempt: Attempt, snapshot: Snapshot) -> Verdict:
    assert attempt.outcome is not None
    verdict = judge(
        attempt.outcome,
        retries=attempt.retries,
        tries=attempt.tries,
        losses=attempt.losses,
        cancel_asked=attempt.cancel_requested,
    )
    if verdict.event is JobEvent.RETRIED and attempt.outcome.cause == "gpu_oom" and attempt.mem_bytes:
        budget = grown_budget(attempt.mem_bytes, attempt.peak_device_bytes)
        largest = max((d.total_bytes or 0 for d in snapshot.devices), default=0)
        if largest and budget > largest - MARGIN_BYTES:
            note = f"needs {budget // MIB} MiB after an out-of-memory, and no allowed GPU has that much"
            return replace(verdict, event=JobEvent.FAILED, delay_s=0.0, note=note)
    return verdict


def round_budget(stated_bytes: int) -> int:
    """A budget as the plan counts it: rounded up to the next step."""
    return -(-stated_bytes // BUDGET_STEP_BYTES) * BUDGET_STEP_BYTES


def grown_budget(budget_bytes: int, peak_bytes: int | None) -> int:
    """The budget of the next attempt after an out-of-memory."""
    return round_budget(int(GROWTH * max(budget_bytes, peak_bytes or 0)))
