"""The one way to change a job's state, and the effect of a change on the jobs that wait for it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.job import DependencyKind, JobState, reshape
from gpusched.core.jobs.lifecycle import JobEvent, next_state
from gpusched.core.jobs.readiness import (
    CAUSE_DEPENDENCY,
    CAUSE_NOT_NEEDED,
    DependencyTally,
    Readiness,
    end_of,
    readiness,
    readiness_of,
)
from gpusched.host.store import meta_table
from gpusched.host.store.connection import Store

_AS_NEW = {  # columns of a job that begins anew
    **{"cause": "", "ended_at": None, "cancel_requested_at": None, "tries": 0, "losses": 0, "not_before": 0.0},
    "above_bytes": 0,
}
STOPPED_FOR_OTHERS = (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED)  # causes of jobs that are freed by themselves


def move(store: Store, job_id: int, event: JobEvent, **columns: object) -> JobState:
    """Apply the transition table to a job, set these columns with it, and return the new state."""
    row = store.row("SELECT state, line FROM jobs WHERE id = ?", (job_id,))
    if row is None:
        raise GpuschedError(f"there is no job {job_id}", hint="`gpusched status -v` lists the jobs")
    state = next_state(JobState(row[0]), event, f"job {job_id}, line {row[1]}")
    _set(store, job_id, state, columns)
    return state


def cancel_for_good(store: Store, job_id: int) -> None:
    """Note that a job that was cancelled by itself stays so by a person's wish."""
    _set(store, job_id, JobState.CANCELLED, {"cause": ""})


def _set(store: Store, job_id: int, state: JobState, columns: Mapping[str, object]) -> None:
    before = _end(store, job_id)
    more = "".join(f", {name} = ?" for name in columns)
    store.execute(f"UPDATE jobs SET state = ?{more} WHERE id = ?", (state.value, *columns.values(), job_id))
    _ripple(store, job_id, before, _end(store, job_id))


def _end(store: Store, job_id: int) -> str:
    state, cause = store.row("SELECT state, cause FROM jobs WHERE id = ?", (job_id,))
    return end_of(JobState(state), cause)


def queue_again(store: Store, job_id: int, event: JobEvent = JobEvent.REQUEUED) -> None:
    """Queue a job that has ended as if it were new; its budget of memory stays, and so do the devices to avoid."""
    move(store, job_id, event, **_AS_NEW)
    shape, mem_bytes = store.row("SELECT shape, mem_bytes FROM jobs WHERE id = ?", (job_id,))
    store.update("jobs", "id = ?", (job_id,), shape=reshape(shape, mem_bytes, 0))
    weigh(store, job_id)


# ---- effects on other jobs -------------------------------------------------------------------------


def weigh(store: Store, job_id: int) -> None:
    """Look whether the jobs that a job waits for let it start; cancel, hold or free it accordingly."""
    state_text, cause, was_blocked = store.row("SELECT state, cause, blocked FROM jobs WHERE id = ?", (job_id,))
    state = JobState(state_text)
    is_stopped = cause in STOPPED_FOR_OTHERS and state in (JobState.CANCELLED, JobState.HELD)
    if state is not JobState.QUEUED and not is_stopped:
        return
    verdict = readiness(_tallies(store, job_id))
    if verdict in (Readiness.IMPOSSIBLE, Readiness.UNNEEDED):
        if state is JobState.QUEUED:
            _stop(store, job_id, CAUSE_DEPENDENCY if verdict is Readiness.IMPOSSIBLE else CAUSE_NOT_NEEDED)
        return
    store.effects.freed |= verdict is Readiness.READY
    if is_stopped and state is JobState.HELD:
        move(store, job_id, JobEvent.RELEASED, cause="")
    elif is_stopped:
        queue_again(store, job_id)
    is_blocked = verdict is Readiness.WAITING
    if is_blocked != bool(was_blocked):
        store.execute("UPDATE jobs SET blocked = ? WHERE id = ?", (is_blocked, job_id))


def _stop(store: Store, job_id: int, cause: str) -> None:
    """Cancel or hold a waiting job that the jobs it waits for will never let start."""
    holds = cause == CAUSE_DEPENDENCY and meta_table.read(store, "on_dep_fail") == "hold"
    event, ended_at = (JobEvent.HELD, None) if holds else (JobEvent.CANCELLED, time.time())
    state = move(store, job_id, event, cause=cause, ended_at=ended_at)
    store.effects.stopped.append((job_id, state, cause))


def take_stopped(store: Store) -> list[tuple[int, JobState, str]]:
    """Return the jobs cancelled or held since the last call because of jobs they depend on: id, state, cause."""
    stopped, store.effects.stopped = store.effects.stopped, []
    return stopped


def take_freed(store: Store) -> bool:
    """Return True if, since the last call, a job may have become free to start by the end of another."""
    freed, store.effects.freed = store.effects.freed, False
    return freed


def _tallies(store: Store, job_id: int) -> list[tuple[DependencyKind, DependencyTally]]:
    query = (
        "SELECT d.kind, s.total, s.succeeded, s.failed, s.cancelled, s.unneeded "
        "FROM dependencies d JOIN sets s ON s.id = d.set_id WHERE d.job_id = ?"
    )
    return [(DependencyKind(kind), DependencyTally(*counts)) for kind, *counts in store.rows(query, (job_id,))]


def _ripple(store: Store, job_id: int, before: str, after: str) -> None:
    """Count the change in the sets that the job is in, and weigh the jobs whose wait it decides; without recursion."""
    if before == after:
        return
    uncounted = store.effects.uncounted
    uncounted.append((job_id, before, after))
    if len(uncounted) > 1:
        return  # the loop below, further up the stack, comes to it
    try:
        while uncounted:
            _count(store, *uncounted[0])
            uncounted.popleft()
    finally:
        uncounted.clear()


def _count(store: Store, job_id: int, before: str, after: str) -> None:
    tally = "total, succeeded, failed, cancelled, unneeded"
    query = f"SELECT id, {tally} FROM sets JOIN members ON set_id = id WHERE upstream_id = ?"
    changes = ", ".join(f"{end} = {end} {step}" for end, step in ((before, "- 1"), (after, "+ 1")) if end)
    for set_id, *counts in store.rows(query, (job_id,)):
        old = DependencyTally(*counts)
        new = DependencyTally(*store.row(f"UPDATE sets SET {changes} WHERE id = ? RETURNING {tally}", (set_id,)))
        for kind in DependencyKind:
            if readiness_of(kind, old) is not readiness_of(kind, new):
                waiting = "SELECT job_id FROM dependencies WHERE set_id = ? AND kind = ?"
                for (dependant,) in store.rows(waiting, (set_id, kind.value)):
                    weigh(store, dependant)
