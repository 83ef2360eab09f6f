"""The results of a sharded run for the summary: the items of each shard, and what the merge has made and told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError
from gpusched.common.merge_record import MergeRecord, read_record
from gpusched.core.jobs.group_summary import GroupDetails
from gpusched.core.model import JobState
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import queues
from gpusched.shards.files import read_plan
from gpusched.shards.plan import MERGE

if TYPE_CHECKING:
    from gpusched.operations.run.run import RunQueue


def read_details(queue: RunQueue) -> GroupDetails:
    """Read the results of a sharded run from its queue and from the disk."""
    try:
        plan = read_plan(queue.queue_dir.path)
    except GpuschedError:
        plan = None
    spans = {} if plan is None else plan.spans
    if (record := _last_record(queue)) is None:
        return GroupDetails(spans)
    outputs, warnings, errors = map(_shown, (record.lines(), record.warnings, record.errors))
    return GroupDetails(spans, outputs, errors, warnings)


def _last_record(queue: RunQueue) -> MergeRecord | None:
    """Return the record of the newest merge, once that has ended and has left one."""
    attempt, record = attempt_table.last_of_name(queue.store, MERGE), read_record(queue.queue_dir.path)
    if attempt is None or record is None or record.at < attempt.started_at:
        return None
    has_ended = job_table.get(queue.store, attempt.job_id).state in (JobState.SUCCEEDED, JobState.FAILED)
    return record if has_ended else None


def _shown(texts: Sequence[str]) -> list[str]:
    """Return the texts as lines, with paths below the working directory in short."""
    lines = [line for text in texts for line in text.splitlines()]
    return [line.replace(f"{queues.current_directory()}/", "", 1) for line in lines]
