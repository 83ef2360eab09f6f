"""The preparation of a queue for the jobs of a plan: an earlier split settled, and the files that the jobs read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.item_files import Items
from gpusched.core.documents import shown_command
from gpusched.host import locks
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import job_table, submission
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import SubmitOptions
from gpusched.operations import queues
from gpusched.operations.run.run import RunQueue
from gpusched.shards import files
from gpusched.shards.earlier_run import EarlierRun, read_earlier_run
from gpusched.shards.plan import TAG, ShardPlan, to_document
from gpusched.shards.request import ShardRequest
from gpusched.shards.split import shuffled

LOCK = "shard.lock"


@dataclass(frozen=True, slots=True)
class PlannedShards:
    """A plan with its jobs, and the states that the queue has for the jobs of its shards."""

    queue_dir: QueueDir
    plan: ShardPlan
    jobs: JobFile
    states: Mapping[str, str]

    def document(self) -> dict[str, Any]:
        """Return the plan as a JSON document, with the command and the state of each shard."""
        plan = to_document(self.plan)
        for entry, spec in zip(plan["shards"], self.jobs.specs, strict=False):
            entry |= {"command": shown_command(spec.command), "state": self.states.get(entry["suffix"])}
        return {"queue": self.queue_dir.path, **plan}


@contextmanager
def prepare_queue(
    queue: RunQueue, planned: PlannedShards, request: ShardRequest, items: Items, options: SubmitOptions
) -> Iterator[None]:
    """Write the files that the shards and the merge read; it may be interrupted at any point.

    No other start of this queue makes its plan between the last look at the queue and the submission of the jobs.
    """
    queue_dir, plan = queue.queue_dir, planned.plan
    lock = locks.take_file(f"{queue_dir.state}/{LOCK}", 0o600)
    if lock is None:
        problem = "another start is making its plan for this queue"
        raise GpuschedError(problem, where=queue_dir.path, hint="try again in a moment")
    try:
        earlier = _settle(queue, plan, request.owner, options)
        _write_items(queue_dir, plan, earlier, items)
        _make_directory(request.output_dir, "--output-dir")
        if plan.merge is not None:
            _make_directory(os.path.dirname(plan.merge.output or ""), "the directory of --merge-output")
        files.write_plan(queue_dir.path, replace(plan, created_at=earlier.created_at(plan, queues.now())))
        if options.retry_failed:
            for suffix in earlier.faulty_shards(plan):
                job_table.requeue(queue.store, _shard_id(queue, suffix), again=True)
        yield
    finally:
        os.close(lock)


def _settle(queue: RunQueue, plan: ShardPlan, owner: bytes, options: SubmitOptions) -> EarlierRun:
    """Return the earlier runs, after cancelling shards of another split that a live dispatcher could start."""
    with queue.store.transaction():
        earlier = read_earlier_run(queue.queue_dir, owner)
        earlier.refuse_other_split(plan, queue.queue_dir)
        if not earlier.has_split_of(plan):
            submission.submit(queue.store, [], options.needs, queues.now())
    return earlier


def _write_items(queue_dir: QueueDir, plan: ShardPlan, earlier: EarlierRun, items: Items) -> None:
    """Write the items files; those of an earlier plan of the same split are kept."""
    is_same = earlier.has_split_of(plan)
    if not is_same:
        files.remove_plan(queue_dir.path)
    if plan.shards[0].items_file is None:
        return
    order = None if plan.shuffle_seed is None else shuffled(plan.total, plan.shuffle_seed)
    of_shards = (
        (str(s.items_file), plan.positions(s) if order is None else [order[at] for at in plan.positions(s)])
        for s in plan.shards
    )
    files.write_items(items, f"{queue_dir.path}/{files.DIRECTORY}", of_shards, only_missing=is_same)


def _shard_id(queue: RunQueue, suffix: str) -> int:
    return next(job.id for job in job_table.jobs(queue.store) if job.name == suffix and TAG in job.tags and job.listed)


def _make_directory(path: str | None, name: str) -> None:
    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise GpuschedError(f"cannot be made: {error.strerror}", where=f"{name} {path}") from None
