"""What a queue and its dispatcher say of themselves: counts, who runs, why the rest waits. Prints and changes nothing.

The reasons come from the dispatcher's own plan, made again from what it published and from the store, so that what is
told here is what it thinks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusched.core.jobs.progress import ItemGroup
    from gpusched.core.model import AttemptRow, JobRow, RunningView
    from gpusched.core.plan.board import Board, BoardDevice
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.host.store import Store
    from gpusched.views.pages import QueueSummary

HEAD_LIMIT = 500  # waiting jobs whose reasons `status` asks for
SHOWN_UNMET = 20  # of those that wait for others: so many are told which
SHOWN_SPANS = 6
JSON_LIMIT = 1000  # jobs in a document, as in gpu_metrics.json while a queue is worked on


@dataclass(frozen=True, slots=True)
class Dispatching:
    """Who works on a queue now. `board`: what it has published; None: not yet, or there is nobody.

    `full_disk`: the directory of the queue whose disk has no room, so that nothing new is published or noted.
    """

    pid: int | None
    board: Board | None
    full_disk: str = ""

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def closed(self) -> str:
        """Why nothing new starts."""
        told = self.board.closed if self.board is not None else ""
        return told or (f"the disk is full ({self.full_disk})" if self.full_disk else "")


def dispatching(place: QueueDir) -> Dispatching:
    from gpusched.host.gpus import board

    pid = place.dispatcher()
    found = board.read(place.board) if pid is not None else None
    if found is not None and pid and found.pid != pid:
        found = None  # left by one that was killed
    return Dispatching(pid, found, place.full_disk())


def reasons(store: Store, by: Dispatching, now: float, *, until: int | None = None) -> dict[int, tuple[str, str]]:
    """Why each of the first waiting jobs (or all up to the job `until`) waits: kind and text, by job id."""
    from gpusched.core.plan import observe
    from gpusched.core.plan.planner import make_plan

    rows = list(_head(store, until))
    blocked = dict(_unmet(store, rows, until))
    if by.board is None:
        who = by.closed or f"the dispatcher (pid {by.pid}) has not looked at the GPUs yet"
        nobody = ("nobody", who if by.alive else "no dispatcher works on this queue")
        return {row.id: blocked.get(row.id, nobody) for row in rows}
    snapshot = observe.snapshot(
        replace(by.board, closed=by.closed),
        now,
        waiting=(row.waiting for row in rows if not row.blocked),
        attempts=(observe.open_attempt(job, row) for job, row in store.running()),
    )
    plan = make_plan(snapshot)
    waits = blocked | {job_id: (reason.kind, reason.text) for job_id, reason in plan.reasons.items()}
    for job_id, where in observe.start_labels(plan, snapshot.devices).items():
        waits[job_id] = ("next", f"starts at the dispatcher's next look, on {where}")
    return waits


def _unmet(store: Store, rows: list[JobRow], until: int | None) -> Iterator[tuple[int, tuple[str, str]]]:
    """What the jobs that others block wait for. To look after each of many is too much: the first ones, or `until`."""
    told = 0
    for row in rows:
        if row.blocked:
            wanted = told < SHOWN_UNMET if until is None else row.id == until
            told += wanted
            yield row.id, ("dependency", waits_for(store, row) if wanted else "waits for other jobs")


def _head(store: Store, until: int | None) -> Iterator[JobRow]:
    from gpusched.core.model import JobState

    waiting = store.jobs([JobState.QUEUED], by_start=True)
    if until is None:
        yield from islice(waiting, HEAD_LIMIT)
        return
    for row in waiting:
        yield row
        if row.id == until:
            return


def waits_for(store: Store, row: JobRow) -> str:
    """The jobs that a job depends on, and where they are: those of one dependency together."""
    by_kind: dict[str, list[JobRow]] = {}
    for kind, job in store.upstream(row.id):
        by_kind.setdefault(kind, []).append(job)
    return "waits " + "; ".join(f"{kind} {_where(jobs)}" for kind, jobs in by_kind.items())


def _where(jobs: list[JobRow]) -> str:
    from gpusched.views.words import ranges

    if len(jobs) == 1:
        name = f" ({jobs[0].name})" if jobs[0].name else ""
        return f"job {jobs[0].id}{name}, which {_now(jobs[0].state.value)}"
    states: dict[str, list[int]] = {}
    for job in jobs:
        states.setdefault(job.state.value, []).append(job.id)
    all_of_them = f"jobs {_cut(ranges(job.id for job in jobs))}"
    if len(states) == 1:
        return f"{all_of_them}, which {_now(jobs[0].state.value, len(jobs))}"
    told = [f"{_cut(ranges(ids))} {_now(state, len(ids))}" for state, ids in states.items()]
    return f"{all_of_them}, of which {', '.join(told)}"


def _now(state: str, number: int = 1) -> str:
    verb = ("has" if number == 1 else "have") if state in ("succeeded", "failed") else ("is" if number == 1 else "are")
    return f"{verb} {state}"


def _cut(spans: str) -> str:
    shown = spans.split(", ")
    return spans if len(shown) <= SHOWN_SPANS else f"{', '.join(shown[:SHOWN_SPANS])} …"


# ---- running attempts ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """An open attempt, looked at without touching its lock. `ended`: it has, and no dispatcher has noted it yet."""

    alive: bool
    ended: bool
    fields: Mapping[str, str]  # of its mark or record

    def word(self, by: Dispatching) -> str:
        """What it does, after "it", where that is not to run for a dispatcher; else empty."""
        if by.alive:
            return "has ended; how is noted once the disk has room" if self.ended and by.full_disk else ""
        if self.alive:
            return "goes on by itself"
        return "has ended; the next dispatcher notes how" if self.ended else "is not seen running any more"

    def elapsed_s(self, started_at: float, now: float) -> float:
        """For how long it has run, or ran."""
        return max(0.0, (float(self.fields.get("ended_at", now)) if self.ended else now) - started_at)


def look(place: QueueDir, job_id: int, number: int) -> AttemptStatus:
    from gpusched.host import locks
    from gpusched.host.attempts import attempt_dir

    directory = attempt_dir.directory(place.state, job_id, number)
    alive = locks.is_held(f"{directory}/{attempt_dir.LIFE}")
    fd = attempt_dir.open_life(directory)
    if fd is None:
        return AttemptStatus(alive, False, {})
    try:
        fields = attempt_dir.parse_fields(os.pread(fd, attempt_dir.RECORD_BYTES, 0))
    finally:
        os.close(fd)
    return AttemptStatus(alive, not alive and attempt_dir.is_record(fields), fields)


def running_views(place: QueueDir, store: Store) -> list[RunningView]:
    """The running jobs with what their shepherds and their own progress files say."""
    from gpusched.core.model import RunningView
    from gpusched.host.attempts import attempt_dir

    views = []
    for job, row in store.running():
        told = attempt_dir.read_progress(attempt_dir.directory(place.state, job.id, row.number))
        progress = told.decode("utf-8", "replace") if told is not None else row.progress
        left = look(place, job.id, row.number).fields.get("leftovers", "")
        views.append(RunningView(job, replace(row, progress=progress), left))
    return views


def item_groups(store: Store, views: Sequence[RunningView], now: float) -> list[tuple[ItemGroup, float]]:
    """The groups of jobs that say how many items they do, and how many items each does in a second now.

    A job is taken to be as fast as those were that have ended, and those that tell how far they are.
    """
    from gpusched.core.documents import parse_progress
    from gpusched.core.jobs.progress import groups, items_done

    found = []
    for group in groups(store.item_counts(), views):
        own = [view for view in views if view.job.items and view.job.tags == group.tags]
        told = [view for view in own if items_done(view.job.items, parse_progress(view.attempt.progress))]
        spent = store.item_seconds(group.tags) + sum(max(0.0, now - view.attempt.started_at) for view in told)
        found.append((group, len(own) * group.done / spent if spent > 0 else 0.0))
    return found


def last_log_line(place: QueueDir, row: AttemptRow) -> str:
    from gpusched.common.text import last_line
    from gpusched.host.attempts.reaper import log_tail

    for name in (row.error_log, row.log):
        text = last_line(log_tail(f"{place.path}/{name}")) if name else ""
        if text:
            return text
    return ""


# ---- whole queues ----------------------------------------------------------------------------------


def head(place: QueueDir, store: Store, by: Dispatching, now: float, name: str) -> QueueSummary:
    """A queue in one line."""
    from gpusched.views.pages import QueueSummary
    from gpusched.views.report import tally

    counts = tally(store.counts(), store.count_removed())
    told = next(iter(reasons(store, by, now).values()), ("", ""))[1] if counts.queued else ""
    can_start = store.has_startable()
    if counts.queued and not by.alive:
        told = "a dispatcher" if can_start or not counts.held else "held jobs"
    runs_on = 0 if by.alive else sum(look(place, job.id, row.number).alive for job, row in store.running())
    return QueueSummary(name, by.pid, runs_on, counts, store.totals()["start_time"], told, can_start, by.full_disk)


def document(place: QueueDir, store: Store, by: Dispatching, now: float, *, jobs: int | None) -> dict[str, Any]:
    """One queue for programs: the head of gpu_metrics.json, its dispatcher, devices, and up to `jobs` jobs."""
    from gpusched.core.documents import job_document, metrics_head, shown_command

    waits = reasons(store, by, now)
    source = store.source()
    found: dict[str, Any] = {
        "name": place.name,
        "path": place.path,
        "source": shown_command(source) if source is not None else None,
        "dispatcher": by.pid,
        "waits_for": next(iter(waits.values()))[1] if waits else None,
        **metrics_head(store.counts(), store.count_removed(), store.totals(), now),
    }
    del found["schema_version"]  # the document that this one goes into has its own
    if jobs == 0:
        return found
    found["groups"] = [
        {
            "tags": list(group.tags),
            "jobs": group.jobs,
            "jobs_done": group.ended,
            "items": group.items,
            "items_done": group.done,
            "items_per_s": speed if by.alive else None,
        }
        for group, speed in item_groups(store, running_views(place, store), now)
    ]
    found["devices"] = []
    if by.board is not None:
        found["devices"] = [_device_document(item, by.board.max_checks) for item in by.board.devices]
    rows = store.jobs(newest=jobs)
    found["jobs"] = [
        {**job_document(row, store.attempts(row.id), place.path), "waits_for": waits.get(row.id, ("", None))[1]}
        for row in rows
    ]
    return found


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
