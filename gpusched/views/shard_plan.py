"""The plan of a sharded script as a page of text, for `gpusched shard --dry-run`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.views import tables
from gpusched.views.tables import Line, Row
from gpusched.views.words import command_text, count, short_path


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job of the plan: a shard, or the merge. `state` is that of the job in the queue, empty for a new one."""

    name: str
    command: bytes
    state: str = ""
    items: str = ""  # the positions of the items, as text
    number: int | None = None  # of items


def page(jobs: Sequence[PlannedJob], queue: str, cwd: str) -> list[Line]:
    """Lay out the jobs; the path of the queue is shown relative to `cwd` if it is below it."""
    rows: list[Row] = [
        [
            job.name,
            job.items,
            "" if job.number is None else str(job.number),
            (job.state, tables.STATES.get(job.state, "")),
            command_text(job.command),
        ]
        for job in jobs
    ]
    shards = [job for job in jobs if job.number is not None]
    done = sum(job.state == "succeeded" for job in shards)
    total = count(sum(job.number or 0 for job in shards), "item")
    text = f"{total} in {count(len(shards), 'shard')}{f', {done} of them done already' if done else ''}"
    return [
        *tables.grid(["SHARD", "ITEMS", "COUNT", "STATE", "COMMAND"], rows, right="COUNT"),
        tables.line(),
        tables.line(f"{text}, queue {short_path(queue, cwd)}: nothing was changed"),
    ]
