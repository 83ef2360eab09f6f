"""The state of a queue and of its dispatcher: counts, the jobs that run, why the others wait. Changes nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from gpusched.common.errors import GpuschedError
from gpusched.common.text import last_line, mask_secrets
from gpusched.core.documents import job_document, metrics_head, parse_progress, shown_command
from gpusched.core.jobs.progress import ItemGroup, groups, items_done
from gpusched.core.model import AttemptRow, JobRow, JobState, RunningView
from gpusched.core.plan.board import BoardDevice
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, queue_totals, startable_jobs
from gpusched.operations import queues
from gpusched.operations.dispatchers import DispatcherStatus, read_dispatcher
from gpusched.operations.reasons import wait_reasons
from gpusched.operations.resume import resume_command
from gpusched.views import report
from gpusched.views.values import JobWithLast, QueueReport, QueueSummary, Reasons, Scene

SHOWN_JOBS = 10  # of each group, unless all are wanted
JSON_LIMIT = 1000  # jobs in a document, as in gpu_metrics.json while a queue is worked on


# ---- running attempts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """An open attempt, read without touching its lock. `ended`: it has, and no dispatcher has noted it yet."""

    alive: bool
    ended: bool
    fields: Mapping[str, str]  # of its mark or record

    def describe(self, dispatcher: DispatcherStatus) -> str:
        """Return what it does, after "it", unless it simply runs for a dispatcher; else empty."""
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
    alive = locks.is_held(f"{directory}/{attempt_dir.LIFE}")
    fd = attempt_dir.open_life(directory)
    if fd is None:
        return AttemptStatus(alive, False, {})
    try:
        fields = attempt_dir.parse_fields(os.pread(fd, attempt_dir.RECORD_BYTES, 0))
    finally:
        os.close(fd)
    return AttemptStatus(alive, not alive and attempt_dir.is_record(fields), fields)


def read_running(queue_dir: QueueDir, store: Store) -> list[RunningView]:
    """Return the running jobs with what their shepherds and their own progress files say."""
    views = []
    for job, row in attempt_table.running(store):
        data = attempt_dir.read_progress(attempt_dir.directory(queue_dir.state, job.id, row.number))
        progress = data.decode("utf-8", "replace") if data is not None else row.progress
        left = read_attempt(queue_dir, job.id, row.number).fields.get("leftovers", "")
        views.append(RunningView(job, replace(row, progress=progress), left))
    return views


def measure_groups(store: Store, views: Sequence[RunningView], now: float) -> list[tuple[ItemGroup, float]]:
    """Return the groups of jobs that say how many items they do, each with its items per second now.

    A job is taken to be as fast as those that have ended, and those that say how far they are.
    """
    measured = []
    for group in groups(queue_totals.item_counts(store), views):
        own = [view for view in views if view.job.items and view.job.tags == group.tags]
        counted = [view for view in own if items_done(view.job.items, parse_progress(view.attempt.progress))]
        spent = queue_totals.item_seconds(store, group.tags) + sum(
            max(0.0, now - view.attempt.started_at) for view in counted
        )
        measured.append((group, len(own) * group.done / spent if spent > 0 else 0.0))
    return measured


def read_last_line(queue_dir: QueueDir, row: AttemptRow) -> str:
    """Return the last line of an attempt's stderr, or else of its log."""
    for name in (row.error_log, row.log):
        text = last_line(log_tail(f"{queue_dir.path}/{name}")) if name else ""
        if text:
            return text
    return ""


# ---- whole queues ----------------------------------------------------------------------------------


def summarize_queue(
    queue_dir: QueueDir, store: Store, dispatcher: DispatcherStatus, now: float, name: str
) -> QueueSummary:
    """Return a queue as one line of `gpusched status`."""
    counts = report.tally(job_table.counts(store), job_table.count_removed(store))
    waits_for = next(iter(wait_reasons(store, dispatcher, now).values()), ("", ""))[1] if counts.queued else ""
    can_start = startable_jobs.has_any(store)
    if counts.queued and not dispatcher.alive:
        waits_for = "a dispatcher" if can_start or not counts.held else "held jobs"
    alone = () if dispatcher.alive else attempt_table.running(store)
    runs_on = sum(read_attempt(queue_dir, job.id, row.number).alive for job, row in alone)
    started_at = queue_totals.times(store)["start_time"]
    return QueueSummary(
        name,
        dispatcher.pid,
        runs_on,
        counts,
        started_at,
        waits_for=waits_for,
        can_start=can_start,
        full_disk=dispatcher.full_disk,
    )


def make_scene(queue_dir: QueueDir, store: Store, now: float) -> Scene:
    option = shlex.quote(queues.queue_name(queue_dir))
    return Scene(now, queues.current_directory(), queue_dir.path, option, resume_command(queue_dir, store))


def read_queue(queue_dir: QueueDir, *, every_job: bool = False) -> QueueReport:
    """Return one queue in full; with `every_job` each of its jobs too, else the first ones of each state."""
    now = queues.now()
    dispatcher = read_dispatcher(queue_dir)
    board = dispatcher.board
    with queues.open_store(queue_dir) as store:
        views = read_running(queue_dir, store)
        waiting = list(islice(job_table.jobs(store, [JobState.QUEUED, JobState.HELD]), SHOWN_JOBS))
        reasons: Reasons = wait_reasons(store, dispatcher, now) | {
            row.id: ("held", "held (`gpusched release`)") for row in waiting if row.state is JobState.HELD
        }
        failed = (
            [] if every_job else list(_with_last(store, islice(job_table.jobs(store, [JobState.FAILED]), SHOWN_JOBS)))
        )
        source = mask_secrets(os.fsdecode(meta_table.source(store) or b""))
        return QueueReport(
            make_scene(queue_dir, store, now),
            summarize_queue(queue_dir, store, dispatcher, now, queue_dir.name),
            source="of standard input" if source == "-" else source,
            looked_at=board.at if board is not None else None,
            devices=[report.device_line(item, board.max_checks) for item in board.devices] if board is not None else [],
            running=[_running_line(queue_dir, view, dispatcher, now) for view in views],
            waiting=waiting,
            reasons=reasons,
            failed=failed,
            groups=[
                report.group_line(group, speed if dispatcher.alive else 0.0)
                for group, speed in measure_groups(store, views, now)
            ],
            jobs=list(_with_last(store, job_table.jobs(store))) if every_job else (),
        )


def _with_last(store: Store, rows: Iterator[JobRow]) -> Iterator[JobWithLast]:
    for row in rows:
        attempts = attempt_table.attempts(store, row.id) if row.attempts else []
        yield row, attempts[-1] if attempts else None


def _running_line(
    queue_dir: QueueDir, view: RunningView, dispatcher: DispatcherStatus, now: float
) -> report.RunningLine:
    shown = report.running_line(view, now, read_last_line(queue_dir, view.attempt))
    status = read_attempt(queue_dir, view.job.id, view.attempt.number)
    mark = status.describe(dispatcher)
    if mark:
        shown = replace(shown, mark=mark, elapsed_s=status.elapsed_s(view.attempt.started_at, now))
    return shown


T = TypeVar("T")
Read = Callable[[QueueDir, Store, DispatcherStatus, float], T]


def read_queues(known: Sequence[QueueDir]) -> tuple[list[QueueSummary], list[str]]:
    """Return a line for each queue, those with a dispatcher first, and a text for each that cannot be read."""

    def read(queue_dir: QueueDir, store: Store, dispatcher: DispatcherStatus, now: float) -> QueueSummary:
        return summarize_queue(queue_dir, store, dispatcher, now, queues.queue_name(queue_dir, known))

    return _read_each(known, read)


def queue_documents(known: Sequence[QueueDir]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a short document for each queue, in the order of `read_queues`, and a text for each unreadable one."""
    return _read_each(known, partial(_document, jobs=0))


def _read_each(known: Sequence[QueueDir], read: Read[T]) -> tuple[list[T], list[str]]:
    now = queues.now()
    dispatchers = [(read_dispatcher(queue_dir), queue_dir) for queue_dir in known]
    values, broken = [], []
    for dispatcher, queue_dir in sorted(dispatchers, key=lambda pair: not pair[0].alive):
        try:
            with queues.open_store(queue_dir) as store:
                values.append(read(queue_dir, store, dispatcher, now))
        except GpuschedError as error:  # one broken queue hides no other
            broken.append(str(error))
    return values, broken


def queue_document(queue_dir: QueueDir, *, jobs: int | None = JSON_LIMIT) -> dict[str, Any]:
    """Return one queue for programs, with up to `jobs` of its newest jobs; None stands for all."""
    with queues.open_store(queue_dir) as store:
        return _document(queue_dir, store, read_dispatcher(queue_dir), queues.now(), jobs=jobs)


def _document(
    queue_dir: QueueDir, store: Store, dispatcher: DispatcherStatus, now: float, *, jobs: int | None
) -> dict[str, Any]:
    """Return the head of gpu_metrics.json, the dispatcher, and unless `jobs` is 0 groups, devices and jobs."""
    waits = wait_reasons(store, dispatcher, now)
    source = meta_table.source(store)
    document: dict[str, Any] = {
        "name": queue_dir.name,
        "path": queue_dir.path,
        "source": shown_command(source) if source is not None else None,
        "dispatcher": dispatcher.pid,
        "waits_for": next(iter(waits.values()))[1] if waits else None,
        **metrics_head(job_table.counts(store), job_table.count_removed(store), queue_totals.times(store), now),
    }
    del document["schema_version"]  # the document that this one goes into has its own
    if jobs == 0:
        return document
    measured = measure_groups(store, read_running(queue_dir, store), now)
    board = dispatcher.board
    document["groups"] = [_group_document(group, speed if dispatcher.alive else None) for group, speed in measured]
    document["devices"] = [_device_document(item, board.max_checks) for item in board.devices] if board else []
    document["jobs"] = [
        {
            **job_document(row, attempt_table.attempts(store, row.id), queue_dir.path),
            "waits_for": waits.get(row.id, ("", None))[1],
        }
        for row in job_table.jobs(store, newest=jobs)
    ]
    return document


def _group_document(group: ItemGroup, items_per_s: float | None) -> dict[str, Any]:
    return {
        "tags": list(group.tags),
        "jobs": group.jobs,
        "jobs_done": group.ended,
        "items": group.items,
        "items_done": group.done,
        "items_per_s": items_per_s,
    }


def _device_document(item: BoardDevice, max_checks: int) -> dict[str, Any]:
    return {
        "uuid": item.device.uuid,
        "index": item.device.index,
        "name": item.device.name,
        "state": item.view.availability.state.value,
        "why": item.view.refused or item.view.availability.why,
        "checks": item.view.availability.count,
        "max_checks": max_checks,
        "jobs": list(item.job_ids),
    }
