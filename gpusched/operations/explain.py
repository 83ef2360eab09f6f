"""The story of one job: its attempts, how each ended, and why it waits now."""

from __future__ import annotations

from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.model import AttemptRow, JobRow, JobState
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.dispatchers import DispatcherStatus, read_dispatcher
from gpusched.operations.reasons import describe_dependencies, wait_reasons
from gpusched.operations.status import make_scene, read_attempt, read_last_line
from gpusched.views.report import leftover_text
from gpusched.views.values import JobReport, Scene


def explain(queue_dir: QueueDir, job: str) -> JobReport:
    """Return what is known of the job that an id or a name stands for. Raises GpuschedError if there is none."""
    with queues.open_store(queue_dir) as store:
        row = job_table.get(store, queues.parse_job(job, store))
        attempts = attempt_table.attempts(store, row.id)
        scene = make_scene(queue_dir, store, queues.now())
        return JobReport(scene, row, attempts, _current(queue_dir, store, row, attempts, scene))


def _current(queue_dir: QueueDir, store: Store, row: JobRow, attempts: list[AttemptRow], scene: Scene) -> list[str]:
    """Return what the job does at this moment, a text a line."""
    dispatcher = read_dispatcher(queue_dir)
    goes_on = [] if dispatcher.alive else [f"no dispatcher works on this queue; to go on: {scene.resume}"]
    if row.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED) and row.state in (JobState.HELD, JobState.CANCELLED):
        lead = "it was not needed" if row.cause == CAUSE_NOT_NEEDED else f"it is {row.state.value}"
        return [f"{lead}: it {describe_dependencies(store, row)}"]
    if row.state is JobState.HELD:
        return ["it is held" + (": jobs of its tag failed at once" if row.cause == CAUSE_FAILURES else "")]
    if row.state is JobState.QUEUED:
        kind, why = wait_reasons(store, dispatcher, scene.now, until=row.id).get(row.id, ("", ""))
        return goes_on + ([f"why   {why}"] if dispatcher.alive or kind == "dependency" else [])
    if row.state is JobState.RUNNING:
        return [*_running(queue_dir, row, attempts, dispatcher), *goes_on]
    return []


def _running(queue_dir: QueueDir, row: JobRow, attempts: list[AttemptRow], dispatcher: DispatcherStatus) -> list[str]:
    status = read_attempt(queue_dir, row.id, row.attempts)
    left, mark = status.fields.get("leftovers"), status.describe(dispatcher)
    tail = read_last_line(queue_dir, attempts[-1]) if attempts else ""
    texts = ["it is being stopped: TERM, and KILL after the grace time"] if row.cancel_requested_at is not None else []
    texts += [f"its command has ended, but left {leftover_text(left)}"] if left else []
    texts += [f"it {mark}"] if mark else []
    return [*texts, *([f"last line: {tail}"] if tail else [])]
