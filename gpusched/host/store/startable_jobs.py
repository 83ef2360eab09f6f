"""The head of a queue: the waiting jobs that wait for no other job, by shape and in their order."""

from __future__ import annotations

from gpusched.core.model import JobRow
from gpusched.host.store.connection import Store
from gpusched.host.store.rows import JOB, job_row

SHAPES_MAX = 500  # where there are more, the order alone counts


def has_any(store: Store) -> bool:
    """Return True if a job waits that waits for no other job."""
    return store.row("SELECT 1 FROM jobs WHERE state = 'queued' AND blocked = 0 LIMIT 1") is not None


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
        f"SELECT {JOB} FROM jobs WHERE state = 'queued' AND blocked = 0 {of_shape}AND not_before <= ?1 "
        "ORDER BY prio DESC, position LIMIT ?2"
    )
    values = (now, limit) if shape is None else (now, limit, shape)
    return [job_row(row) for row in store.rows(query, values)]


def next_not_before(store: Store, now: float) -> float | None:
    """Return the moment at which the next job that backs off may start."""
    query = "SELECT min(not_before) FROM jobs WHERE state = 'queued' AND not_before > 0 AND not_before > ?"
    value = store.scalar(query, (now,))
    return None if value is None else float(value)


def shorten_back_offs(store: Store, until: float) -> None:
    """Let no waiting job back off beyond this moment: only a wrong clock can have made it do so."""
    if store.row("SELECT 1 FROM jobs WHERE state = 'queued' AND not_before > ?", (until,)):
        with store.transaction():
            store.execute("UPDATE jobs SET not_before = ?1 WHERE state = 'queued' AND not_before > ?1", (until,))
