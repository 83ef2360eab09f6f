"""Sums over a queue: times, and the items that its jobs say they do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gpusched.common.errors import stored_value
from gpusched.core.jobs.progress import ItemCount, Span, StartTotals
from gpusched.core.model import JobState
from gpusched.host.store.connection import Store
from gpusched.host.store.job_table import NOWHERE

GROUPS_MAX = 50


def times(store: Store) -> dict[str, float]:
    """Return waits of started jobs, time in attempts, time of dispatchers, when the first started, and their number."""
    names = ("total_wait_time", "started_jobs", "total_job_time", "total_runtime", "start_time", "starts")
    row = store.row(  # rows with a time that is not there yet add nothing
        "SELECT * FROM (SELECT total(first_started_at - submitted_at), count(first_started_at) FROM jobs), "
        "(SELECT total(ended_at - started_at) FROM attempts), "
        "(SELECT total(last_seen_at - started_at), coalesce(min(started_at), 0), count(*) FROM dispatches)"
    )
    return dict(zip(names, row, strict=True))


def ended_attempts(store: Store) -> tuple[dict[str, int], float, float]:
    """Return the attempts that have ended, by outcome, their seconds on each of their GPUs, and their joules."""
    rows = store.rows(
        "SELECT outcome, count(*), total((ended_at - started_at) * json_array_length(devices)), total(energy_j) "
        "FROM attempts WHERE ended_at IS NOT NULL GROUP BY outcome"
    )
    return {row[0]: row[1] for row in rows}, sum(row[2] for row in rows), sum(row[3] for row in rows)


_GPU_SECONDS = """
    WITH spans AS (
        SELECT json_extract(device.value, '$[0]') AS uuid, max(started_at, ?1) AS began, coalesce(ended_at, ?2) AS ended
        FROM attempts, json_each(attempts.devices) AS device WHERE coalesce(ended_at, ?2) > ?1
    ), ordered AS (
        SELECT began, ended, max(ended) OVER (
            PARTITION BY uuid ORDER BY began ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS busy_until FROM spans
    )
    SELECT total(max(0, ended - max(began, coalesce(busy_until, began)))) FROM ordered
"""  # those that several attempts share are counted once


def starts(store: Store, now: float, *, is_dispatched: bool) -> list[StartTotals]:
    """Return what the last start of a queue has done, and then all of them, if there were several."""
    dispatches = store.rows("SELECT started_at, last_seen_at FROM dispatches ORDER BY id DESC")
    last = store.scalar("SELECT coalesce(max(coalesce(ended_at, started_at)), 0) FROM attempts")
    totals = []
    for number in sorted({1, len(dispatches)} if dispatches else ()):
        since = dispatches[number - 1][0]
        until = now if is_dispatched else max(dispatches[0][1], last)  # one that was killed was seen some time before
        times = (since, until)
        ended = f"ended_at BETWEEN ?1 AND ?2 AND NOT {NOWHERE}"
        states = store.rows(f"SELECT state, count(*) FROM jobs WHERE {ended} GROUP BY state", times)
        attempts = store.scalar("SELECT count(*) FROM attempts WHERE coalesce(ended_at, ?2) > ?1", times)
        by_state = {JobState(state): n for state, n in states}
        work_s = until - since - sum(began - ended for (began, _), (_, ended) in pairwise(dispatches[:number]))
        gpu_s = store.scalar(_GPU_SECONDS, times)
        totals.append(StartTotals(number, since, until, by_state, attempts, gpu_s=gpu_s, work_s=work_s))
    return totals


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
