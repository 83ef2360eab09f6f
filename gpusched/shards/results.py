"""The results of a sharded run for the summary: the items of each shard, and the lines that the merge has written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError
from gpusched.common.text import last_line
from gpusched.core.jobs.group_summary import GroupDetails
from gpusched.core.model import JobState
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import queues
from gpusched.shards.files import read_plan
from gpusched.shards.plan import MERGE

if TYPE_CHECKING:
    from gpusched.operations.run import Queue

_PREFIX = b"gpusched: "  # of the warnings and errors of the merge
_ERROR = _PREFIX + b"error: "


def read_details(queue: Queue) -> GroupDetails:
    """Read the results of a sharded run from its queue."""
    outputs, errors = _read_merge(queue)
    try:
        plan = read_plan(queue.queue_dir.path)
    except GpuschedError:
        plan = None
    return GroupDetails({} if plan is None else plan.spans, outputs, errors)


def _read_merge(queue: Queue) -> tuple[list[str], list[str]]:
    """Return the lines of the newest merge about the files that it has made, and its errors."""
    attempt = attempt_table.last_of_name(queue.store, MERGE)
    state = None if attempt is None else job_table.get(queue.store, attempt.job_id).state
    if attempt is None or state not in (JobState.SUCCEEDED, JobState.FAILED):
        return [], []
    # With one log for both streams, warnings and errors are among the lines about outputs.
    outputs = [line for line in _read_lines(queue, attempt.log) if not line.startswith(_PREFIX)]
    if state is JobState.SUCCEEDED:
        return _shown(outputs), []
    lines = _read_lines(queue, attempt.error_log or attempt.log)
    return _shown(outputs), _shown(line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR))


def _read_lines(queue: Queue, log: str) -> list[bytes]:
    """Return the lines of a log that are neither empty nor indented."""
    lines = log_tail(f"{queue.queue_dir.path}/{log}").split(b"\n")
    return [line for line in lines if line.strip() and not line.startswith(b" ")]


def _shown(lines: Iterable[bytes]) -> list[str]:
    return [last_line(line).replace(f"{queues.current_directory()}/", "", 1) for line in lines]
