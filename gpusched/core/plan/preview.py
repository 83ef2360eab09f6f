"""A list before it is submitted -> what would become of its jobs, and what the first of them would wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.core.documents import shown_command
from gpusched.core.jobs.readiness import DependencyTally, JobIndex, ListedJob, Readiness, UnknownReference, readiness
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Attempt, Dependency, JobRow, JobSpec, JobState, Requirements
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board
from gpusched.core.plan.planner import make_plan

FIRST_JOBS = 8  # waiting jobs whose reasons are shown


@dataclass(frozen=True, slots=True)
class DryRunJob:
    """One job of the list, or one that is no longer in it. `change`: add, keep, requeue or cancel."""

    job_id: int  # for a new job the id that it would get
    line: int
    change: str
    state: JobState  # after the change
    command: bytes
    needs: Requirements | None = None  # of a job that is in the list
    after: tuple[Dependency, ...] = ()


@dataclass(frozen=True, slots=True)
class DryRun:
    """The effect that a run would have. `reasons`: what each of the first waiting jobs would do, by job id.

    `counts` are the jobs that the queue has now; None: there is no queue. `error` says why the GPUs cannot be used.
    """

    path: str
    pid: int | None  # of the dispatcher that works on the queue
    counts: Mapping[JobState, int] | None
    removed: int  # of these, jobs whose line was removed
    jobs: tuple[DryRunJob, ...]
    board: Board
    max_checks: int
    poll_interval_s: float
    reasons: Mapping[int, str] = field(default_factory=dict)
    error: GpuschedError | None = None


def dry_run_jobs(
    change: QueueChange, rows: Mapping[int, JobRow], needs: Mapping[JobSpec, Requirements]
) -> tuple[DryRunJob, ...]:
    """Return the jobs of the list in its order, and behind them those that would be cancelled.

    `rows` are the jobs of the queue by id, and `needs` the requirements of each job of the list.
    """
    placed: list[tuple[int, DryRunJob]] = []
    for job_id, (spec, position) in enumerate(change.add, len(rows) + 1):
        placed.append((position, _listed(job_id, spec, "add", JobState.QUEUED, needs[spec])))
    for job_id, spec, position in change.keep:
        verb, state = ("requeue", JobState.QUEUED) if job_id in change.requeue else ("keep", rows[job_id].state)
        placed.append((position, _listed(job_id, spec, verb, state, needs[spec])))
    cancelled = (rows[job_id] for job_id in change.cancel)
    return (
        *(job for _, job in sorted(placed, key=lambda pair: pair[0])),
        *(DryRunJob(row.id, row.line, "cancel", JobState.CANCELLED, row.command) for row in cancelled),
    )


def _listed(job_id: int, spec: JobSpec, change: str, state: JobState, needs: Requirements) -> DryRunJob:
    return DryRunJob(job_id, spec.line, change, state, spec.command, needs=needs, after=spec.attributes.after)


# ---- the first jobs --------------------------------------------------------------------------------


def first_reasons(
    jobs: Sequence[DryRunJob],
    rows: Mapping[int, JobRow],
    attempts: Iterable[Attempt],
    board: Board,
    now: float,
) -> dict[int, str]:
    """Return where the first waiting jobs start or what they wait for, by job id, from the dispatcher's own plan."""
    blocked = _blocked(jobs)
    ready = [job for job in jobs if job.state is JobState.QUEUED and job.job_id not in blocked]
    first = sorted(ready, key=lambda job: -(job.needs.prio if job.needs else 0))[:FIRST_JOBS]
    waiting = [_waiting_job(job, rows.get(job.job_id)) for job in first]
    snapshot = observe.snapshot(board, now, waiting=waiting, attempts=attempts)
    plan = make_plan(snapshot)
    texts = {job_id: reason.sentence for job_id, reason in plan.reasons.items()}
    texts |= {job_id: f"starts on {where}" for job_id, where in observe.start_labels(plan, snapshot.devices).items()}
    return {job.job_id: texts[job.job_id] for job in first if job.job_id in texts}


def _waiting_job(job: DryRunJob, row: JobRow | None) -> JobRow:
    """Return the job as the plan would see it after the submission. `row`: its row, if the queue has it already."""
    needs = job.needs or Requirements()
    mem_bytes = needs.mem_bytes
    if row and row.mem_bytes and row.stated_mem_bytes == (needs.stated_mem_bytes or needs.mem_bytes):
        mem_bytes = row.mem_bytes  # it may have grown after an out-of-memory
    before = row if row and job.change != "requeue" else JobRow(job.job_id)
    return replace(before, gpus=needs.gpus, mem_bytes=mem_bytes, gpu_model=needs.gpu_model, tags=needs.tags)


def _blocked(jobs: Sequence[DryRunJob]) -> set[int]:
    """Return the ids of the jobs that other jobs of the list still keep from starting."""
    states = {job.job_id: job.state for job in jobs}
    index = JobIndex(ListedJob(job.job_id, job.needs.name, job.needs.tags) for job in jobs if job.needs is not None)
    blocked = set()
    for job in jobs:
        for dependency in job.after:
            try:
                ((kind, upstream),) = index.resolve(job.job_id, [dependency])
            except UnknownReference:  # a job whose line is gone: the queue knows it
                continue
            if readiness([(kind, DependencyTally.of([states[up] for up in upstream]))]) is not Readiness.READY:
                blocked.add(job.job_id)
    return blocked


# ---- for programs ----------------------------------------------------------------------------------


def document(dry_run: DryRun) -> dict[str, Any]:
    """Return the dry run as a JSON document."""
    return {
        "queue": dry_run.path,
        "exists": dry_run.counts is not None,
        "jobs": [
            {
                "id": job.job_id,
                "line": job.line,
                "would": job.change,
                "state": job.state.value,
                "command": shown_command(job.command),
                "first": dry_run.reasons.get(job.job_id),
            }
            for job in dry_run.jobs
        ],
        "devices": [
            {
                "uuid": item.device.uuid,
                "index": item.device.index,
                "name": item.device.name,
                "state": item.view.availability.state.value,
                "why": item.view.refused or item.view.availability.why,
            }
            for item in dry_run.board.devices
        ],
        "error": dry_run.error.what if dry_run.error is not None else None,
    }
