"""`gpusched shard --dry-run`: the plan for people and for programs. Changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpusched.common.errors import EXIT_OK
from gpusched.operations import queues

if TYPE_CHECKING:
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.lists.jobfile import JobFile
    from gpusched.shards.plan import ShardPlan
    from gpusched.views.tables import Line


def show(place: QueueDir, plan: ShardPlan, jobs: JobFile, states: Mapping[str, str], *, as_json: bool) -> int:
    """Print what a start would have each shard do. `states`: of shards that the queue holds already."""
    if as_json:
        from gpusched.core.documents import shown_command
        from gpusched.shards.plan import document

        found = document(plan)
        for shard, spec, job in zip(found["shards"], jobs.specs, plan.shards, strict=False):
            shard |= {"command": shown_command(spec.command), "state": states.get(job.job_name)}
        print(json.dumps({"queue": place.path, **found}, indent=2))
        return EXIT_OK
    from gpusched.views.tables import write

    write(sys.stdout, _page(place, plan, jobs, states))
    return EXIT_OK


def _page(place: QueueDir, plan: ShardPlan, jobs: JobFile, states: Mapping[str, str]) -> list[Line]:
    from gpusched.views import tables
    from gpusched.views.words import command_text, count, short_path

    rows: list[tables.Row] = []
    for shard, spec in zip(plan.shards, jobs.specs, strict=False):
        state = states.get(shard.job_name, "")
        rows.append(
            [
                shard.suffix,
                plan.span(shard),
                str(shard.count),
                (state, tables.STATES.get(state, "")),
                command_text(spec.command),
            ]
        )
    for spec in jobs.specs[len(plan.shards) :]:
        state = states.get("merge", "")
        rows.append(["merge", "", "", (state, tables.STATES.get(state, "")), command_text(spec.command)])
    lines = tables.grid(["SHARD", "ITEMS", "COUNT", "STATE", "COMMAND"], rows, right="COUNT")
    where = short_path(place.path, queues.current_directory())
    done = sum(states.get(shard.job_name) == "succeeded" for shard in plan.shards)
    told = f", {done} of them done already" if done else ""
    summed = f"{count(plan.total, 'item')} in {count(len(plan.shards), 'shard')}{told}, queue {where}"
    return [*lines, tables.line(), tables.line(f"{summed}: nothing was changed")]
