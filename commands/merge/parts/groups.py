"""The files that the shards of a plan have written, in groups: each group becomes one output. Reads no file.

A shard that has written one file for a pattern is in one group with the others, whatever the `*` stands for. Of several
files, those belong together where the `*` stands for the same text, but for the suffix.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple

from gpusched.common.text import natural_key
from gpusched.shards.on_disk import CLOCKS_DIFFER_S, ShardRun
from gpusched.shards.patterns import split_pattern

from .model import MergeRefused, shown, suffix_of

if TYPE_CHECKING:
    from gpusched.shards.plan import ShardPlan

FilesByText = dict[str, str]  # what the `*` stands for, with a mark for the suffix -> the path

_MARK = "\0"  # stands where a name has its shard's suffix


class FileGroup(NamedTuple):
    """The files of one output, by the numbers of their shards."""

    output: str
    files: dict[int, str]


class ShardFiles(NamedTuple):
    """The files of a plan's shards: groups in the natural order of their outputs, files of other runs, warnings."""

    groups: list[FileGroup]
    stale: dict[int, list[str]]  # by shard: older than the plan
    notes: list[str]
    unserved: list[str]  # patterns for which no shard has left a file


def find_groups(plan: ShardPlan, runs: Mapping[str, ShardRun] = {}, *, allow_partial: bool = False) -> ShardFiles:
    """Return the files in groups. `runs` tell which attempt of a shard has written one, by the names of the shards.

    Raises MergeRefused for a file of two shards, and for shards whose files do not correspond.
    """
    patterns, notes = _Patterns(plan), []
    fresh, stale = _claimed_files(plan, patterns)
    groups: list[FileGroup] = []
    for number, of_shards in sorted(fresh.items()):
        for shard, files in of_shards.items():
            of_shards[shard] = _of_last_run(files, runs.get(plan.shards[shard].suffix))
            if dropped := sorted(os.path.basename(files[text]) for text in files.keys() - of_shards[shard].keys()):
                notes.append(f"{shown(', '.join(dropped))}: of an attempt that failed, and not merged")
        if of_shards and all(len(files) == 1 for files in of_shards.values()):
            groups.append(patterns.group(number, {shard: dict(files) for shard, files in of_shards.items()}))
            continue
        if not allow_partial:
            _refuse_other_sets(plan, of_shards)
        for text in {text for files in of_shards.values() for text in files}:
            some = {shard: {text: files[text]} for shard, files in of_shards.items() if text in files}
            groups.append(patterns.group(number, some))
    outputs = plan.shards[0].outputs if plan.shards else ()
    unserved = [pattern for number, pattern in enumerate(outputs) if number not in fresh]
    return ShardFiles(sorted(groups, key=lambda group: natural_key(group.output)), stale, notes, unserved)


def _claimed_files(
    plan: ShardPlan, patterns: _Patterns
) -> tuple[dict[int, dict[int, FilesByText]], dict[int, list[str]]]:
    """Return the files that are of this run by pattern and shard, and those that are older than the plan by shard."""
    claims: dict[str, dict[int, tuple[int, str]]] = {}  # path -> shard -> number of the pattern, text of its `*`
    for shard in plan.shards:
        for number in range(len(shard.outputs)):
            for path, text in patterns.files(shard.shard, number):
                claims.setdefault(path, {}).setdefault(shard.shard, (number, text))
    # The JSON that a script left beside a part of another format goes into the metadata.
    beside = {name for path in claims if suffix_of(path) not in ("", "json") for name in script_metadata_names(path)}
    fresh: dict[int, dict[int, FilesByText]] = {
        number: {} for path in claims.keys() & beside for number, _ in claims[path].values()
    }
    stale: dict[int, list[str]] = {}
    for path in sorted(claims.keys() - beside):
        owners = claims[path]
        own = list(owners) if len(owners) == 1 else [shard for shard in owners if patterns.bears(shard, path)]
        if len(own) != 1:
            names = shown(", ".join(plan.shards[shard].suffix for shard in owners), 80)
            raise MergeRefused(f"belongs to several shards ({names})", where=path, hint="put {suffix} into the pattern")
        number, text = owners[own[0]]
        if os.stat(path).st_mtime < plan.created_at - CLOCKS_DIFFER_S:
            stale.setdefault(own[0], []).append(path)
        else:
            fresh.setdefault(number, {}).setdefault(own[0], {})[patterns.mark(own[0], text)] = path
    return fresh, stale


def _of_last_run(files: FilesByText, run: ShardRun | None) -> FilesByText:
    """Return the files without those of earlier attempts that differ only in numbers from one of the last attempt."""
    by_kind: dict[str, FilesByText] = {}
    for text, path in files.items():
        by_kind.setdefault(re.sub("[0-9]+", "0", text), {})[text] = path
    kept: FilesByText = {}
    for kind in by_kind.values():
        times = {text: os.stat(path).st_mtime for text, path in kind.items()}
        inside = [
            {text for text in kind if run is not None and run.covers(times[text], s)} for s in (0, CLOCKS_DIFFER_S)
        ]
        kept |= {text: kind[text] for text in inside[0] or inside[1] or kind}
    return kept


def _refuse_other_sets(plan: ShardPlan, of_shards: Mapping[int, FilesByText]) -> None:
    for shard, other in permutations(of_shards, 2):
        others = of_shards[other]
        lonely = [path for text, path in of_shards[shard].items() if text not in others]
        if lonely:
            name, beside = (shown(os.path.basename(path)) for path in (lonely[0], next(iter(others.values()))))
            why = f"{name} has no counterpart of {plan.shards[other].suffix}, which has left {beside}: "
            why += "which files belong together is not known"
            hint = (
                "if none is missing, name in --merge what differs, by {start} or {seed}: the same command only merges"
            )
            raise MergeRefused(why, where=os.path.dirname(lonely[0]), hint=hint)


class _Patterns:
    """The patterns of all shards, and the files that they name."""

    def __init__(self, plan: ShardPlan) -> None:
        self._suffixes = [shard.suffix for shard in plan.shards]
        self._words = [re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])") for word in self._suffixes]
        self._patterns = [[os.path.normpath(one) for one in shard.outputs] for shard in plan.shards]
        self._texts = [[split_pattern(one) for one in patterns] for patterns in self._patterns]
        directories = [os.path.dirname(texts[0]) for shard in self._texts for texts in shard]
        # What stands above all outputs names no shard.
        self._root = os.path.join(os.path.commonpath(directories), "") if directories else ""

    def files(self, shard: int, number: int) -> Iterator[tuple[str, str]]:
        """Yield the files that a pattern names, each with the text that its `*` stands for there."""
        begin, *end = self._texts[shard][number]
        needs_suffix = self.bears(shard, "*".join([begin, *end]))  # `gpu_1*` names gpu_10 too
        for path in glob.iglob(self._patterns[shard][number]):
            if os.path.isfile(path) and (self.bears(shard, path) or not needs_suffix):
                yield path, path[len(begin) : len(path) - len("".join(end))]

    def bears(self, shard: int, path: str) -> bool:
        """Return True if a path has the suffix of this shard as a word."""
        return self._words[shard].search(path.removeprefix(self._root)) is not None

    def mark(self, shard: int, text: str) -> str:
        return self._words[shard].sub(_MARK, text)

    def group(self, number: int, files: Mapping[int, FilesByText]) -> FileGroup:
        """Return the group of these files, one for each shard."""
        texts = {shard: next(iter(by_text)) for shard, by_text in files.items()}
        paths = {shard: next(iter(by_text.values())) for shard, by_text in files.items()}
        return FileGroup(self._output_name(number, texts), paths)

    def _output_name(self, number: int, texts: Mapping[int, str]) -> str:
        """Return what the names have in common, but for numbers, with `merged` for the suffix or at the end."""
        if len(set(texts.values())) == 1:  # then those of missing files are known too
            texts = dict.fromkeys(range(len(self._suffixes)), next(iter(texts.values())))
        names = {
            shard: text.replace(_MARK, self._suffixes[shard]).join(self._texts[shard][number])
            for shard, text in texts.items()
        }
        stems = [self.mark(shard, os.path.splitext(os.path.basename(name))[0]) for shard, name in names.items()]
        words = [re.split(r"([0-9]+)", stem) for stem in stems]
        if len({tuple(texts[::2]) for texts in words}) == 1:
            common = "".join(these[0] for these in zip(*words, strict=True) if len(set(these)) == 1)
        else:
            common = os.path.commonprefix(stems).rstrip("0123456789")  # noqa: RUF071
        common = re.sub(r"([_.-])[_.-]+", r"\1", common).lstrip("_.-")
        if _MARK in common:
            name = common.replace(_MARK, "merged").rstrip("_.-")
        else:
            name = f"{common}merged" if not common or common[-1] in "_.-" else f"{common}_merged"
        directory = os.path.commonpath([os.path.dirname(name) for name in names.values()])
        return os.path.join(directory, name + os.path.splitext(next(iter(names.values())))[1])


def script_metadata_names(path: str, suffix: str = "") -> list[str]:
    """Return the paths where a script may have left the metadata of a part: `x_gpu_0_metadata.json` and the like."""
    directory, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    names = [f"{stem}.json", f"{stem}_metadata.json", f"{stem}_meta.json"]
    if suffix and stem.endswith(suffix):
        names += [f"{stem.removesuffix(suffix)}metadata_{suffix}.json", f"metadata_{suffix}.json"]
    return [os.path.join(directory, word) for word in names if word != name]
