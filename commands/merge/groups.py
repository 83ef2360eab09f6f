"""The files that the shards of a plan have written -> what is merged into which output. Reads no file.

Takes no file that no pattern of the plan names.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusched.common.natural_order import natural_key

from .merge import FORMATS, WITH_KEYS, Job, format_of
from .metadata import names_beside
from .parts import Missing, Options, Part, shown_name
from .plan import Asked, Plan, item_order, read_plan
from .trouble import EXIT_USAGE, Refused, clean
from .wildcards import Files, filled, has_wildcard, left_open, literal_of

CLOCKS_DIFFER_S = 2.0  # between this host and the one that keeps the files

_MARK = "\0"  # stands where a name had its shard's suffix, or a number of its own
_NUMBER = re.compile(r"([0-9]+)")
_JOINTS = "_.-"


@dataclass
class Group:
    """What the shards have written under one name."""

    name: str  # of its output
    files: dict[int, str] = field(default_factory=dict)  # shard -> path
    stale: dict[int, str] = field(default_factory=dict)


def jobs_of_plan(path: str, output: str | None, options: Options) -> list[Job]:
    """One job for each output that the plan's patterns make. `output` and `options` go before what the plan says."""
    plan = read_plan(path)
    asked = plan.merge or Asked()
    options = dataclasses.replace(
        options,
        key=options.key or asked.key,
        on_duplicate=options.on_duplicate or asked.on_duplicate,
        sums=(*options.sums, *asked.sum),
        allow_partial=options.allow_partial or asked.allow_partial,
    )
    groups, notes = find_groups(plan)
    if not groups:
        raise _no_file(plan, path)
    if not options.allow_partial:
        _refuse_scattered(groups, path)
    found = [_job(plan, group, options) for group in groups]
    _name_outputs(found, output or asked.output)
    for job in found:
        here = os.path.dirname(os.path.abspath(job.output))
        for part in job.parts:
            part.name = shown_name(part.path, here)
        if job.options.key is not None and (form := format_of(job.output)) not in WITH_KEYS:
            job.options = dataclasses.replace(job.options, key=None)
            job.notes.append(f"--key finds no repeated records in .{clean(form)}")
    found[0].notes += notes
    return found


def _job(plan: Plan, group: Group, options: Options) -> Job:
    parts, missing = [], []
    for shard in plan.shards:
        given: dict[str, Any] = {"start": shard.start, "end": shard.end, "items": shard.count}
        if shard.shard in group.files:
            where = group.files[shard.shard]
            parts.append(Part(where, where, shard.shard, shard.suffix, seed=shard.seed, **given))
        elif shard.shard in group.stale:
            why = f"{os.path.basename(group.stale[shard.shard])} is older than the plan; it is not merged"
            missing.append(Missing(shard.shard, shard.suffix, clean(why), **given))
        elif shard.count:
            missing.append(Missing(shard.shard, shard.suffix, "it has left no file", **given))
    return Job(group.name, parts, options, item_order(plan), missing, described="the items' own order")


def _name_outputs(jobs: Sequence[Job], output: str | None) -> None:
    if output is not None and (output.endswith("/") or os.path.isdir(output)):
        for job in jobs:
            job.output = os.path.join(output, os.path.basename(job.output))
    elif output is not None and len(jobs) == 1:
        jobs[0].output = output
    elif output is not None:
        names = ", ".join(os.path.basename(job.output) for job in jobs)
        raise Refused(
            f"the shards make {len(jobs)} outputs ({clean(names)}), and one is named",
            where=output,
            hint="name a directory, or a narrower pattern",
            exit_code=EXIT_USAGE,
        )
    made: dict[str, Job] = {}
    for job in jobs:
        directory, name = os.path.split(job.output)
        before = made.setdefault(os.path.join(os.path.realpath(directory), name), job)
        if before is not job:
            raise Refused(
                f"would be made twice: of {clean(before.parts[0].path)}, and of {clean(job.parts[0].path)}",
                where=job.output,
                hint="patterns that name files of different names, or a merge for each",
                exit_code=EXIT_USAGE,
            )


def _no_file(plan: Plan, path: str) -> Refused:
    patterns = [(shard, pattern) for shard in plan.shards for pattern in shard.outputs]
    if not patterns:
        return Refused("it names no outputs of its shards", where=path, hint="gpusched shard --merge PATTERN")
    hint = f"looked for {clean(', '.join(literal_of(pattern) for _, pattern in patterns[:3]))}"
    files = Files()
    for shard, pattern in patterns[:100]:
        near = [one for one in files.near(pattern) if _bearing(shard.suffix).search(os.path.basename(one))]
        if near:
            there = clean(shown_name(near[0], os.getcwd()))
            hint += f"; {there} is there: the same command with a --merge that names it only merges"
            break
    return Refused("no shard has left a file", where=path, hint=hint)


def _refuse_scattered(groups: Sequence[Group], path: str) -> None:
    """Refuse where no two shards have left files that belong together: the names differ in what no pattern says."""
    together = [{*group.files, *group.stale} for group in groups]
    if len(set().union(*together)) < 2 or any(len(shards) > 1 for shards in together):
        return
    names = [clean(os.path.basename(file)) for group in groups for file in group.files.values()]
    raise Refused(
        f"no files of two shards belong together, since more than the suffix differs: {', '.join(names[:3])}",
        where=path,
        hint="if none is missing, say in --merge what differs, by {start} or {seed}: the same command then only "
        f"merges; or by hand: gpusched merge -o OUT {names[0]} …",
    )


# ---- patterns -> groups ----------------------------------------------------------------------------


def find_groups(plan: Plan) -> tuple[list[Group], list[str]]:
    """The files that the patterns name, those that belong together in a group, in natural order; and what to tell."""
    notes: list[str] = []
    groups: dict[tuple[str | tuple[str, ...], int], Group] = {}
    plain: dict[int, dict[int, str]] = {}  # pattern -> shard -> path, where no suffix is in the name
    root = _root(plan)
    claimed = _claimed(plan, root)
    joint = _joint(plan, root)
    for (shard, path), pattern in _without_metadata(claimed).items():
        suffix = plan.shards[shard].suffix
        name = path.removeprefix(root)
        template = _bearing(suffix).sub(_MARK, name)
        own = plan.shards[shard].outputs[pattern]
        if (
            pattern in joint
            and (template != name or not has_wildcard(own))
            and (texts := left_open(own, path)) is not None
        ):
            alike = tuple(_bearing(suffix).sub(_MARK, text) for text in texts)
            if (alike, pattern) not in groups:
                groups[alike, pattern] = Group(_joint_name(plan, pattern, alike))
            groups[alike, pattern].files[shard] = path
        elif template != name:
            group = groups.setdefault((template, 0), Group(root + _output_name(template)))
            if shard in group.files:
                raise Refused("is one of two files of one shard that would be one part", where=path)
            group.files[shard] = path
        else:
            if shard in plain.setdefault(pattern, {}):
                raise Refused(
                    f"its pattern matches several files of {suffix}, and no name bears the suffix",
                    where=path,
                    hint="put {suffix} into the pattern: it tells which files belong together",
                )
            plain[pattern][shard] = path
    for pattern, files in plain.items():
        groups["", pattern] = Group(_common_name(list(files.values())), files)
    kept = []
    for group in sorted(groups.values(), key=lambda group: natural_key(group.name)):
        for shard, path in list(group.files.items()):
            if os.stat(path).st_mtime < plan.created_at - CLOCKS_DIFFER_S:
                group.stale[shard] = group.files.pop(shard)
        if format_of(group.name) not in FORMATS and len(groups) > 1:
            notes.append(f"{clean(os.path.basename(group.name))} is not made: its suffix says no format of ours")
        elif group.files or len(groups) == 1:
            kept.append(group)
        else:
            name = clean(os.path.basename(group.name))
            notes.append(f"{name} is not made: all files that would be its parts are older than the plan")
    return kept, notes


def _root(plan: Plan) -> str:
    """The directory below which the names of all outputs differ; what stands above it bears no suffix."""
    found = []
    for pattern in (pattern for shard in plan.shards for pattern in shard.outputs):
        directory = os.path.dirname(pattern)
        while has_wildcard(directory):
            directory = os.path.dirname(directory)
        found.append(os.path.normpath(literal_of(directory) or "."))
    if not found:
        return ""
    try:
        root = os.path.commonpath(found)
    except ValueError:  # absolute and relative ones
        return ""
    return "" if root in ("", ".") else f"{root.rstrip('/')}/"


def _joint(plan: Plan, root: str) -> set[int]:
    """The patterns that say more of a shard than its suffix: where it begins, say.

    What such a one names belongs together where its wildcards stand for the same, whatever else the names are.
    """
    found = set()
    for number, patterns in enumerate(zip(*(shard.outputs for shard in plan.shards), strict=False)):
        paths = [os.path.normpath(literal_of(pattern)).removeprefix(root) for pattern in patterns]
        if len({_bearing(shard.suffix).sub(_MARK, path) for shard, path in zip(plan.shards, paths, strict=True)}) > 1:
            found.add(number)
    return found


def _joint_name(plan: Plan, number: int, texts: Sequence[str]) -> str:
    """The output of what a joint pattern names where its wildcards stand for these texts; the same if a shard lacks."""
    return _common_name(
        [filled(shard.outputs[number], [text.replace(_MARK, shard.suffix) for text in texts]) for shard in plan.shards]
    )


def _claimed(plan: Plan, root: str) -> dict[tuple[int, str], int]:
    """(shard, path) -> the first of its patterns that names it. Each file belongs to one shard."""
    found: dict[str, dict[int, int]] = {}
    files = Files()
    for shard in plan.shards:
        bears = _bearing(shard.suffix)
        for number, pattern in enumerate(shard.outputs):
            for path in files.matching(pattern):
                if bears.search(literal_of(pattern).removeprefix(root)) and not bears.search(path.removeprefix(root)):
                    continue  # gpu_1* names gpu_10 too
                found.setdefault(path, {}).setdefault(shard.shard, number)
    owned: dict[tuple[int, str], int] = {}
    for path, shards in found.items():
        name = path.removeprefix(root)
        own = [shard for shard in shards if _bearing(plan.shards[shard].suffix).search(name)]
        owners = own if len(shards) > 1 else list(shards)
        if len(owners) != 1:
            names = ", ".join(plan.shards[shard].suffix for shard in shards)
            raise Refused(
                f"belongs to several shards ({clean(names, 80)})", where=path, hint="put {suffix} into the pattern"
            )
        owned[owners[0], path] = shards[owners[0]]
    return owned


def _without_metadata(claimed: dict[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    """Without the JSON that lies beside a part of another format: it goes into the metadata."""
    beside = {name for _, path in claimed if format_of(path) not in ("", "json") for name in names_beside(path, "")}
    return {key: pattern for key, pattern in claimed.items() if key[1] not in beside}


def _bearing(suffix: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(suffix)}(?![A-Za-z0-9])")


def _output_name(template: str) -> str:
    """`dir/x_\\0.pt` -> `dir/x_merged.pt`; a directory that is only the suffix falls away."""
    *above, name = template.split("/")
    above = [part.replace(_MARK, "merged") for part in above if part != _MARK]
    stem, dot = os.path.splitext(name)
    return "/".join([*above, name.replace(_MARK, "merged") if _MARK in name else f"{stem}_merged{dot}"])


def _common_name(paths: Sequence[str]) -> str:
    """What the names have in common but for numbers, or else what they begin with, and `merged`."""
    directory = os.path.commonpath([os.path.dirname(path) for path in paths])
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    words = [_NUMBER.split(stem) for stem in stems]
    if len(paths) > 1 and len({tuple(texts[::2]) for texts in words}) == 1:
        common = [these[0] if len(set(these)) == 1 else _MARK for these in zip(*words, strict=True)]
        begin, *others = "".join(common).split(_MARK)
        for text in others:
            begin += text if begin and begin[-1] not in _JOINTS else text.lstrip(_JOINTS)
    else:
        begin = _common_prefix(stems).rstrip("0123456789")
    joint = "" if not begin or begin[-1] in _JOINTS else "_"
    return os.path.join(directory, f"{begin}{joint}merged{os.path.splitext(paths[0])[1]}")


def _common_prefix(names: Sequence[str]) -> str:
    low, high = min(names), max(names)
    return next((low[:k] for k, letter in enumerate(low) if letter != high[k : k + 1]), low)
