"""The files that the shards of a plan have written, in groups: each group becomes one output. Reads no file.

A file belongs to the shard whose pattern names it. Files of several shards belong together where the `*` of the same
pattern stands for the same text, but for the shards' suffixes. Their output is named after them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpusched.common.natural_order import natural_key
from gpusched.shards.patterns import split_pattern

from .model import suffix_of
from .report import MergeRefused, shown

if TYPE_CHECKING:
    from gpusched.shards.plan import ShardPlan

_MARK = "\0"  # stands where a name has its shard's suffix


@dataclass
class FileGroup:
    """The files that the shards have written under one name."""

    output: str
    files: dict[int, str] = field(default_factory=dict)  # shard -> path


def find_groups(plan: ShardPlan) -> list[FileGroup]:
    """Return the groups in the natural order of their outputs. Raises MergeRefused for a file of two shards."""
    patterns = _Patterns(plan)
    claims: dict[str, dict[int, tuple[int, str]]] = {}  # path -> shard -> number of the pattern, text of its `*`
    for shard in plan.shards:
        for number in range(len(shard.outputs)):
            for path, text in patterns.files(shard.shard, number):
                claims.setdefault(path, {}).setdefault(shard.shard, (number, text))
    # The JSON that a script left beside a part of another format goes into the metadata.
    beside = {name for path in claims if suffix_of(path) not in ("", "json") for name in script_metadata_names(path)}
    groups: dict[tuple[int, str], FileGroup] = {}
    for path, owners in claims.items():
        own = list(owners) if len(owners) == 1 else [shard for shard in owners if patterns.bears(shard, path)]
        if path not in beside and len(own) != 1:
            names = shown(", ".join(plan.shards[shard].suffix for shard in owners), 80)
            raise MergeRefused(f"belongs to several shards ({names})", where=path, hint="put {suffix} into the pattern")
        if path not in beside:
            number, text = owners[own[0]]
            key = number, patterns.mark(own[0], text)
            groups[key] = groups.get(key) or FileGroup(patterns.output_name(*key))
            groups[key].files[own[0]] = path
    return sorted(groups.values(), key=lambda group: natural_key(group.output))


class _Patterns:
    """The patterns of all shards, and the directories that they name, each of which is listed once."""

    def __init__(self, plan: ShardPlan) -> None:
        self._suffixes = [shard.suffix for shard in plan.shards]
        self._words = [re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])") for word in self._suffixes]
        self._listings: dict[str, list[str]] = {}
        self._texts = [[split_pattern(os.path.normpath(one)) for one in shard.outputs] for shard in plan.shards]
        directories = [os.path.dirname(texts[0]) for shard in self._texts for texts in shard]
        # What stands above all outputs names no shard.
        root = os.path.commonpath(directories) if len({*map(os.path.isabs, directories)}) == 1 else ""
        self._root = f"{root.rstrip('/')}/" if root else ""

    def files(self, shard: int, number: int) -> list[tuple[str, str]]:
        """Return the files that a pattern names, each with the text that its `*` stands for there."""
        texts = self._texts[shard][number]
        if len(texts) == 1:
            return [(texts[0], "")] if os.path.isfile(texts[0]) else []
        directory, begin = os.path.split(texts[0])
        end, slash, below = texts[1].partition("/")
        needs_suffix = self.bears(shard, "*".join(texts))  # `gpu_1*` names gpu_10 too
        if directory not in self._listings:
            names = os.listdir(directory or ".") if os.path.isdir(directory or ".") else []
            self._listings[directory] = sorted(names, key=natural_key)
        found = []
        for name in self._listings[directory]:
            is_hidden = name.startswith(".") and not begin
            if name.startswith(begin) and name.endswith(end) and len(name) >= len(begin + end) and not is_hidden:
                path = os.path.join(directory, name + slash + below)
                if os.path.isfile(path) and (self.bears(shard, path) or not needs_suffix):
                    found.append((path, name[len(begin) : len(name) - len(end)]))
        return found

    def bears(self, shard: int, path: str) -> bool:
        """Return True if a path has the suffix of this shard as a word."""
        return self._words[shard].search(path.removeprefix(self._root)) is not None

    def mark(self, shard: int, text: str) -> str:
        return self._words[shard].sub(_MARK, text)

    def output_name(self, number: int, text: str) -> str:
        """Return the output of the files that pattern `number` names with this text for its `*`."""
        pairs = zip(self._suffixes, self._texts, strict=True)
        names = [text.replace(_MARK, word).join(texts[number]).removeprefix(self._root) for word, texts in pairs]
        templates = {self.mark(shard, name) for shard, name in enumerate(names)}
        *above, name = templates.pop().split("/")
        if templates or _MARK not in "/".join([*above, name]):
            return self._root + _common_name(names)
        above = [word.replace(_MARK, "merged") for word in above if word != _MARK]  # `gpu_0/x.pt` makes `x_merged.pt`
        stem, dot = os.path.splitext(name)
        name = name.replace(_MARK, "merged") if _MARK in name else f"{stem}_merged{dot}"
        return self._root + "/".join([*above, name])


def _common_name(paths: Sequence[str]) -> str:
    """Return the text that the names have in common but for numbers, or else their beginning, and `merged`."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    words = [re.split(r"([0-9]+)", stem) for stem in stems]
    if len({tuple(texts[::2]) for texts in words}) == 1:
        common = "".join(these[0] for these in zip(*words, strict=True) if len(set(these)) == 1)
    else:
        common = os.path.commonprefix(stems).rstrip("0123456789")  # noqa: RUF071
    common = re.sub(r"([_.-])[_.-]+", r"\1", common).lstrip("_.-")
    joint = "_" if common and common[-1] not in "_.-" else ""
    directory = os.path.commonpath([os.path.dirname(path) for path in paths])
    return os.path.join(directory, f"{common}{joint}merged{os.path.splitext(paths[0])[1]}")


def script_metadata_names(path: str, suffix: str = "") -> list[str]:
    """Return the paths where a script may have left the metadata of a part: `x_gpu_0_metadata.json` and the like."""
    directory, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    names = [f"{stem}.json", f"{stem}_metadata.json", f"{stem}_meta.json"]
    if suffix and stem.endswith(suffix):
        names += [f"{stem.removesuffix(suffix)}metadata_{suffix}.json", f"metadata_{suffix}.json"]
    return [os.path.join(directory, word) for word in names if word != name]
