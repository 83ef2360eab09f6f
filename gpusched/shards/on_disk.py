"""The files that the shards of a plan have left, and the attempts that have written them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass

from gpusched.common.merge_record import Stamp, file_stamp
from gpusched.core.model import AttemptRow, OutcomeKind
from gpusched.host.queue.queue_dirs import list_queues, locate
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.shards.plan import TAG, Shard, ShardPlan

CLOCKS_DIFFER_S = 2.0  # between this machine and the one that keeps the files


@dataclass(frozen=True, slots=True)
class ShardRun:
    """The attempt of a shard that succeeded, or else its last one, and the number of its attempts."""

    attempts: int
    started_at: float
    ended_at: float = float("inf")

    def covers(self, at: float, tolerance_s: float) -> bool:
        """Return True if a file that was written at this moment may be by this attempt."""
        return self.started_at - tolerance_s <= at <= self.ended_at + tolerance_s

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
    with Store(queue.database, read_only=True) as store:
        shards = [job for job in job_table.jobs(store) if TAG in job.tags and job.listed]
        runs = {job.name: _run(attempt_table.attempts(store, job.id)) for job in shards}
    return {name: run for name, run in runs.items() if run is not None}


def _run(attempts: list[AttemptRow]) -> ShardRun | None:
    begun = [one for one in attempts if one.outcome is None or one.outcome.kind is not OutcomeKind.NOT_STARTED]
    if not begun:
        return None
    last = next((one for one in reversed(begun) if one.outcome is not None and one.outcome.ok), begun[-1])
    return ShardRun(len(begun), last.started_at, last.ended_at or float("inf"))


def matched_files(plan: ShardPlan) -> dict[str, Stamp]:
    """Return all files that the patterns of a plan name, with what tells a change of them."""
    patterns = {pattern for shard in plan.shards for pattern in shard.outputs}
    stamps = {path: file_stamp(path) for pattern in patterns for path in glob.iglob(pattern)}
    return {path: stamp for path, stamp in stamps.items() if stamp is not None}


def lacks_file(plan: ShardPlan, shard: Shard) -> bool:
    """Return True if one of the patterns of a shard names no file that is newer than the plan."""
    newest = [
        max([stamp[1] for path in glob.iglob(pattern) if (stamp := file_stamp(path))], default=0)
        for pattern in shard.outputs
    ]
    return any(at / 1e9 < plan.created_at - CLOCKS_DIFFER_S for at in newest)
