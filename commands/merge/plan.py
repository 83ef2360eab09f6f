"""The plan of `gpusched shard`: the merges that it asks for, and the record of what they have made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.common.merge_record import PLAN
from gpusched.shards.merge_options import MERGE_FORMATS, MergeOptions, with_recorded
from gpusched.shards.on_disk import ShardRun, matched_files, read_runs
from gpusched.shards.plan import ShardPlan, from_document

from .merge import merge
from .parts.groups import FileGroup, find_groups
from .parts.model import MergePart, MergeRefused, MergeTask, name_from, shown, suffix_of
from .write.publish import MergeResult
from .write.record import keep_record


def run_plan(path: str, options: MergeOptions) -> list[MergeResult]:
    """Merge what the plan's patterns name. `options` go before those of the plan."""
    plan, tasks = read_plan(path), list[MergeTask]()
    files = matched_files(plan)
    try:
        tasks += tasks_of_plan(path, plan, with_recorded(options, plan.merge or MergeOptions()))
        results = merge(tasks)
    except GpuschedError as error:
        results = [MergeResult("", [], [str(error)], error.exit_code)]
    if os.path.basename(path) == PLAN:
        keep_record(os.path.dirname(path), files, tasks, results)
    return results


def tasks_of_plan(path: str, plan: ShardPlan, options: MergeOptions) -> list[MergeTask]:
    """Return a task for each output that the plan's patterns make."""
    notes: list[str] = []
    runs: dict[str, ShardRun] = {}
    try:
        runs = read_runs(path)
    except GpuschedError as error:
        notes.append(f"which attempts have written the files cannot be read: {error}")
    files = find_groups(plan, runs, allow_partial=options.allow_partial)
    if not files.groups:
        patterns = shown(", ".join(pattern for shard in plan.shards[:3] for pattern in shard.outputs))
        hint = f"looked for {patterns}" if patterns else "its shards name no outputs: gpusched shard --merge PATTERN"
        older = "".join(f"; {_stale_text(paths)}" for paths in [*files.stale.values()][:1])
        raise MergeRefused(f"no shard has left a file{older}", where=path, hint=hint)
    if files.unserved:
        text = f"no shard has left a file for {shown(', '.join(files.unserved))}"
        if not options.allow_partial:
            raise MergeRefused(text, where=path, hint="--allow-partial merges what is there")
        notes.append(text)
    tasks = []
    for task in [_task(plan, group, options, files.stale, runs) for group in files.groups]:
        if len(files.groups) == 1 or suffix_of(task.output) in MERGE_FORMATS:
            tasks.append(task)
        else:
            notes.append(f"{shown(os.path.basename(task.output))} is not made: its suffix names no format")
    if not tasks:
        raise MergeRefused("\n  ".join(["nothing to merge:", *notes]), where=path)
    _name_outputs(tasks, options.output)
    tasks[0].report.notes += [*files.notes, *notes]
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


def _task(
    plan: ShardPlan,
    group: FileGroup,
    options: MergeOptions,
    stale: Mapping[int, Sequence[str]],
    runs: Mapping[str, ShardRun],
) -> MergeTask:
    is_in_order = plan.strategy != "strided" and plan.shuffle_seed is None
    task = MergeTask(group.output, [], options, None if is_in_order else plan)
    for shard in plan.shards:
        if path := group.files.get(shard.shard):
            task.parts.append(MergePart(path, path, shard, runs.get(shard.suffix)))
        elif shard.count:
            older = stale.get(shard.shard)
            why = f"{_stale_text(older)}; it is not merged" if older else "it has left no file"
            task.missing.append(MergePart("", shard.suffix, shard, skipped=why))
    return task


def _stale_text(paths: Sequence[str]) -> str:
    return f"{shown(', '.join(map(os.path.basename, paths)), 120)} is older than the plan"


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
