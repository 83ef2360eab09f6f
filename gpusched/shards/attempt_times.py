"""The attempts of a plan's shards as their queue has them: a file belongs to the attempt that has written it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpusched.core.model import AttemptRow, OutcomeKind
from gpusched.host.queue.queue_dirs import list_queues, locate
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.shards.plan import TAG

CLOCKS_DIFFER_S = 2.0  # between this machine and the one that keeps the files


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The attempt of a shard that succeeded, or else its last one, and the number of its attempts."""

    attempts: int
    started_at: float
    ended_at: float = float("inf")

    def covers(self, at: float) -> bool:
        """Return True if a file that was written at this moment may be by this attempt."""
        return not self.is_before(at) and at <= self.ended_at + CLOCKS_DIFFER_S

    def is_before(self, at: float) -> bool:
        """Return True if a file that was written at this moment is by an earlier attempt."""
        return at < self.started_at - CLOCKS_DIFFER_S


def read_runs(plan_path: str) -> dict[str, ShardRun]:
    """Return the runs of all shards that have begun, by their names; none where the plan lies in no queue.

    Raises GpuschedError for a queue that cannot be read.
    """
    directory = os.path.dirname(os.path.abspath(plan_path))
    queue = next((queue for queue in list_queues() if queue.path == directory), locate(directory))
    if not queue.exists():
        return {}
    store = Store(queue.database, read_only=True)
    try:
        shards = [job for job in job_table.jobs(store) if TAG in job.tags and job.listed]
        runs = {job.name: _run(attempt_table.attempts(store, job.id)) for job in shards}
    finally:
        store.close()
    return {name: run for name, run in runs.items() if run is not None}


def _run(attempts: list[AttemptRow]) -> ShardRun | None:
    begun = [one for one in attempts if one.outcome is None or one.outcome.kind is not OutcomeKind.NOT_STARTED]
    if not begun:
        return None
    last = next((one for one in reversed(begun) if one.outcome is not None and one.outcome.ok), begun[-1])
    return ShardRun(len(begun), last.started_at, last.ended_at or float("inf"))
