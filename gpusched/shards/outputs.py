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

COMPARED_SHARDS = 500  # shards whose patterns are compared with each other


def merge_libraries(patterns: Sequence[str], output: str | None) -> set[str]:
    """Return the libraries that the merge needs, as far as the suffixes of its files show.

    Raises GpuschedError for a suffix that cannot be merged, before the shards have done all their work.
    """
    formats = " ".join(f".{name}" for name in MERGE_FORMATS)
    expected = "" if output is None else _suffix(output)
    if output is not None and expected not in MERGE_FORMATS:
        hint = f"use an existing directory, or a file that ends in one of {formats}"
        raise GpuschedError("its suffix is no format that can be merged", where=f"--merge-output {output}", hint=hint)
    suffixes = {expected} if expected else set()
    for pattern in patterns:
        suffix = _suffix(pattern)
        if not suffix or re.search(r"[][*?{}]", suffix):
            continue
        if suffix not in MERGE_FORMATS:
            raise GpuschedError(f".{suffix} cannot be merged", where=f"--merge {pattern}", hint=f"use {formats}")
        if expected and suffix != expected:
            raise GpuschedError(f"is .{suffix}, and --merge-output .{expected}", where=f"--merge {pattern}")
        suffixes.add(suffix)
    return {MERGE_FORMATS[suffix].library for suffix in suffixes} - {""}


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower().removeprefix(".")


def with_outputs(plan: ShardPlan, patterns: Sequence[str], output_dir: str, cwd: str) -> ShardPlan:
    """Return the plan with the outputs of each shard, as patterns of absolute paths without wildcards from values.

    Raises GpuschedError if two shards would write the same file, and for wildcards beyond one `*`.
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
        _refuse_shared([(shard.suffix, shard.outputs[n]) for shard in shards], pattern)
    return replace(plan, shards=tuple(shards))


def _refuse_shared(outputs: Sequence[tuple[str, str]], pattern: str) -> None:
    """Raise GpuschedError if a file could belong to two shards: `*{shard}.pt` takes 11.pt for shard 1 and shard 11.

    If a pattern has the suffix of its shard between other characters, only files that have it so are taken.
    """
    if len(outputs) > 1 and len({path for _, path in outputs}) < len(outputs):
        raise GpuschedError(
            "all shards would write the same files", where=f"--merge {pattern}", hint="put {suffix} into the pattern"
        )
    compared = [(suffix, split_pattern(path)) for suffix, path in outputs[:COMPARED_SHARDS]]
    for i, (suffix, texts) in enumerate(compared):
        has_suffix = re.compile(rf"(?<![A-Za-z0-9]){re.escape(suffix)}(?![A-Za-z0-9])").search
        matches = re.compile("[^/]*".join(map(re.escape, texts))).fullmatch
        for j, name in enumerate("".join(other) for _, other in compared):
            if j != i and matches(name) and (has_suffix(name) or not has_suffix("*".join(texts))):
                raise GpuschedError(
                    f"the files of shard {j} would be taken for those of shard {i} too",
                    where=f"--merge {pattern}",
                    hint="put something other than a wildcard beside the placeholder, or use --suffix shard",
                )
