"""The jobs of a plan: one for each shard, and one that merges. Reads and writes no file."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.core.model import Attributes, Dependency, DependencyKind, JobSpec
from gpusched.lists.joblist import JobFile
from gpusched.lists.maker import ListEntry, Maker, Spot, StatedAttributes
from gpusched.lists.parameters import Axis
from gpusched.shards.command import NAMES, WHERE, placeholder_values
from gpusched.shards.merge_options import MergeOptions, shard_rows
from gpusched.shards.plan import MERGE, TAG, ShardPlan


def make_jobs(
    plan: ShardPlan, command: str, output_dir: str, merge_command: str | None, *, options: Mapping[str, Any]
) -> JobFile:
    """Make the job of each shard, in their order, and the job that merges. Line n is that of shard n - 1.

    `options` are those of the maker: force, strip_gpu_env, gpus.
    """
    maker = Maker(**options)
    values = [placeholder_values(plan, shard, output_dir) for shard in plan.shards]
    rows = tuple(tuple(of_shard[name] for name in NAMES) for of_shard in values)
    spot = Spot(1)
    maker.add(ListEntry(command, spot, [StatedAttributes("tag", TAG, spot)], [Axis(NAMES, rows)], block=True))
    jobs = maker.take(complete=True)
    if jobs.errors:
        return jobs
    if len(jobs.specs) != len(plan.shards):
        raise GpuschedError("it only sets something up, and runs nothing", where=WHERE)
    if any(spec.occurrence > 1 for spec in jobs.specs):
        problem = "it is the same for several shards, which would do the same work"
        raise GpuschedError(problem, where=WHERE, hint="--seed {seed}, --out {suffix}")
    specs = []
    for shard, spec in zip(plan.shards, jobs.specs, strict=True):
        attributes = spec.attributes._replace(name=shard.suffix, items=shard.count)
        specs.append(spec._replace(line=shard.shard + 1, attributes=attributes))
    if merge_command is not None and plan.merge is not None:
        specs.append(_merge_job(plan, plan.merge, merge_command))
    return JobFile(tuple(specs), jobs.findings, True)


def _merge_job(plan: ShardPlan, merge: MergeOptions, command: str) -> JobSpec:
    """Make the job that merges. A merge with other options is another job."""
    kind = DependencyKind.ENDED if merge.allow_partial else DependencyKind.SUCCEEDED
    # PYTHONSAFEPATH: the stage imports no module that lies in the working directory.
    env = ((b"PYTHONSAFEPATH", b"1"), (b"GPUSCHED_MERGE", merge_id(plan, merge)))
    attributes = Attributes(gpus=0, name=MERGE, after=(Dependency(kind, (TAG,)),), env=env)
    text = command.encode("utf-8", "surrogateescape")
    return JobSpec(text, text, len(plan.shards) + 1, 1, attributes)


def merge_id(plan: ShardPlan, merge: MergeOptions) -> bytes:
    """Return a hash of the options and the inputs of the merge. The text is that of version 0.1, whose queues stay."""
    # The options of version 0.1, where sum was "sums".
    first = ("output", "sum", "key", "on_duplicate", "allow_partial")
    rows = [row for row in shard_rows() if row.name in first or getattr(merge, row.name) != row.default]
    values = {"sums" if row.name == "sum" else row.name: getattr(merge, row.name) for row in rows}
    options = ", ".join(f"{name}={value!r}" for name, value in values.items())
    text = f"(Merge({options}), {[shard.outputs for shard in plan.shards]!r})"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest().encode()


def merge_command(python: str, plan_path: str, output: str | None) -> str:
    """Return the command of the merge."""
    words = [python, "-m", "gpusched.commands.merge", "--plan", plan_path]
    return shlex.join([*words, *(["--output", output] if output else [])])
