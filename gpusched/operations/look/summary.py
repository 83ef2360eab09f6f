"""The values of a run's summary: counts, the failed jobs, the groups of jobs with items. Decides no exit code."""

from __future__ import annotations

from gpusched.core.documents import job_document, metrics_head
from gpusched.core.jobs.group_summary import NO_DETAILS, GroupDetails, group_document, summarize_group
from gpusched.core.jobs.progress import groups
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
from gpusched.core.model import JobState
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, cleaning, job_table, queue_totals, startable_jobs
from gpusched.operations import queues
from gpusched.operations.look.status import READ_FAILURES, make_scene
from gpusched.views.values import RunSummary

UNFINISHED = [state for state in JobState if state is not JobState.SUCCEEDED]


def summarize_run(
    queue_dir: QueueDir,
    store: Store,
    code: int,
    *,
    every_failure: bool = False,
    details: GroupDetails | None = None,
) -> RunSummary:
    """Return the state of a queue at the end of a run with this exit code.

    The first failed jobs of the list are in it; `every_failure`: all of them.
    """
    shown = job_table.failed(store, -1 if every_failure else READ_FAILURES)
    return RunSummary(
        make_scene(queue_dir, store, queues.now()),
        code=code,
        metrics=queue_dir.metrics,
        logs=queue_dir.logs,
        states=job_table.current_counts(store),
        totals=queue_totals.times(store),
        failed=[(job, attempt_table.attempts(store, job.id)) for job in shown],
        can_start=startable_jobs.has_any(store),
        has_cancelled=any(job.listed and not job.cause for job in job_table.jobs(store, [JobState.CANCELLED])),
        has_held=any(job.cause != CAUSE_DEPENDENCY for job in job_table.jobs(store, [JobState.HELD])),
        cleaned=cleaning.count_finished(store),
        groups=[
            summarize_group(
                group,
                queue_totals.item_spans(store, group.tags),
                job_table.jobs(store, UNFINISHED),
                details or NO_DETAILS,
            )
            for group in groups(queue_totals.item_counts(store), ())
        ],
    )


def summary_document(summary: RunSummary) -> dict[str, object]:
    """Return the head of gpu_metrics.json, the failed jobs, and the groups."""
    document = metrics_head(summary.states, summary.totals, summary.scene.now)
    document |= {
        "exit_code": summary.code,
        "queue": summary.scene.queue,
        "metrics": summary.metrics,
        "report": summary.report or None,
        "failed": [job_document(job, list(attempts), summary.scene.queue) for job, attempts in summary.failed],
    }
    if summary.groups:
        document["groups"] = [group_document(group) for group in summary.groups]
    return document
