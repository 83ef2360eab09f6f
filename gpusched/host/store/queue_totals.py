"""Sums over a queue: times, and the items that its jobs say they do."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.common.errors import stored_value
from gpusched.core.jobs.progress import ItemCount, Span
from gpusched.core.model import JobState
from gpusched.host.store.connection import Store
from gpusched.host.store.job_table import NOWHERE

GROUPS_MAX = 50


def times(store: Store) -> dict[str, float]:
    """Return waits of started jobs, time in attempts, time of dispatchers, and when the first of them started."""
    queries = {  # rows with a time that is not there yet add nothing
        (
            "total_wait_time",
            "started_jobs",
        ): "total(first_started_at - submitted_at), count(first_started_at) FROM jobs",
        ("total_job_time",): "total(ended_at - started_at) FROM attempts",
        (
            "total_runtime",
            "start_time",
        ): "total(last_seen_at - started_at), coalesce(min(started_at), 0) FROM dispatches",
    }
    times: dict[str, float] = {}
    for names, query in queries.items():
        times.update(zip(names, store.row(f"SELECT {query}"), strict=True))
    return times


@stored_value()
def item_counts(store: Store) -> list[ItemCount]:
    """Return the counts of the jobs that say how many items they do, by tags and state, for GROUPS_MAX different tags.

    Jobs that `job_table.current_counts` leaves out are not among them.
    """
    removed = f"FROM jobs WHERE {NOWHERE} AND state = counted.state AND items > 0 AND tags = counted.tags"
    some = "state IN ('failed', 'cancelled') AND jobs > 0"  # else nothing is searched: a live view asks twice a second
    query = (
        f"SELECT tags, state, jobs - CASE WHEN {some} THEN (SELECT count(*) {removed}) ELSE 0 END, "
        f"items - CASE WHEN {some} THEN (SELECT coalesce(sum(items), 0) {removed}) ELSE 0 END "
        "FROM item_counts AS counted "
        f"WHERE tags IN (SELECT DISTINCT tags FROM item_counts LIMIT {GROUPS_MAX})"
    )
    return [
        ItemCount(tuple(tags.split(",")) if tags else (), JobState(state), jobs, items)
        for tags, state, jobs, items in store.rows(query)
    ]


def item_spans(store: Store, tags: Sequence[str]) -> list[Span]:
    """Return every attempt that has ended of the jobs with items that have exactly these tags."""
    query = (
        "SELECT j.id, j.name, j.items, a.started_at, a.ended_at, j.state = 'succeeded' AND a.number = j.attempts "
        "FROM jobs j JOIN attempts a ON a.job_id = j.id "
        "WHERE j.items > 0 AND j.tags = ? AND j.listed AND a.ended_at IS NOT NULL"
    )
    return [Span(*columns) for columns in store.rows(query, (",".join(tags),))]


def item_seconds(store: Store, tags: Sequence[str]) -> float:
    """Return the seconds that the succeeded jobs with items that have exactly these tags took, added up."""
    query = (
        "SELECT coalesce(sum(a.ended_at - a.started_at), 0) "
        "FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = j.attempts "
        "WHERE j.items > 0 AND j.tags = ? AND j.state = 'succeeded'"
    )
    return float(store.scalar(query, (",".join(tags),)))
