"""The story of one job: its attempts, how each ended, and why it waits now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpusched.common.merge_record import read_record
from gpusched.common.text import clean
from gpusched.core.documents import attempt_document, job_document
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.model import AttemptRow, JobRow, JobState
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.queues import OpenQueue, open_queue
from gpusched.operations.reasons import describe_dependencies, wait_reasons
from gpusched.operations.status import make_scene, read_attempt, read_last_line
from gpusched.views.report import leftover_text
from gpusched.views.values import JobReport


def explain(queue_dir: QueueDir, job: str) -> JobReport:
    """Return what is known of the job that an id or a name stands for. Raises GpuschedError if there is none."""
    with open_queue(queue_dir) as queue:
        row = job_table.get(queue.store, queues.parse_job(job, queue.store))
        attempts = attempt_table.attempts(queue.store, row.id)
        scene = make_scene(queue.queue_dir, queue.store, queue.now)
        current = [*_current(queue, row, attempts, scene.resume), *_merge_messages(queue_dir, row)]
        return JobReport(scene, row, attempts, current)


def explain_document(report: JobReport) -> dict[str, Any]:
    """Return the story of a job for programs."""
    path, attempts = report.scene.queue, list(report.attempts)
    return {
        "schema_version": 1,
        "queue": path,
        "job": job_document(report.job, attempts, path),
        "attempts": [attempt_document(attempt, path) for attempt in attempts],
        "now": [clean(text) for text in report.current],
    }


def _current(queue: OpenQueue, row: JobRow, attempts: list[AttemptRow], resume: str) -> list[str]:
    """Return what the job does at this moment, a text a line."""
    alive = queue.dispatcher.alive
    goes_on = [] if alive else [f"no dispatcher works on this queue; to go on: {resume}"]
    if row.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED) and row.state in (JobState.HELD, JobState.CANCELLED):
        lead = "it was not needed" if row.cause == CAUSE_NOT_NEEDED else f"it is {row.state.value}"
        return [f"{lead}: it {describe_dependencies(queue.store, row)}"]
    if row.state is JobState.HELD:
        return ["it is held" + (": jobs of its tag failed at once" if row.cause == CAUSE_FAILURES else "")]
    if row.state is JobState.QUEUED:
        kind, why = wait_reasons(queue, until=row.id).get(row.id, ("", ""))
        return goes_on + ([f"why   {why}"] if alive or kind == "dependency" else [])
    if row.state is JobState.RUNNING:
        return [*_running(queue, row, attempts), *goes_on]
    return []


def _merge_messages(queue_dir: QueueDir, row: JobRow) -> list[str]:
    """Return the warnings and errors of a merge, if the job is the one that has run last."""
    record, own = read_record(queue_dir.path), dict(row.env).get(b"GPUSCHED_MERGE")
    return record.messages() if record is not None and own == record.merge.encode() else []


def _running(queue: OpenQueue, row: JobRow, attempts: list[AttemptRow]) -> Iterator[str]:
    status = read_attempt(queue.queue_dir, row.id, row.attempts)
    if row.cancel_requested_at is not None:
        yield "it is being stopped: TERM, and KILL after the grace time"
    if status.fields.get("leftovers"):
        yield f"its command has ended, but left {leftover_text(status.fields['leftovers'])}"
    if mark := status.describe(queue.dispatcher):
        yield f"it {mark}"
    if tail := read_last_line(queue.queue_dir, attempts[-1]) if attempts else "":
        yield f"last line: {tail}"
