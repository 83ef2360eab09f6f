"""The record of a merge by a plan, from which a later start sees what is on disk and which shards to run again."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress

from gpusched.common.merge_record import MergedFile, MergeRecord, Stamp, file_stamp, write_record

from ..parts.model import MergeTask
from .publish import MergeResult


def keep_record(
    directory: str, files: dict[str, Stamp], tasks: Sequence[MergeTask], results: Sequence[MergeResult]
) -> None:
    """Write the record into the directory of the plan. `files` are those that its patterns named before the merge.

    A disk that is full loses it: the next start then merges again.
    """
    faults = {part.shard.suffix: "" for task in tasks for part in task.missing if part.shard}
    for task in tasks:
        for part in task.parts:
            if part.shard and (part.skipped or part.is_short or part.name in task.report.lost):
                faults[part.shard.suffix] = part.path
    outputs = [
        MergedFile(
            os.path.abspath(one.output), one.summary, one.sha256, file_stamp(one.output) or (0, 0), one.is_complete
        )
        for one in results
        if one.summary
    ]
    record = MergeRecord(
        os.environ.get("GPUSCHED_MERGE", ""),
        time.time(),
        outputs,
        files,
        faults,
        warnings=[text for one in results for text in one.warnings],
        errors=[text for one in results for text in one.errors],
    )
    with suppress(OSError):
        write_record(directory, record)
