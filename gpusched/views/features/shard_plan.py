"""The plan of a sharded script as a page of text, for `gpusched shard --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusched.core.model import JobSpec
from gpusched.views import tables
from gpusched.views.tables import Line, Row
from gpusched.views.words import command_text, count, short_path


def page(
    jobs: Sequence[JobSpec], spans: Mapping[str, str], states: Mapping[str, str], queue: str, cwd: str
) -> list[Line]:
    """Lay out the jobs: the shards, whose items are in `spans` by their names, and the merge.

    `states` are those of jobs that the queue has. The path of the queue is shown relative to `cwd` if it is below it.
    """
    rows: list[Row] = []
    for job in jobs:
        name, state = job.attributes.name, states.get(job.attributes.name, "")
        number = str(job.attributes.items) if name in spans else ""
        color = tables.STATES.get(state, "")
        rows.append([name, spans.get(name, ""), number, (state, color), command_text(job.command)])
    done = sum(states.get(name) == "succeeded" for name in spans)
    total = count(sum(job.attributes.items for job in jobs), "item")
    text = f"{total} in {count(len(spans), 'shard')}{f', {done} of them done already' if done else ''}"
    return [
        *tables.grid(["SHARD", "ITEMS", "COUNT", "STATE", "COMMAND"], rows, right="COUNT"),
        tables.line(),
        tables.line(f"{text}, queue {short_path(queue, cwd)}: nothing was changed"),
    ]
