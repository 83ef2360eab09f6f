"""The jobs of a queue: read and counted, cancelled, held, released and queued again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpusched.common.errors import GpuschedError, stored_value
from gpusched.core.jobs.job import ENDED_STATES, JobRow, JobState, Requirements, reshape
from gpusched.core.jobs.job_filter import JobFilter
from gpusched.core.jobs.lifecycle import JobEvent
from gpusched.core.jobs.reconcile import CAUSE_REMOVED, COUNTED_NOWHERE
from gpusched.host.store import request_table, startable_jobs, transitions
from gpusched.host.store.connection import Store
from gpusched.host.store.rows import JOB, job_row, needs_columns

NOWHERE = (  # the condition of the jobs that `current_counts` leaves out
    f"(state = 'cancelled' AND cause IN {COUNTED_NOWHERE} OR listed = 0 AND state IN ('failed', 'cancelled'))"
)

# ---- reading ---------------------------------------------------------------------------------------


def get(store: Store, job_id: int) -> JobRow:
    """Return a job. Raises GpuschedError if there is none of this id."""
    row = store.row(f"SELECT {JOB} FROM jobs WHERE id = ?", (job_id,))
    if row is None:
        raise GpuschedError(f"there is no job {job_id} in this queue", hint="`gpusched status -v` lists the jobs")
    return job_row(row)


def jobs(store: Store, states: Sequence[JobState] = (), *, newest: int | None = None) -> Iterator[JobRow]:
    """Yield the jobs in these states, or all, in the order of the list.

    With `newest`, only so many, the most recently started or ended first.
    """
    where = f"WHERE state IN ({','.join('?' * len(states))})" if states else ""
    order = "ORDER BY position, id"
    if newest is not None:
        touched = "state = 'running' DESC, coalesce(ended_at, first_started_at, 0) DESC"
        order = f"ORDER BY {touched}, position LIMIT {newest:d}"
    for row in store.stream(f"SELECT {JOB} FROM jobs {where} {order}", [state.value for state in states]):
        yield job_row(row)


def failed(store: Store, limit: int = -1) -> list[JobRow]:
    """Return the first `limit` failed jobs whose line is still in the list, or all, in the order of the list."""
    these = "SELECT id FROM jobs WHERE state = 'failed' AND listed ORDER BY position, id LIMIT ?"
    rows = store.rows(f"SELECT {JOB} FROM jobs WHERE id IN ({these}) ORDER BY position, id", (limit,))
    return [job_row(row) for row in rows]


def waiting(store: Store) -> Iterator[JobRow]:
    """Yield the queued jobs in the order in which they start; at the end those that wait for others."""
    for blocked in (0, 1):
        where = f"state = 'queued' AND blocked = {blocked}"  # as an index has them
        for row in store.stream(f"SELECT {JOB} FROM jobs WHERE {where} ORDER BY prio DESC, position"):
            yield job_row(row)


def last_id(store: Store) -> int:
    """Return the largest id that a job ever had here; 0 if there was none."""
    gone = "SELECT coalesce(max(value), 0) FROM meta WHERE key = 'last_id'"
    return int(store.scalar(f"SELECT max(coalesce(max(id), 0), ({gone})) FROM jobs"))


@stored_value()
def ended_since(store: Store, since: float, newest: int | None, *, failed: bool = False) -> tuple[list[JobRow], int]:
    """Return the jobs that have ended since then, in this order, the `newest` or all; and how many there are.

    With `failed` only those that have failed.
    """
    states = "state = 'failed'" if failed else "state NOT IN ('queued', 'held', 'running')"
    where = f"FROM jobs WHERE ended_at >= ? AND {states}"
    these = f"SELECT id {where} ORDER BY ended_at DESC, id DESC LIMIT ?"  # only what is wanted is read whole
    query = f"SELECT {JOB} FROM jobs WHERE id IN ({these}) ORDER BY ended_at, id"
    rows = store.rows(query, (since, -1 if newest is None else newest))
    return [job_row(row) for row in rows], int(store.scalar(f"SELECT count(*) {where}", (since,)))


class JobStanding(NamedTuple):
    """The state of a job, and if its line is still in the list."""

    id: int
    state: JobState
    cause: str
    listed: bool


@stored_value()
def standings(store: Store, ids: Sequence[int]) -> list[JobStanding]:
    """Return the states of these jobs, without those that are not there, in the order of their ids."""
    query = "SELECT id, state, cause, listed FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
    rows = store.rows(query, (json.dumps(list(ids)),))
    return [JobStanding(job_id, JobState(state), cause, bool(listed)) for job_id, state, cause, listed in rows]


def has_tag(tags: Sequence[str]) -> str:
    """Return the condition of a job that has one of these tags, which are its values."""
    return " OR ".join(["instr(',' || tags || ',', ',' || ? || ',')"] * len(tags)) or "FALSE"


def ids(
    store: Store, states: Sequence[JobState] = (), tags: Sequence[str] = (), *, dispatched: bool = False
) -> list[int]:
    """Return the jobs in one of these states, or all, that have one of these tags, if any, in the order of the list.

    With `dispatched`, without the interactive ones.
    """
    in_state = f"state IN ({','.join('?' * len(states))})" if states else "TRUE"
    where = f"{in_state} AND ({has_tag(tags) if tags else 'TRUE'})" + (" AND origin <> 'exec'" if dispatched else "")
    values = [*(state.value for state in states), *tags]
    return [job_id for (job_id,) in store.rows(f"SELECT id FROM jobs WHERE {where} ORDER BY position, id", values)]


def ids_between(store: Store, first: int, last: int) -> list[int]:
    return [job_id for (job_id,) in store.rows("SELECT id FROM jobs WHERE id BETWEEN ? AND ?", (first, last))]


def ids_by_name(store: Store, names: Sequence[str]) -> dict[str, int]:
    """Return the id of the job of each name that there is; of the newest, where one of them has left the list."""
    query = "SELECT name, max(id) FROM jobs WHERE name IN (SELECT value FROM json_each(?)) GROUP BY name"
    return dict(store.rows(query, (json.dumps([name for name in names if name]),))) if names else {}


def words(store: Store, begin: str, limit: int) -> list[tuple[str, str]]:
    """Return the ids and names that begin so, of the newest jobs that have one, each with the job's state."""
    query = "SELECT {0}, state FROM jobs WHERE {0} <> '' AND substr({0}, 1, length(?1)) = ?1 ORDER BY id DESC LIMIT ?2"
    columns = ("name", "CAST(id AS TEXT)")
    return [row for column in columns for row in store.rows(query.format(column), (begin, limit))]


def names(store: Store) -> set[str]:
    """Return the names and tags of the jobs whose line is still in the list."""
    rows = store.rows("SELECT DISTINCT name, tags FROM jobs WHERE cause <> ?", (CAUSE_REMOVED,))
    return {word for name, tags in rows for word in (name, *tags.split(",")) if word}


@stored_value()
def counts(store: Store) -> dict[JobState, int]:
    """Return the number of all jobs in each state."""
    return {JobState(state): n for state, n in store.rows("SELECT state, n FROM counts")}


def current_counts(store: Store) -> dict[JobState, int]:
    """Return the number of jobs in each state without those that are no concern of the list any more.

    Those were removed from it before they started, have failed or were cancelled and their line is gone, or were meant
    to start after a failure that never came.
    """
    current = counts(store)
    for state, number in store.rows(f"SELECT state, count(*) FROM jobs WHERE {NOWHERE} GROUP BY state"):
        current[JobState(state)] -= number
    return current


def has_work(store: Store) -> bool:
    """Return True if a dispatcher that starts now would have something to do."""
    query = "SELECT 1 FROM jobs WHERE state = 'running' AND origin <> 'exec' LIMIT 1"
    return bool(startable_jobs.has_any(store) or store.row(query) or request_table.open_requests(store))


def wants_gpus(store: Store) -> bool:
    """Return True if a job that has not ended wants a GPU."""
    query = "SELECT 1 FROM jobs WHERE state IN ('queued', 'held', 'running') AND gpus > 0 LIMIT 1"
    return store.row(query) is not None


# ---- for a screen ----------------------------------------------------------------------------------

_ORDERS = {  # key of a filter -> what its jobs are sorted by, before their ids
    "": "CASE state WHEN 'running' THEN 0 WHEN 'queued' THEN 1 + blocked WHEN 'held' THEN 3 ELSE 4 END, "
    "CASE state WHEN 'queued' THEN -prio END, CASE WHEN state NOT IN ('running', 'queued', 'held') THEN -ended_at END, "
    "position",
    "id": "id",
    "state": "state",
    "prio": "-prio",
    "tags": "tags = '', tags",
    "started": "first_started_at IS NULL, first_started_at",
    "time": "first_started_at IS NULL, first_started_at - coalesce(ended_at, ?)",  # the longest first
    "command": "lower(coalesce(nullif(name, ''), CAST(command AS TEXT)))",
}


def select(store: Store, wanted: JobFilter, now: float) -> list[int]:
    """Return the ids of the jobs that a filter lets pass, in its order."""
    text = "instr(lower(id || ' ' || name || ' ' || tags || ' ' || CAST(command AS TEXT)), lower(?))"
    conditions = [text] * len(wanted.texts) + ([f"({has_tag(wanted.tags)})"] if wanted.tags else [])
    if wanted.states:
        conditions.append(f"state IN ({','.join('?' * len(wanted.states))})")
    values: list[object] = [*wanted.texts, *wanted.tags, *(state.value for state in wanted.states)]
    values += [now] if wanted.order == "time" else []
    query = f"SELECT id FROM jobs WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY {_ORDERS[wanted.order]}, id"
    ids = [job_id for (job_id,) in store.rows(query, values)]
    return ids[::-1] if wanted.is_reversed else ids


def some(store: Store, ids: Sequence[int]) -> list[JobRow]:
    """Return those of these jobs that are there, in this order."""
    query = f"SELECT {JOB} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
    by_id = {row.id: row for row in map(job_row, store.rows(query, (json.dumps(list(ids)),)))}
    return [by_id[job_id] for job_id in ids if job_id in by_id]


# ---- changing --------------------------------------------------------------------------------------


def cancel(store: Store, job_id: int, now: float) -> JobState:
    """Cancel a waiting job, or store the request for a running one; return its state after that."""
    with store.transaction():
        job = get(store, job_id)
        if job.state in ENDED_STATES:
            if job.state is JobState.CANCELLED and job.cause in (CAUSE_REMOVED, *transitions.STOPPED_FOR_OTHERS):
                transitions.cancel_for_good(store, job_id)
            return job.state
        store.execute("UPDATE jobs SET cancel_requested_at = ? WHERE id = ?", (now, job_id))
        if job.state is JobState.RUNNING:
            return job.state
        return transitions.move(store, job_id, JobEvent.CANCELLED, cause="", ended_at=now)


def edit(store: Store, job_id: int, needs: Requirements, *, command: bytes | None = None, above_bytes: int = 0) -> None:
    """Give a waiting job other needs; it keeps its place, its tries, its environment and what it waits for.

    `above_bytes` is the free memory that was too little for it.
    """
    columns = needs_columns(needs) | {"above_bytes": above_bytes}
    columns["shape"] = reshape(needs.shape, needs.mem_bytes, above_bytes)
    if command is not None:
        columns["command"] = command
    with store.transaction():
        store.update("jobs", "id = ?", (job_id,), **columns)


def hold(store: Store, job_id: int, cause: str = "") -> JobState:
    """Keep a waiting job from starting. Raises InvalidTransition for a job in any other state."""
    with store.transaction():
        return transitions.move(store, job_id, JobEvent.HELD, cause=cause)


def hold_where(store: Store, matches: Callable[[bytes], bool], cause: str) -> list[int]:
    """Hold every waiting job whose command matches; return their ids."""
    with store.transaction():
        waiting = store.rows("SELECT id, command FROM jobs WHERE state = 'queued'")
        ids = [job_id for job_id, command in waiting if matches(command)]
        for job_id in ids:
            transitions.move(store, job_id, JobEvent.HELD, cause=cause)
    return ids


def release(store: Store, job_id: int) -> JobState:
    """Let a held job start again; return its new state.

    If a job that it waits for has failed, it is cancelled or held again at once.

    Raises InvalidTransition for a job in any other state.
    """
    with store.transaction():
        transitions.move(store, job_id, JobEvent.RELEASED, cause="")
        transitions.weigh(store, job_id)
        return get(store, job_id).state


def requeue(store: Store, job_id: int, *, again: bool = False) -> JobState:
    """Queue a failed or cancelled job again; return its state, since a job that it waits for can stop it at once.

    With `again`, a job that has succeeded too. Raises InvalidTransition for a job in any other state.
    """
    with store.transaction():
        is_repeated = again and get(store, job_id).state is JobState.SUCCEEDED
        transitions.queue_again(store, job_id, JobEvent.REPEATED if is_repeated else JobEvent.REQUEUED)
        return get(store, job_id).state
