"""The records in the files that the shards of a queue are writing: their progress, where they report none."""

from __future__ import annotations

import glob
import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from gpusched.common.files import read_regular
from gpusched.common.merge_record import PLAN, Stamp, file_stamp
from gpusched.core.model import RunningView

_SAMPLE_BYTES = 1 << 20
_HEADER_LINES = {".jsonl": 0, ".txt": 0, ".csv": 1, ".tsv": 1}  # of the formats whose records can be counted


def count_records(queue: str, views: Iterable[RunningView]) -> tuple[RunningView, ...]:
    """Return the running jobs of the queue in this directory; shards without a report get that of their records."""
    return tuple(view if view.attempt.progress or not view.job.items else _counted(queue, view) for view in views)


def _counted(queue: str, view: RunningView) -> RunningView:
    """Return a running shard with its records as its progress, unless they are more than its items."""
    spent_s = max(1.0, time.time() - view.attempt.started_at)
    turn = int(10 * math.log(spent_s) + spent_s / 10)  # seldom where little can have changed: a directory may be large
    done = _records_of_shard(queue, view.job.name, view.attempt.started_at, turn)
    if not 0 < done <= view.job.items:
        return view
    report = json.dumps({"done": done, "total": view.job.items, "unit": "records"})
    return replace(view, attempt=replace(view.attempt, progress=report))


@lru_cache(maxsize=1024)
def _records_of_shard(queue: str, name: str, since: float, _turn: int) -> int:
    """Return the records in the file of this shard that has the most; in each turn, it is looked at once."""
    plan = f"{queue}/{PLAN}"
    paths = [path for pattern in _patterns(plan, file_stamp(plan)).get(name, ()) for path in glob.iglob(pattern)]
    return max((_records(path, since) for path in paths), default=0)


@lru_cache(maxsize=4)
def _patterns(path: str, _stamp: Stamp | None) -> dict[str, Sequence[str]]:
    try:
        plan = json.loads(read_regular(path, 1 << 30))
        return {shard["suffix"]: shard["outputs"] for shard in plan["shards"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _records(path: str, since: float) -> int:
    """Return about how many records a file has: of a large one, by those of its beginning. None of an older file."""
    header = _HEADER_LINES.get(os.path.splitext(path)[1].lower())
    try:
        status = os.stat(path)
        if header is None or status.st_mtime < since:
            return 0
        data = read_regular(path, _SAMPLE_BYTES)
    except OSError:
        return 0
    lines = data.count(b"\n") - header
    return round(lines * status.st_size / len(data)) if len(data) == _SAMPLE_BYTES else lines
