"""The reasons why jobs wait: by the dispatcher's own plan, made again from what it published and from the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from gpusched.core.model import JobRow, JobState
from gpusched.core.plan import observe
from gpusched.core.plan.planner import make_plan
from gpusched.host.store import Store, attempt_table, dependency_table, job_table
from gpusched.operations.dispatchers import DispatcherStatus
from gpusched.views.words import ranges

HEAD_LIMIT = 500  # waiting jobs whose reasons `status` looks for
SHOWN_UNMET = 20  # of the jobs that wait for others: so many come with the others' names
SHOWN_SPANS = 6


def wait_reasons(
    store: Store, dispatcher: DispatcherStatus, now: float, *, until: int | None = None
) -> dict[int, tuple[str, str]]:
    """Return why each of the first waiting jobs (or all up to the job `until`) waits: kind and text, by job id."""
    rows = list(_head(store, until))
    blocked = dict(_unmet(store, rows, until))
    if dispatcher.board is None:
        who = dispatcher.closed or f"the dispatcher (pid {dispatcher.pid}) has not looked at the GPUs yet"
        nobody = ("nobody", who if dispatcher.alive else "no dispatcher works on this queue")
        return {row.id: blocked.get(row.id, nobody) for row in rows}
    snapshot = observe.snapshot(
        replace(dispatcher.board, closed=dispatcher.closed),
        now,
        waiting=(row for row in rows if not row.blocked),
        attempts=(observe.open_attempt(job, row) for job, row in attempt_table.running(store)),
    )
    plan = make_plan(snapshot)
    reasons = blocked | {job_id: (reason.kind, reason.text) for job_id, reason in plan.reasons.items()}
    for job_id, where in observe.start_labels(plan, snapshot.devices).items():
        reasons[job_id] = ("next", f"starts at the dispatcher's next look, on {where}")
    return reasons


def _unmet(store: Store, rows: list[JobRow], until: int | None) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield what each blocked job waits for: in full for the first ones or for `until`, since each costs a search."""
    detailed = 0
    for row in rows:
        if row.blocked:
            in_full = detailed < SHOWN_UNMET if until is None else row.id == until
            detailed += in_full
            yield row.id, ("dependency", describe_dependencies(store, row) if in_full else "waits for other jobs")


def _head(store: Store, until: int | None) -> Iterator[JobRow]:
    waiting = job_table.jobs(store, [JobState.QUEUED], by_start=True)
    if until is None:
        yield from islice(waiting, HEAD_LIMIT)
        return
    for row in waiting:
        yield row
        if row.id == until:
            return


def describe_dependencies(store: Store, row: JobRow) -> str:
    """Return the jobs that a job depends on, with their states: those of one dependency together."""
    by_kind: dict[str, list[JobRow]] = {}
    for kind, job in dependency_table.upstream(store, row.id):
        by_kind.setdefault(kind, []).append(job)
    return "waits " + "; ".join(f"{kind} {_states_text(jobs)}" for kind, jobs in by_kind.items())


def _states_text(jobs: list[JobRow]) -> str:
    if len(jobs) == 1:
        name = f" ({jobs[0].name})" if jobs[0].name else ""
        return f"job {jobs[0].id}{name}, which {_state_text(jobs[0].state.value)}"
    states: dict[str, list[int]] = {}
    for job in jobs:
        states.setdefault(job.state.value, []).append(job.id)
    all_of_them = f"jobs {_cut(ranges(job.id for job in jobs))}"
    if len(states) == 1:
        return f"{all_of_them}, which {_state_text(jobs[0].state.value, len(jobs))}"
    parts = [f"{_cut(ranges(ids))} {_state_text(state, len(ids))}" for state, ids in states.items()]
    return f"{all_of_them}, of which {', '.join(parts)}"


def _state_text(state: str, number: int = 1) -> str:
    verb = ("has" if number == 1 else "have") if state in ("succeeded", "failed") else ("is" if number == 1 else "are")
    return f"{verb} {state}"


def _cut(spans: str) -> str:
    shown = spans.split(", ")
    return spans if len(shown) <= SHOWN_SPANS else f"{', '.join(shown[:SHOWN_SPANS])} …"
