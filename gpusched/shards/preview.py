"""The plan of a sharded script as `--dry-run` shows it, to people and to programs."""

from __future__ import annotations

from typing import Any

from gpusched.core.documents import shown_command
from gpusched.shards.jobs import job_name
from gpusched.shards.plan import MERGE, to_document
from gpusched.shards.prepare import PlannedShards
from gpusched.views.shard_plan import PlannedJob


def document(planned: PlannedShards) -> dict[str, Any]:
    """Return the plan as a JSON document, with the command and the state of each shard."""
    plan = to_document(planned.plan)
    for entry, spec, shard in zip(plan["shards"], planned.jobs.specs, planned.plan.shards, strict=False):
        entry |= {"command": shown_command(spec.command), "state": planned.states.get(job_name(shard))}
    return {"queue": planned.queue_dir.path, **plan}


def planned_jobs(planned: PlannedShards) -> list[PlannedJob]:
    """Return the jobs of the plan: the shards, then the merge if there is one."""
    plan, specs = planned.plan, planned.jobs.specs
    jobs = [
        PlannedJob(shard.suffix, spec.command, planned.states.get(job_name(shard), ""), plan.span(shard), shard.count)
        for shard, spec in zip(plan.shards, specs, strict=False)
    ]
    states = planned.states
    return jobs + [PlannedJob(MERGE, spec.command, states.get(MERGE, "")) for spec in specs[len(plan.shards) :]]
