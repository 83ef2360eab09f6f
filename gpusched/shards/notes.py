"""What a summary says of a sharded run beside its counts: the items that are missing, and what the merge wrote."""

from __future__ import annotations

from gpusched.common.errors import GpuschedError
from gpusched.core.model import JobState
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.queue.shard_files import read_plan
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.shards.plan import MERGE, from_document
from gpusched.views.values import GroupNotes

PREFIX = b"gpusched: "
ERROR = PREFIX + b"error: "


def read_notes(queue_dir: QueueDir, store: Store) -> GroupNotes:
    """Return the items of each shard, and the output or the errors of the merge if it has ended."""
    spans = _spans(queue_dir)
    last = attempt_table.last_of_name(store, MERGE)
    state = None if last is None else job_table.get(store, last.job_id).state
    if last is None or state not in (JobState.SUCCEEDED, JobState.FAILED):
        return GroupNotes(spans)
    # A line for each output; with one log for both streams its warnings and errors stand there too.
    merged = [line for line in _lines(queue_dir, last.log) if not line.startswith(PREFIX)]
    if state is not JobState.FAILED:
        return GroupNotes(spans, merged)
    errors = [line for line in _lines(queue_dir, last.error_log or last.log) if line.startswith(ERROR)]
    return GroupNotes(spans, merged, [line.removeprefix(ERROR) for line in errors])


def _spans(queue_dir: QueueDir) -> dict[str, str]:
    try:
        plan = from_document(read_plan(queue_dir.path))
    except (GpuschedError, ValueError):
        return {}
    return {shard.job_name: plan.span(shard) for shard in plan.shards}


def _lines(queue_dir: QueueDir, log: str) -> list[bytes]:
    lines = log_tail(f"{queue_dir.path}/{log}").split(b"\n")
    return [line for line in lines if line.strip() and not line.startswith(b" ")]
