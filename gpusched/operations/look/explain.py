"""The story of one job: its attempts, how each ended, and why it waits now. Of a queue: why its jobs wait or failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpusched.common.merge_record import read_record
from gpusched.common.quantities import AUTO_MEMORY
from gpusched.core.documents import attempt_document, job_document
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.model import AttemptRow, JobRow, JobState
from gpusched.core.plan import learned_memory
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table
from gpusched.lists.attributes import ENV, FIELDS, value_text
from gpusched.operations.addresses import find_job
from gpusched.operations.look.nodes import lease_text, with_nodes
from gpusched.operations.look.reasons import describe_dependencies, wait_reasons
from gpusched.operations.look.status import full_document, make_scene, read_attempt, read_last_line, read_queue
from gpusched.operations.queues import Notify, OpenQueue, ignore, open_queue
from gpusched.operations.run.stored import stored_settings
from gpusched.views.failures import group_failures, hint
from gpusched.views.report import leftover_text
from gpusched.views.values import JobReport

_PLAIN = JobRow(0)  # a job that states nothing


def explain(queue_dir: QueueDir, job: str, *, notify: Notify = ignore) -> JobReport:
    """Return what is known of the job that a word stands for. Raises GpuschedError if there is none."""
    with open_queue(queue_dir) as queue:
        return report_job(queue, find_job(queue.store, job, notify=notify))


def report_job(queue: OpenQueue, job_id: int) -> JobReport:
    """Return what is known of a job. Raises GpuschedError if there is none of this id."""
    row = job_table.get(queue.store, job_id)
    attempts = with_nodes(queue.store, attempt_table.attempts(queue.store, row.id))
    scene = make_scene(queue.queue_dir, queue.store, queue.now)
    current = [*_current(queue, row, attempts, scene.resume), *_merge_messages(queue.queue_dir, row)]
    current += _learned_memory(queue.store, row) if row.stated_mem_bytes == AUTO_MEMORY else []
    return JobReport(scene, row, attempts, current, _needs_text(row))


def job_explanation(report: JobReport) -> dict[str, Any]:
    """Return the story of a job for programs."""
    job, queue = report.job, report.scene.queue
    tried = report.attempts
    return {
        "queue": queue,
        "job": job_document(job, tried, queue),
        "attempts": [
            {"number": each.number, **attempt_document(each, queue), "hint": hint(job, each) or None} for each in tried
        ],
        "current": list(report.current),
    }


def queue_explanation(queue_dir: QueueDir) -> dict[str, Any]:
    """Return for programs why the jobs of a queue wait, and how its failed jobs have ended."""
    report = read_queue(queue_dir)
    with open_queue(queue_dir) as queue:
        document = full_document(queue, jobs=0)
    del document["jobs"]
    waiting = [{"jobs": ids, "why": why} for why, ids in report.jobs_by_reason().items()]
    failed = [{"jobs": list(group.ids), "how": group.sentence} for group in group_failures(report.failed)]
    return {**document, "waiting": waiting, "failed": failed}


def _needs_text(row: JobRow) -> str:
    """Return what a job asks for, as a user states it, but for what is shown elsewhere; of variables, the names."""
    needs = {key: field for key, field in FIELDS.items() if key not in ("name", "tag", "prio", "cwd")}
    needs["mem"] = "stated_mem_bytes"  # not what it has been raised to
    stated = {key: getattr(row, field) for key, field in needs.items() if getattr(row, field) != getattr(_PLAIN, field)}
    names = [name.decode() for name, _ in row.env if not name.startswith(b"GPUSCHED_")]
    return " ".join([*(f"{key}={value_text(key, stated[key])}" for key in stated), *(ENV + name for name in names)])


def _current(queue: OpenQueue, row: JobRow, attempts: list[AttemptRow], resume: str) -> list[str]:
    """Return what the job does at this moment, a text a line."""
    alive = queue.dispatcher.alive
    goes_on = [] if alive else [f"no dispatcher works on this queue; to go on: {resume}"]
    if row.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED) and row.state in (JobState.HELD, JobState.CANCELLED):
        lead = "it was not needed" if row.cause == CAUSE_NOT_NEEDED else f"it is {row.state.value}"
        return [f"{lead}: it {describe_dependencies(queue.store, row)}"]
    if row.state is JobState.HELD:
        why = ": jobs of its program failed at once, by the same error" if row.cause == CAUSE_FAILURES else ""
        return [f"it is held{why}"]
    if row.state is JobState.QUEUED:
        kind, why = wait_reasons(queue, until=row.id).get(row.id, ("", ""))
        return goes_on + ([f"why   {why}"] if alive or kind in ("dependency", "closed") else [])
    if row.state is JobState.RUNNING:
        return [*_running(queue, row, attempts), *(goes_on if row.origin != "exec" else [])]
    return []


def _merge_messages(queue_dir: QueueDir, row: JobRow) -> list[str]:
    """Return the warnings and errors of a merge, if the job is the one that has run last."""
    record, own = read_record(queue_dir.path), dict(row.env).get(b"GPUSCHED_MERGE")
    return record.messages() if record is not None and own == record.merge.encode() else []


def _learned_memory(store: Store, row: JobRow) -> Iterator[str]:
    """Yield what is known of the memory of a job with mem=auto."""
    learned, settings = learned_memory.from_json(meta_table.read(store, learned_memory.KEY)), stored_settings(store)
    return learned_memory.describe(row, learned, settings.tag_mem_bytes, settings.safety_factor)


def _running(queue: OpenQueue, row: JobRow, attempts: list[AttemptRow]) -> Iterator[str]:
    status = read_attempt(queue.queue_dir, row.id, row.attempts)
    if row.cancel_requested_at is not None:
        yield "it is being stopped: TERM, and KILL after the grace time"
    if status.fields.get("leftovers"):
        yield f"its command has ended, but left {leftover_text(status.fields['leftovers'])}"
    if mark := lease_text(queue.store, row.id, row.attempts) or status.describe(queue.dispatcher, row):
        yield f"it {mark}"
    if tail := read_last_line(queue.queue_dir, attempts[-1]) if attempts else "":
        yield f"last line: {tail}"
