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
    is_directory = output is not None and os.path.isdir(output)
    texts = []
    for pattern in patterns:
        path = os.path.normpath(os.path.join(cwd, os.path.expanduser(pattern.replace("{output_dir}", output_dir))))
        stem, suffix = map(_expression, os.path.splitext(path))
        texts += [f"{stem}{suffix}", f"{stem}_metadata\\.json"]
        # A merged file lies in or below the directory that all parts have in common.
        above = re.escape(output if output and is_directory else os.path.dirname(re.split("[{*]", path)[0]))
        merged = rf"{above}/(?:.*/)?{_merged_name(os.path.splitext(os.path.basename(path))[0])}"
        texts.append(rf"{merged}(?:{suffix}(?:\.incomplete)?|(?:_merged)?_metadata\.json)")
    if output and not is_directory:
        texts.append(rf"{re.escape(output)}(?:\.incomplete)?")
        texts.append(rf"{re.escape(os.path.splitext(output)[0])}(?:_merged)?_metadata\.json")
    whole = re.compile("|".join(texts))
    return lambda path: whole.fullmatch(path) is not None


def _expression(pattern: str) -> str:
    """Return a regular expression for the files that a pattern names."""
    pieces = re.split(r"\{(\w+)\}", pattern)
    known = {"suffix": r"(?:gpu_\d+|shard_\d+)", "items_file": ".*"}
    named = [known.get(name, r"-?\d+") for name in pieces[1::2]] + [""]
    plain = [re.escape(text).replace(r"\*", "[^/]*") for text in pieces[::2]]
    return "".join(text + name for text, name in zip(plain, named, strict=True))


def _merged_name(stem: str) -> str:
    """Return a regular expression for the names of merged files: the words of the pattern, and `merged`."""
    text = re.sub(r"\{(\w+)\}", lambda match: "merged" if match[1] == "suffix" else "_", stem)
    words = text if "{suffix}" in stem else f"{text}_merged"
    return "[^/]*".join(re.sub(r"[\W\d_]+", lambda _: r"(?:(?!/)[\W\d_])*", part) for part in words.split("*"))


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
