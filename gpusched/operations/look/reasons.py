"""The reasons why jobs wait: by the dispatcher's own plan, made again from what it published and from the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from gpusched.common.text import ranges
from gpusched.core.model import JobRow
from gpusched.core.plan import observe
from gpusched.core.plan.planner import make_plan
from gpusched.host.store import Store, attempt_table, dependency_table, job_table, startable_jobs
from gpusched.operations.look.nodes import read_cluster
from gpusched.operations.queues import OpenQueue

HEAD_LIMIT = 500  # waiting jobs whose reasons `status` looks for
SHOWN_UNMET = 20  # of the jobs that wait for others: so many come with the others' names
SHOWN_SPANS = 6
SHOWN_SHAPE = 8  # jobs of a shape, before one that is far behind


def wait_reasons(queue: OpenQueue, *, until: int | None = None) -> dict[int, tuple[str, str]]:
    """Return why each of the first waiting jobs, and the queued job `until`, waits: kind and text, by job id."""
    store, dispatcher = queue.store, queue.dispatcher
    rows = _head(store, until, queue.now)
    blocked = dict(_unmet(store, rows, until))
    if dispatcher.alive and (cluster := read_cluster(queue.queue_dir, store)) is not None:
        behind = ("behind", "behind the jobs before it; the head looks at the first ones of each kind")
        if not cluster.nodes:
            behind = ("nobody", "no node is in the cluster: `gpusched cluster up HOSTS.yaml` starts them")
        known = {job_id: ("devices", text) for job_id, text in cluster.reasons.items()}
        return {row.id: blocked.get(row.id) or known.get(row.id, behind) for row in rows}
    if dispatcher.board is None:
        who = dispatcher.closed or "the dispatcher has not looked at the GPUs yet"
        nobody = ("nobody", who if dispatcher.alive else "no dispatcher works on this queue")
        nobody = ("closed", dispatcher.paused) if dispatcher.paused else nobody
        return {row.id: blocked.get(row.id, nobody) for row in rows}
    snapshot = observe.snapshot(
        replace(dispatcher.board, closed=dispatcher.closed),
        queue.now,
        waiting=(row for row in rows if not row.blocked),
        attempts=(observe.open_attempt(job, row) for job, row in attempt_table.running(store)),
    )
    plan = make_plan(snapshot)
    reasons = blocked | {job_id: (reason.kind, reason.text) for job_id, reason in plan.reasons.items()}
    for job_id, where in observe.start_labels(plan, snapshot.devices).items():
        reasons[job_id] = ("next", f"starts at the dispatcher's next look, on {where}")
    return reasons


def _unmet(store: Store, rows: list[JobRow], until: int | None) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield what each blocked job waits for: in full for the first ones and for `until`, since each costs a search."""
    for number, row in enumerate(row for row in rows if row.blocked):
        in_full = number < SHOWN_UNMET or row.id == until
        yield row.id, ("dependency", describe_dependencies(store, row) if in_full else "waits for other jobs")


def _head(store: Store, until: int | None, now: float) -> list[JobRow]:
    """Return the first waiting jobs; and `until` behind the first ones of its shape, for which it has to wait."""
    rows = list(islice(job_table.waiting(store), HEAD_LIMIT))
    if until is None or any(row.id == until for row in rows):
        return rows
    job = job_table.get(store, until)
    alike = startable_jobs.first(store, now, SHOWN_SHAPE, job.shape)
    return list({row.id: row for row in (*rows, *alike, job)}.values())


def describe_dependencies(store: Store, row: JobRow) -> str:
    """Return the jobs that a job depends on, with their states: those of one dependency together."""
    by_kind: dict[str, list[JobRow]] = {}
    for kind, job in dependency_table.upstream(store, row.id):
        by_kind.setdefault(kind, []).append(job)
    return "waits " + "; ".join(f"{kind} {_states_text(jobs)}" for kind, jobs in by_kind.items())


def _states_text(jobs: list[JobRow]) -> str:
    if len(jobs) == 1:
        return f"job {jobs[0].id} ({', '.join(filter(None, (jobs[0].name, jobs[0].state.value)))})"
    states: dict[str, list[int]] = {}
    for job in jobs:
        states.setdefault(job.state.value, []).append(job.id)
    return "jobs " + ", ".join(f"{_cut(ranges(ids))} ({state})" for state, ids in states.items())


def _cut(spans: str) -> str:
    shown = spans.split(", ")
    return spans if len(shown) <= SHOWN_SPANS else f"{', '.join(shown[:SHOWN_SPANS])} …"
