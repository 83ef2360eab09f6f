"""The earlier runs of a sharded script in its queue, and the test whether a new start fits them. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError
from gpusched.common.merge_record import MergeRecord, file_stamp, read_record
from gpusched.core.jobs.reconcile import CAUSE_REMOVED, StoredJob
from gpusched.host.store import attempt_table, job_table, meta_table, submission
from gpusched.operations import queues
from gpusched.shards.files import read_plan
from gpusched.shards.jobs import merge_id
from gpusched.shards.on_disk import lacks_file, matched_files
from gpusched.shards.plan import MERGE, TAG, ShardPlan
from gpusched.views.words import count

if TYPE_CHECKING:
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.host.store import Store


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The plan, the shards and the merges of earlier runs, as far as a queue holds them."""

    plan: ShardPlan | None = None
    states: Mapping[str, str] = field(default_factory=dict)  # of the shards, by the names of their jobs
    ended_at: Sequence[float] = ()  # of the shards
    merge_started_at: Mapping[int, float] = field(default_factory=dict)  # last start of each merge, by the job's id
    stored_jobs: Sequence[StoredJob] = ()
    record: MergeRecord | None = None  # of the last merge

    def has_split_of(self, plan: ShardPlan) -> bool:
        """Return True if there is an earlier plan, with the split of this one."""
        return self.plan is not None and self.plan.split == plan.split

    def refuse_other_split(self, plan: ShardPlan, queue_dir: QueueDir) -> None:
        """Raise GpuschedError if shards of another split are done or running: items would be processed twice."""
        active = [state for state in self.states.values() if state in ("succeeded", "running")]
        before = self.plan
        cwd = os.getcwd() if before is None else before.input("cwd") or os.getcwd()
        if not active or (self.has_split_of(plan) and cwd == os.getcwd()):
            return
        if before is None:
            problem = "its plan is gone"
        elif self.has_split_of(plan):
            problem = f"the shards of this queue run in {cwd}; start the command there to continue"
        else:
            problem = _difference(before, plan)
        raise GpuschedError(
            f"{problem}\n  {active.count('succeeded')} of its shards are done, {active.count('running')} running",
            where=queue_dir.path,
            hint="use exactly the previous options to continue; use --log-dir NEW to start over in another queue",
        )

    def created_at(self, plan: ShardPlan, now: float) -> float:
        """Return when this split was made: `now` for a new one."""
        return self.plan.created_at if self.plan is not None and self.has_split_of(plan) else now

    def merge_occurrence(self, plan: ShardPlan, identity: bytes, *, retry_failed: bool) -> int:
        """Return the run number of this merge; increased when its inputs or its output changed since the last run."""
        merges = [job for job in self.stored_jobs if job.identity == identity]
        if not merges:
            return 1
        last = max(merges, key=lambda job: job.occurrence)
        will_run = {"queued", "running", "held", *(["failed"] if retry_failed else [])}
        is_pending = any(self.states.get(shard.suffix, "queued") in will_run for shard in plan.shards)
        is_pending |= retry_failed and bool(self.faulty_shards(plan))
        others = [at for job_id, at in self.merge_started_at.items() if job_id != last.id]
        is_older = max([*self.ended_at, *others], default=0.0) > self.merge_started_at.get(last.id, 0.0)
        # a merge that failed is retried as it is
        is_over = last.state.value == "succeeded" or (last.state.value == "failed" and not retry_failed)
        is_other = self._has_other_files(plan, has_output=last.state.value == "succeeded")
        return last.occurrence + (is_over and (is_pending or is_older or is_other))

    def _has_other_files(self, plan: ShardPlan, *, has_output: bool) -> bool:
        """Return True if the files on disk are others than those that the last merge has read and made."""
        output = plan.merge.output if plan.merge is not None else None
        if has_output and output is not None and not os.path.exists(output):
            return True
        if self.record is None:
            return False
        files = matched_files(plan)
        if any(self.record.files.get(path) != stamp for path, stamp in files.items()):
            return True
        return not self.record.is_on_disk() if has_output else self.record.files.keys() != files.keys()

    def faulty_shards(self, plan: ShardPlan) -> list[str]:
        """Return the shards that have succeeded, and whose files are missing, short or unreadable."""
        if plan.merge is None or not self.has_split_of(plan) or (self.record is not None and self.record.is_complete()):
            return []
        faults: dict[str, str] = {}
        if self.record is not None and self.record.merge == merge_id(plan, plan.merge).decode():
            faults = {
                suffix: path
                for suffix, path in self.record.faults.items()
                if not path or self.record.files.get(path) == file_stamp(path)
            }
        plan = replace(plan, created_at=self.created_at(plan, 0.0))
        done = [shard for shard in plan.shards if self.states.get(shard.suffix) == "succeeded"]
        return [shard.suffix for shard in done if shard.suffix in faults or lacks_file(plan, shard)]


def read_earlier_run(queue_dir: QueueDir, owner: bytes) -> EarlierRun:
    """Read the earlier runs of the script with this owner; empty for a queue that is new, or that is not its own."""
    if not queue_dir.exists():
        return EarlierRun()
    with queues.open_store(queue_dir) as store:
        return _read(queue_dir, store) if meta_table.source(store) in (None, owner) else EarlierRun()


def _read(queue_dir: QueueDir, store: Store) -> EarlierRun:
    jobs = list(job_table.jobs(store))
    shards = [job for job in jobs if TAG in job.tags and job.listed and job.cause != CAUSE_REMOVED]
    merges = [job for job in jobs if TAG not in job.tags and job.name == MERGE]
    return EarlierRun(
        plan=read_plan(queue_dir.path),
        states={job.name: job.state.value for job in shards},
        ended_at=[job.ended_at or 0.0 for job in shards],
        merge_started_at={
            job.id: max((attempt.started_at for attempt in attempt_table.attempts(store, job.id)), default=0.0)
            for job in merges
        },
        stored_jobs=submission.stored_jobs(store),
        record=read_record(queue_dir.path),
    )


def _difference(before: ShardPlan, plan: ShardPlan) -> str:
    """Say in which way the splits of two plans differ."""
    if _describe(before) != _describe(plan):
        return f"{_describe(before)}, and this start asks for {_describe(plan)}"
    if before.input("digest") != plan.input("digest"):
        return f"the items in {plan.items or 'the range'} have changed since the shards were made"
    return f"{_describe(before)}, and this start asks for as many with other limits, suffixes or seeds"


def _describe(plan: ShardPlan) -> str:
    order = "" if plan.shuffle_seed is None else f", shuffled by {plan.shuffle_seed}"
    return f"{count(len(plan.shards), f'{plan.strategy} shard')} of {count(plan.total, 'item')}{order}"
