"""The state of a queue and of its dispatcher: counts, the jobs that run, why the others wait. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from gpusched.common.errors import GpuschedError
from gpusched.common.merge_record import read_record
from gpusched.common.text import last_line, mask_secrets
from gpusched.core.documents import job_document, metrics_head, parse_progress, shown_command
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
from gpusched.core.jobs.progress import ItemGroup, groups, items_done, slowest_left_s
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
from gpusched.core.model import AttemptRow, JobRow, JobState, RunningView
from gpusched.core.plan.board import Board, device_document
from gpusched.core.plan.snapshot import Resident
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.queue.part_records import count_records
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, queue_totals, startable_jobs
from gpusched.operations import queues
from gpusched.operations.look.nodes import lease_text
from gpusched.operations.look.reasons import wait_reasons
from gpusched.operations.queues import DispatcherStatus, OpenQueue, open_queue
from gpusched.operations.run.resume import resume_command
from gpusched.views import report
from gpusched.views.values import JobWithLast, QueueReport, QueueSummary, Reasons, Scene

T = TypeVar("T")

SHOWN_JOBS = 10  # of each group, unless all are wanted
READ_FAILURES = 1000  # failed jobs that are grouped
JSON_LIMIT = 1000  # jobs in a document, as in gpu_metrics.json while a queue is worked on


# ---- running attempts ------------------------------------------------------------------------------


class AttemptStatus(NamedTuple):
    """An open attempt, read without touching its lock. `ended`: it has, and no dispatcher has noted it yet."""

    alive: bool
    ended: bool
    fields: Mapping[str, str]  # of its mark or record

    def describe(self, dispatcher: DispatcherStatus, job: JobRow) -> str:
        """Return what it does, after "it", unless it simply runs for a dispatcher; else empty."""
        if self.alive and job.origin == "exec":
            return "is interactive"
        if dispatcher.alive:
            return "has ended; how is noted once the disk has room" if self.ended and dispatcher.full_disk else ""
        if self.alive:
            return "goes on by itself"
        return "has ended; the next dispatcher notes how" if self.ended else "is not seen running any more"

    def elapsed_s(self, started_at: float, now: float) -> float:
        """Return the time for which it has run, or ran."""
        return max(0.0, (float(self.fields.get("ended_at", now)) if self.ended else now) - started_at)


def read_attempt(queue_dir: QueueDir, job_id: int, number: int) -> AttemptStatus:
    directory = attempt_dir.directory(queue_dir.state, job_id, number)
    alive = locks.is_held(attempt_dir.life_path(directory))
    fd = attempt_dir.open_life(directory)
    if fd is None:
        return AttemptStatus(alive, False, {})
    with open(fd, "rb") as file:
        fields = attempt_dir.parse_fields(file.read(attempt_dir.RECORD_BYTES))
    return AttemptStatus(alive, not alive and attempt_dir.is_record(fields), fields)


def read_running(queue: OpenQueue) -> Sequence[RunningView]:
    """Return the running jobs with what their shepherds, their own progress files and the files of shards say."""
    views = []
    for job, row in attempt_table.running(queue.store):
        data = attempt_dir.read_progress(attempt_dir.directory(queue.queue_dir.state, job.id, row.number))
        progress = data.decode("utf-8", "replace") if data is not None else row.progress
        left = read_attempt(queue.queue_dir, job.id, row.number).fields.get("leftovers", "")
        views.append(RunningView(job, replace(row, progress=progress), left))
    return count_records(queue.queue_dir.path, views)


def _of_group(views: Sequence[RunningView], group: ItemGroup) -> list[RunningView]:
    return [view for view in views if view.job.items and view.job.tags == group.tags]


def measure_groups(queue: OpenQueue, views: Sequence[RunningView]) -> list[tuple[ItemGroup, float | None]]:
    """Return the groups of jobs that say how many items they do, each with its items per second now.

    A job is taken to be as fast as those that have ended, and those that say how far they are. The rate is None without
    a dispatcher.
    """
    measured: list[tuple[ItemGroup, float | None]] = []
    for group in groups(queue_totals.item_counts(queue.store), views):
        own = _of_group(views, group)
        counted = [view for view in own if items_done(view.job.items, parse_progress(view.attempt.progress))]
        spent = queue_totals.item_seconds(queue.store, group.tags)
        spent += sum(max(0.0, queue.now - view.attempt.started_at) for view in counted)
        rate = len(own) * group.done / spent if spent > 0 else 0.0
        measured.append((group, rate if queue.dispatcher.alive else None))
    return measured


def read_last_line(queue_dir: QueueDir, row: AttemptRow) -> str:
    """Return the last line of an attempt's stderr, or else of its log."""
    for name in (row.error_log, row.log):
        text = last_line(log_tail(f"{queue_dir.path}/{name}")) if name else ""
        if text:
            return text
    return ""


# ---- whole queues ----------------------------------------------------------------------------------


def summarize_queue(queue: OpenQueue, name: str, reasons: Reasons | None = None) -> QueueSummary:
    """Return a queue as one line of `gpusched status`. `reasons` are those of its first waiting jobs, if known."""
    store, dispatcher = queue.store, queue.dispatcher
    counts = report.tally(job_table.current_counts(store))
    can_start = startable_jobs.has_any(store)
    waits_for = ""
    if counts.queued and not dispatcher.alive:
        waits_for = "a dispatcher" if can_start or not counts.held else "held jobs"
        waits_for = "gpusched resume" if dispatcher.paused else waits_for
    elif counts.queued:
        waits_for = _first_reason(wait_reasons(queue) if reasons is None else reasons) or ""
    alone = () if dispatcher.alive else (pair for pair in attempt_table.running(store) if pair[0].origin != "exec")
    return QueueSummary(
        name,
        dispatcher.pid,
        runs_on=sum(read_attempt(queue.queue_dir, job.id, row.number).alive for job, row in alone),
        counts=counts,
        started_at=queue_totals.times(store)["start_time"],
        waits_for=waits_for,
        can_start=can_start,
        full_disk=dispatcher.full_disk,
        is_paused=bool(dispatcher.paused),
        closed=dispatcher.board.closed if dispatcher.board is not None else "",
        interactive=len(attempt_table.interactive(store)),
    )


def _first_reason(reasons: Reasons) -> str | None:
    """Return what the first job waits for that waits for no other job, or else the first of all."""
    texts = [text for kind, text in reasons.values() if kind != "dependency"] or [text for _, text in reasons.values()]
    return next(iter(texts), None)


def make_scene(queue_dir: QueueDir, store: Store, now: float) -> Scene:
    option = queues.queue_word(queue_dir)
    return Scene(now, queues.current_directory(), queue_dir.path, option, resume_command(queue_dir, store))


def read_queue(queue_dir: QueueDir, *, every_job: bool = False) -> QueueReport:
    """Return one queue in full; with `every_job` each of its jobs too, else the first ones of each state."""
    with open_queue(queue_dir) as queue:
        return report_queue(queue, every_job=every_job)


def report_queue(queue: OpenQueue, *, every_job: bool = False) -> QueueReport:
    """Return an open queue in full, as `read_queue` does."""
    with queue.store.snapshot():
        return _report(queue, every_job=every_job)


def _report(queue: OpenQueue, *, every_job: bool) -> QueueReport:
    store, board, queue_dir = queue.store, board_now(queue), queue.queue_dir
    views, reasons = read_running(queue), wait_reasons(queue)
    in_order = chain(job_table.waiting(store), job_table.jobs(store, [JobState.HELD]))
    waiting = list(islice(in_order, SHOWN_JOBS))
    scene = make_scene(queue_dir, store, queue.now)
    held = {row.id: ("held", _why_held(row, scene.option)) for row in waiting if row.state is JobState.HELD}
    source = mask_secrets(os.fsdecode(meta_table.source(store) or b""))
    record = read_record(queue_dir.path)
    return QueueReport(
        scene,
        summarize_queue(queue, queue_dir.name, reasons),
        source="of standard input" if source == "-" else source,
        looked_at=board.at if board is not None else None,
        unreadable=board.gpus_closed if board is not None else "",
        devices=[report.device_line(item, board.max_checks) for item in board.devices] if board else [],
        running=[_running_line(queue, view) for view in views],
        waiting=waiting,
        reasons=reasons | held,
        failed=[] if every_job else with_last(store, job_table.failed(store, READ_FAILURES)),
        groups=[
            report.group_line(group, rate or 0.0, slowest_left_s(_of_group(views, group), rate or 0.0, queue.now))
            for group, rate in measure_groups(queue, views)
        ],
        jobs=with_last(store, job_table.jobs(store)) if every_job else (),
        merged=record.lines() if record is not None else (),
        warnings=record.messages() if record is not None else (),
        starts=queue_totals.starts(store, queue.now, is_dispatched=queue.dispatcher.alive),
    )


def _why_held(job: JobRow, option: str) -> str:
    if job.cause == CAUSE_DEPENDENCY:
        return f"held, since a job that it waits for has failed (`gpusched requeue JOB -q {option}` tries that again)"
    why = ", since jobs of this program failed at once by the same error" if job.cause == CAUSE_FAILURES else ""
    return f"held{why} (`gpusched release JOB -q {option}` lets one go)"


def read_running_lines(queue: OpenQueue) -> list[report.RunningLine]:
    """Return the lines of the running jobs."""
    return [_running_line(queue, view) for view in read_running(queue)]


def board_now(queue: OpenQueue) -> Board | None:
    """Return the board of a queue with the jobs that run on its devices now: it is as old as the last look at them."""
    if (board := queue.dispatcher.board) is None:
        return None
    residents: dict[str, list[Resident]] = {}
    for job, row in attempt_table.running(queue.store):
        for device in row.devices:
            residents.setdefault(device.uuid, []).append(Resident(job.id, job.budget_bytes))
    views = [replace(item.view, residents=tuple(residents.get(item.device.uuid, ()))) for item in board.devices]
    devices = [replace(item, view=view) for item, view in zip(board.devices, views, strict=True)]
    return replace(board, devices=tuple(devices))


def with_last(store: Store, rows: Iterable[JobRow]) -> list[JobWithLast]:
    """Return each job with its newest attempt."""
    rows = list(rows)
    newest = attempt_table.newest(store, [row.id for row in rows])
    return [(row, newest.get(row.id)) for row in rows]


def _running_line(queue: OpenQueue, view: RunningView) -> report.RunningLine:
    shown = report.running_line(view, queue.now, read_last_line(queue.queue_dir, view.attempt))
    status = read_attempt(queue.queue_dir, view.job.id, view.attempt.number)
    mark = lease_text(queue.store, view.job.id, view.attempt.number).partition(" ")[2]
    is_leased = bool(mark)
    if mark := mark or status.describe(queue.dispatcher, view.job):
        where = shown.where if view.attempt.devices or not is_leased else ""
        shown = shown._replace(mark=mark, where=where, elapsed_s=status.elapsed_s(view.attempt.started_at, queue.now))
    return shown


def read_each(known: Sequence[QueueDir], read: Callable[[OpenQueue], T]) -> tuple[list[T], list[str]]:
    """Return what `read` returns for each queue, those with a dispatcher first, and a text for each unreadable one."""
    values, broken = [], []
    for queue_dir in sorted(known, key=lambda queue_dir: queue_dir.dispatcher() is None):
        try:
            with open_queue(queue_dir) as queue:
                values.append(read(queue))
        except GpuschedError as error:  # one broken queue hides no other
            broken.append(str(error))
    return values, broken


def queue_document(queue: OpenQueue) -> dict[str, Any]:
    """Return a queue in short for programs: the head of gpu_metrics.json, and the dispatcher."""
    store = queue.store
    source = meta_table.source(store)
    head = metrics_head(job_table.current_counts(store), queue_totals.times(store), queue.now)
    del head["schema_version"]  # the document that this one goes into has its own
    return {
        "name": queue.queue_dir.name,
        "path": queue.queue_dir.path,
        "source": shown_command(source) if source is not None else None,
        "dispatcher": queue.dispatcher.pid,
        "waits_for": _first_reason(wait_reasons(queue)),
        **head,
    }


def full_document(queue: OpenQueue, *, jobs: int | None = JSON_LIMIT) -> dict[str, Any]:
    """Return a queue for programs with groups, devices and up to `jobs` of its newest jobs; None stands for all."""
    store, board, waits = queue.store, board_now(queue), wait_reasons(queue)
    return {
        **queue_document(queue),
        "groups": [_group_document(group, rate) for group, rate in measure_groups(queue, read_running(queue))],
        "devices": [device_document(item, board) for item in board.devices] if board else [],
        "jobs": [
            {
                **job_document(row, attempt_table.attempts(store, row.id), queue.queue_dir.path),
                "waits_for": waits.get(row.id, ("", None))[1],
            }
            for row in job_table.jobs(store, newest=jobs)
        ],
    }


def _group_document(group: ItemGroup, items_per_s: float | None) -> dict[str, Any]:
    return {
        "tags": list(group.tags),
        "jobs": group.jobs,
        "jobs_done": group.ended,
        "items": group.items,
        "items_done": group.done,
        "items_per_s": items_per_s,
    }
