"""The files that the shards write, as patterns, and the format of their merge. Reads and writes no file."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
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
        has_wildcard = re.search(r"[][*?{}]", suffix) if suffix else "*" in os.path.basename(path)
        is_any = flag == "--merge" and has_wildcard
        if flag == "--merge" and (not os.path.basename(path) or os.path.isdir(os.path.expanduser(path))):
            hint = "name the files: 'out/*_{suffix}.jsonl'"
            raise GpuschedError("is a directory, and a pattern names files", where=f"{flag} {path}", hint=hint)
        if suffix not in MERGE_FORMATS and not is_any:
            hint = f"use {' '.join(f'.{name}' for name in MERGE_FORMATS)}"
            raise GpuschedError("its suffix names no format that can be merged", where=f"{flag} {path}", hint=hint)


def output_matcher(patterns: Sequence[str], output_dir: str, output: str | None, cwd: str) -> Callable[[str], bool]:
    """Return a function that tells the files of a sharded run: parts, merged files, and the metadata beside them."""
    literals = {"suffix": r"(?:gpu_\d+|shard_\d+|merged)", "items_file": ".*"}
    texts = []
    for pattern in [*patterns, *([output] if output else [])]:
        path = os.path.normpath(os.path.join(cwd, os.path.expanduser(pattern.replace("{output_dir}", output_dir))))
        stem = os.path.splitext(path)[0]
        for whole in (path, f"{stem}_metadata.json", f"{stem}_merged_metadata.json", f"{path}.incomplete"):
            pieces = re.split(r"\{(\w+)\}", whole)
            named = [literals.get(name, r"-?\d+") for name in pieces[1::2]] + [""]
            plain = [re.escape(text).replace(r"\*", "[^/]*") for text in pieces[::2]]
            texts.append("".join(text + name for text, name in zip(plain, named, strict=True)))
    return lambda path: any(re.fullmatch(text, path) for text in texts)


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
