"""Usage of the jobs of queues, by tag, device, day or queue, and the jobs that have ended lately. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from datetime import time as midnight
from typing import Any

from gpusched.common.text import natural_key
from gpusched.core.documents import job_document
from gpusched.core.model import AttemptRow, OutcomeKind
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.look.status import JSON_LIMIT, read_attempt, read_each, with_last
from gpusched.operations.queues import OpenQueue
from gpusched.views.values import JobWithLast, UsageSum

NO_FAILURES = (OutcomeKind.CANCELLED, OutcomeKind.INTERRUPTED)
SHOWN_JOBS = 100

Usage = tuple[dict[str, UsageSum], UsageSum]  # by key, and of all together


def read_usage(known: Sequence[QueueDir], by: str, since: float = 0.0) -> tuple[Usage, list[str]]:
    """Return what the jobs of these queues have used since then, and a text for each queue that cannot be read.

    `by` is tag, device, day or queue. A job of two tags is counted under both, and once in the sum of all.
    """
    sums: dict[str, UsageSum] = {}
    together = UsageSum()

    def add(queue: OpenQueue) -> None:
        name = queues.queue_name(queue.queue_dir, known)
        for tags, row in attempt_table.spent(queue.store):
            share = _share_of(queue, name, row, since)
            if since and not share.job_s:
                continue
            together.add(share)
            if by == "day":
                parts = list(_days(max(row.started_at, since), share.job_s))
            elif by == "device":
                labels = [f"GPU {device.index}  {device.uuid}  {device.name}" for device in row.devices]
                parts = [(label, 1 / len(labels)) for label in labels] or [("CPU", 1.0)]
            else:
                parts = [(key, 1.0) for key in ([name] if by == "queue" else tags.split(","))]
            for key, part in parts:
                sums.setdefault(key, UsageSum()).add(share, part)

    broken = read_each(known, add)[1]
    return ({key: sums[key] for key in sorted(sums, key=natural_key)}, together), broken


def _share_of(queue: OpenQueue, name: str, row: AttemptRow, since: float) -> UsageSum:
    """Return what one attempt has used since then; `name` is that of its queue. An interactive one has no log."""
    outcome, usage = row.outcome, row.usage
    whole_s = _open_s(queue, row) if row.ended_at is None else max(0.0, row.ended_at - row.started_at)
    job_s = max(0.0, min(whole_s, row.started_at + whole_s - since))
    gpu_s = job_s * len(row.devices)
    return UsageSum(
        {(name, row.job_id)},
        attempts=1,
        failed=int(bool(row.log) and outcome is not None and not outcome.ok and outcome.kind not in NO_FAILURES),
        job_s=job_s,
        gpu_s=gpu_s,
        idle_s=gpu_s * (usage.idle_share or 0.0),
        energy_j=(usage.energy_j or 0.0) * (job_s / whole_s if whole_s else 1.0),
        foreign_use=usage.foreign_use,
    )


def _open_s(queue: OpenQueue, row: AttemptRow) -> float:
    """Return how long an attempt has run whose end is not noted; 0 if it is not seen running any more."""
    status = read_attempt(queue.queue_dir, row.job_id, row.number)
    is_seen = status.alive or status.ended or queue.dispatcher.alive
    return status.elapsed_s(row.started_at, queue.now) if is_seen else 0.0


def _days(began: float, lasted_s: float) -> Iterator[tuple[str, float]]:
    """Yield the days on which an attempt ran, in local time, each with its share of the attempt."""
    day, left_s = datetime.fromtimestamp(began).date(), lasted_s
    while True:
        part_s = min(left_s, _begin_of(day + timedelta(days=1)) - (began + lasted_s - left_s))
        yield day.isoformat(), part_s / lasted_s if lasted_s else 1.0
        left_s -= part_s
        day += timedelta(days=1)
        if left_s <= 0:
            return


def _begin_of(day: date) -> float:
    return datetime.combine(day, midnight()).timestamp()


def usage_document(usage: Usage, by: str) -> dict[str, Any]:
    by_key, together = usage
    rows = [{by: key, **each.document()} for key, each in by_key.items()]
    return {"by": by, "usage": rows, "total": together.document()}


# ---- history ---------------------------------------------------------------------------------------


def yesterday() -> float:
    """Return when yesterday began, in local time."""
    return _begin_of(date.fromtimestamp(queues.now()) - timedelta(days=1))


def read_history(
    queue: OpenQueue, since: float, limit: int | None, *, failed: bool = False
) -> tuple[list[JobWithLast], int]:
    """Return the jobs that have ended since then, in this order, the newest `limit` or all; and how many there are.

    With `failed` only those that have failed.
    """
    jobs, number = job_table.ended_since(queue.store, since, limit, failed=failed)
    return with_last(queue.store, jobs), number


def history_document(
    queue: OpenQueue, since: float, limit: int | None = JSON_LIMIT, *, failed: bool = False
) -> dict[str, Any]:
    jobs, number = job_table.ended_since(queue.store, since, limit, failed=failed)
    path = queue.queue_dir.path
    rows = [job_document(job, attempt_table.attempts(queue.store, job.id), path) for job in jobs]
    return {"queue": path, "since": since, "ended": number, "jobs": rows}
