"""The values of a run's summary: counts, the failed jobs, the groups of jobs with items. Decides no exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import islice

from gpusched.core.documents import job_document, metrics_head
from gpusched.core.jobs.progress import COUNTED_NOWHERE, ItemGroup, groups, times
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
from gpusched.core.model import JobState
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, queue_totals, startable_jobs
from gpusched.operations import queues
from gpusched.views.values import GroupNotes, GroupSummary, RunSummary

SHOWN_FAILED = 20

ReadNotes = Callable[[QueueDir, Store], GroupNotes]


def summarize_run(
    queue_dir: QueueDir, store: Store, code: int, *, every_failure: bool = False, read_notes: ReadNotes | None = None
) -> RunSummary:
    """Return the state of a queue at the end of a run with this exit code.

    `read_notes` is called for what a feature knows of its groups of jobs, if there are any.
    """
    failed = (job for job in job_table.jobs(store, [JobState.FAILED]) if every_failure or job.listed)
    shown = failed if every_failure else islice(failed, SHOWN_FAILED)
    grouped = groups(queue_totals.item_counts(store), ())
    notes = read_notes(queue_dir, store) if grouped and read_notes is not None else GroupNotes()
    held = list(job_table.jobs(store, [JobState.HELD]))
    return RunSummary(
        code=code,
        at=queues.now(),
        queue=queue_dir.path,
        metrics=queue_dir.metrics,
        logs=queue_dir.logs,
        cwd=queues.current_directory(),
        option=shlex.quote(queues.queue_name(queue_dir)),
        states=job_table.counts(store),
        removed=job_table.count_removed(store),
        totals=queue_totals.times(store),
        failed=[(job, attempt_table.attempts(store, job.id)) for job in shown],
        unlisted=job_table.count_failed_unlisted(store),
        can_start=startable_jobs.has_any(store),
        has_held=any(job.cause != CAUSE_DEPENDENCY for job in held),
        has_cancelled=any(not job.cause for job in job_table.jobs(store, [JobState.CANCELLED])),
        full_disk=queue_dir.full_disk(),
        groups=[
            GroupSummary(
                group,
                times(queue_totals.item_spans(store, group.tags)),
                _missing(store, group, notes),
                [job.name or f"job {job.id}" for job in held if job.cause == CAUSE_DEPENDENCY],
            )
            for group in grouped
        ],
        notes=notes,
    )


def _missing(store: Store, group: ItemGroup, notes: GroupNotes) -> list[tuple[str, str]]:
    """Return the jobs of a group that are not done, each with the items that it leaves out."""
    if group.ended == group.jobs:
        return []
    states = [state for state in JobState if state is not JobState.SUCCEEDED]
    left = (job for job in job_table.jobs(store, states) if job.items and job.listed and job.tags == group.tags)
    return [
        (job.name or f"job {job.id}", notes.spans.get(job.name, "")) for job in left if job.cause not in COUNTED_NOWHERE
    ]


def summary_document(summary: RunSummary) -> dict[str, object]:
    """Return the head of gpu_metrics.json, the failed jobs, and the groups."""
    document = metrics_head(summary.states, summary.removed, summary.totals, summary.at)
    document |= {
        "exit_code": summary.code,
        "queue": summary.queue,
        "metrics": summary.metrics,
        "failed": [job_document(job, list(attempts), summary.queue) for job, attempts in summary.failed],
    }
    if summary.groups:
        document["groups"] = [_group_document(group) for group in summary.groups]
    return document


def _group_document(summary: GroupSummary) -> dict[str, object]:
    """Return what the jobs of a group took together; times in seconds."""
    group, took = summary.group, summary.took
    document: dict[str, object] = {
        "tags": list(group.tags),
        "jobs": group.jobs,
        "jobs_done": group.ended,
        "items": group.items,
        "items_done": group.done,
        "missing": [{"name": name, "items": span} for name, span in summary.missing],
    }
    if took is not None:
        document |= {
            "wall_s": took.wall_s,
            "median_s": took.median_s,
            "slowest_s": took.slowest_s,
            "at_once": took.at_once,
            "speed_up": took.speed_up,
            "efficiency": took.efficiency,
            "items_per_s": took.items_per_s,
            "times": [
                {"job": s.job_id, "name": s.name, "items": s.items, "runtime_s": s.ended_at - s.started_at}
                for s in took.jobs
            ],
        }
    return document
