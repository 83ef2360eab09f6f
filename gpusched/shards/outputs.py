"""The files that the shards write, as patterns, and the format of their merge. Reads and writes no file."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.lists.template import Template
from gpusched.shards.command import NAMES, placeholder_values, refuse_misspelt
from gpusched.shards.merge_options import MERGE_FORMATS
from gpusched.shards.patterns import split_pattern
from gpusched.shards.plan import ShardPlan


def check_formats(patterns: Sequence[str], output: str | None) -> None:
    """Raise GpuschedError for a suffix that cannot be merged, before the shards have done all their work."""
    paths = [("--merge", pattern) for pattern in patterns]
    paths += [] if output is None else [("--merge-output", output)]
    for flag, path in paths:
        suffix = os.path.splitext(path)[1].lower().removeprefix(".")
        is_any = flag == "--merge" and (not suffix or re.search(r"[][*?{}]", suffix))
        if suffix not in MERGE_FORMATS and not is_any:
            hint = f"use {' '.join(f'.{name}' for name in MERGE_FORMATS)}"
            raise GpuschedError("its suffix names no format that can be merged", where=f"{flag} {path}", hint=hint)


def with_outputs(plan: ShardPlan, patterns: Sequence[str], output_dir: str, cwd: str) -> ShardPlan:
    """Return the plan with the outputs of each shard, as patterns of absolute paths without wildcards from values.

    Raises GpuschedError if two shards have the same pattern, and for wildcards beyond one `*`.
    """
    if not patterns:
        return plan
    for pattern in patterns:
        split_pattern(pattern)
        refuse_misspelt(pattern, f"--merge {pattern}")
    templates = [Template(pattern, NAMES) for pattern in patterns]
    shards = []
    for shard in plan.shards:
        values = {name: glob.escape(value) for name, value in placeholder_values(plan, shard, output_dir).items()}
        paths = (os.path.expanduser(template.fill(values)) for template in templates)
        shards.append(replace(shard, outputs=tuple(os.path.join(glob.escape(cwd), path) for path in paths)))
    for n, pattern in enumerate(patterns):
        if len(plan.shards) > 1 and len({shard.outputs[n] for shard in shards}) < len(shards):
            problem, hint = "all shards would write the same files", "put {suffix} into the pattern"
            raise GpuschedError(problem, where=f"--merge {pattern}", hint=hint)
    return replace(plan, shards=tuple(shards))
