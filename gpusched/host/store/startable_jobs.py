"""The head of a queue: the waiting jobs that wait for no other job, by shape and in their order."""

from __future__ import annotations

from gpusched.core.jobs.job import JobRow
from gpusched.core.jobs.lifecycle import BACKOFF_HORIZON_S
from gpusched.host.store.connection import Store
from gpusched.host.store.rows import JOB, job_row

SHAPES_MAX = 500  # where there are more, the order alone counts


def has_any(store: Store) -> bool:
    """Return True if a job waits that waits for no other job; one that begins later is among them."""
    return store.row("SELECT 1 FROM jobs WHERE state = 'queued' AND blocked = 0 LIMIT 1") is not None


def has_any_submitted_since(store: Store, since: float) -> bool:
    """Return True if a job waits that was submitted by itself later than that: nobody is there to dispatch it."""
    query = (
        "SELECT 1 FROM jobs WHERE state = 'queued' AND blocked = 0 AND origin = 'submit' AND submitted_at >= ? LIMIT 1"
    )
    return store.row(query, (since,)) is not None


def shapes(store: Store) -> list[str]:
    """Return the shapes of the startable jobs, read by leaps over the index; at most SHAPES_MAX and one more."""
    query = (
        "WITH RECURSIVE leap (shape) AS ("
        "SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 UNION ALL "
        "SELECT (SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 AND shape > leap.shape) "
        f"FROM leap WHERE leap.shape IS NOT NULL LIMIT {SHAPES_MAX + 2}) "
        "SELECT shape FROM leap WHERE shape IS NOT NULL"
    )
    return [shape for (shape,) in store.rows(query)]


def first(store: Store, now: float, limit: int, shape: str | None = None) -> list[JobRow]:
    """Return the first startable jobs that do not back off, of one shape or of all, in their order."""
    of_shape = "AND shape = ?3 " if shape is not None else ""
    query = (
        f"SELECT {JOB} FROM jobs WHERE state = 'queued' AND blocked = 0 {of_shape}"
        f"AND (not_before <= ?1 OR not_before > ?1 + {BACKOFF_HORIZON_S}) AND begin_at <= ?1 "
        "ORDER BY prio DESC, position LIMIT ?2"
    )
    values = (now, limit) if shape is None else (now, limit, shape)
    return [job_row(row) for row in store.rows(query, values)]


def count_waiting(store: Store, now: float) -> tuple[int, dict[str, int]]:
    """Return how many queued jobs could start, and of the others how many wait for a job, a pause or a time."""
    queued = "SELECT count(*) FROM jobs WHERE state = 'queued'"
    unblocked = store.scalar(f"{queued} AND blocked = 0")
    backing_off = store.scalar(f"{queued} AND not_before > 0 AND not_before > ?", (now,))
    begin_later = store.scalar(f"{queued} AND begin_at > 0 AND begin_at > ?", (now,))
    blocked = store.scalar("SELECT n FROM counts WHERE state = 'queued'") - unblocked
    others = {"dependency": blocked, "back_off": backing_off, "begin": begin_later}
    return max(0, unblocked - backing_off - begin_later), others


def next_not_before(store: Store, now: float) -> float | None:
    """Return the moment at which the next job that backs off, or begins later, may start; None if no job does."""
    query = (
        "SELECT min(at) FROM (SELECT min(not_before) AS at FROM jobs WHERE state = 'queued' AND not_before > 0 "
        "AND not_before > ?1 AND not_before <= ?1 + ?2 UNION ALL "
        "SELECT min(begin_at) FROM jobs WHERE state = 'queued' AND begin_at > ?1 AND begin_at > 0)"
    )
    value = store.scalar(query, (now, BACKOFF_HORIZON_S))
    return None if value is None else float(value)
