"""The plan of `gpusched shard`: the merges that it asks for. Reads the plan file, and no part."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from gpusched.common.errors import EXIT_USAGE
from gpusched.shards.merge_options import MERGE_FORMATS, MergeOptions, with_recorded
from gpusched.shards.plan import ShardPlan, from_document

from .parts.groups import FileGroup, find_groups
from .parts.model import MergePart, MergeRefused, MergeTask, name_from, shown, suffix_of

CLOCKS_DIFFER_S = 2.0  # between this machine and the one that keeps the files


def tasks_of_plan(path: str, options: MergeOptions) -> list[MergeTask]:
    """Return a task for each output that the plan's patterns make. `options` go before those of the plan."""
    plan = read_plan(path)
    options = with_recorded(options, plan.merge or MergeOptions())
    groups = find_groups(plan)
    if not groups:
        patterns = shown(", ".join(pattern for shard in plan.shards[:3] for pattern in shard.outputs))
        hint = f"looked for {patterns}" if patterns else "its shards name no outputs: gpusched shard --merge PATTERN"
        raise MergeRefused("no shard has left a file", where=path, hint=hint)
    if not options.allow_partial:
        _refuse_scattered(groups, path)
    tasks, notes = [], []
    for task in [_task(plan, group, options) for group in groups]:
        is_format = suffix_of(task.output) in MERGE_FORMATS
        if len(groups) == 1 or (is_format and task.parts):
            tasks.append(task)
        else:
            why = "all its parts are older than the plan" if is_format else "its suffix names no format"
            notes.append(f"{shown(os.path.basename(task.output))} is not made: {why}")
    if not tasks:
        raise MergeRefused("\n  ".join(["nothing to merge:", *notes]), where=path)
    _name_outputs(tasks, options.output)
    tasks[0].report.notes += notes
    return tasks


def read_plan(path: str) -> ShardPlan:
    """Read the plan of this file. Raises MergeRefused if it is no plan, or contradicts itself."""
    try:
        plan = from_document(json.loads(Path(path).read_bytes()))
        items = [shard.count for shard in plan.shards]
        if sum(items) != plan.total or items != [len(plan.positions(shard)) for shard in plan.shards]:
            raise ValueError(f"its shards have {sum(items)} items of {plan.total}")
    except (OSError, ValueError, RecursionError) as error:
        why = f"cannot be read as a plan of gpusched shard: {getattr(error, 'strerror', None) or shown(error)}"
        raise MergeRefused(why, where=path, exit_code=EXIT_USAGE) from None
    return plan


def _task(plan: ShardPlan, group: FileGroup, options: MergeOptions) -> MergeTask:
    output, files = group
    is_in_order = plan.strategy != "strided" and plan.shuffle_seed is None
    task = MergeTask(output, [], options, None if is_in_order else plan)
    for shard in plan.shards:
        path = files.get(shard.shard, "")
        if not path:
            why = "it has left no file"
        elif os.stat(path).st_mtime < plan.created_at - CLOCKS_DIFFER_S:
            why = f"{shown(os.path.basename(path))} is older than the plan; it is not merged"
        else:
            task.parts.append(MergePart(path, path, shard))
            continue
        task.missing += [MergePart(path, shard.suffix, shard, skipped=why)] if path or shard.count else []
    return task


def _name_outputs(tasks: Sequence[MergeTask], output: str | None) -> None:
    """Apply --output: a directory for all outputs, or the name of the only one. Two outputs of one name are refused."""
    is_directory = output is not None and (output.endswith("/") or os.path.isdir(output))
    seen: dict[str, MergeTask] = {}
    for task in tasks:
        if output is not None:
            task.output = os.path.join(output, os.path.basename(task.output)) if is_directory else output
        directory, name = os.path.split(task.output)
        before = seen.setdefault(os.path.join(os.path.realpath(directory), name), task)
        if before is not task:
            why = f"would be made twice: of {shown(before.parts[0].path)}, and of {shown(task.parts[0].path)}"
            hint = "name a directory, or patterns that name files of different names"
            raise MergeRefused(why, where=task.output, hint=hint, exit_code=EXIT_USAGE)
        for part in task.parts:
            part.name = name_from(os.path.abspath(directory), part.path)


def _refuse_scattered(groups: Sequence[FileGroup], path: str) -> None:
    """Refuse where no two shards have left files that belong together: their names differ in more than the suffix."""
    firsts = dict(next(iter(files.items())) for _, files in groups)  # shard -> a file of it
    if len(firsts) < 2 or any(len(files) > 1 for _, files in groups):
        return
    names = shown(", ".join(os.path.basename(path) for path in list(firsts.values())[:3]))
    why = f"no files of two shards belong together, since more than the suffix differs: {names}"
    hint = "if none is missing, name in --merge what differs, by {start} or {seed}: the same command then only merges"
    raise MergeRefused(why, where=path, hint=hint)
