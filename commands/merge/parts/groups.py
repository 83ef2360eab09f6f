"""The files that the shards of a plan have written, in groups: each group becomes one output. Reads no file.

Files of several shards belong together where the `*` of the same pattern stands for the same text, but for the suffix.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpusched.common.natural_order import natural_key
from gpusched.shards.patterns import split_pattern

from .model import MergeRefused, shown, suffix_of

if TYPE_CHECKING:
    from gpusched.shards.plan import ShardPlan

FileGroup = tuple[str, dict[int, str]]  # output, the file of each shard

_MARK = "\0"  # stands where a name has its shard's suffix


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
    groups: dict[tuple[int, str], dict[int, str]] = {}
    for path in claims.keys() - beside:
        owners = claims[path]
        own = list(owners) if len(owners) == 1 else [shard for shard in owners if patterns.bears(shard, path)]
        if len(own) != 1:
            names = shown(", ".join(plan.shards[shard].suffix for shard in owners), 80)
            raise MergeRefused(f"belongs to several shards ({names})", where=path, hint="put {suffix} into the pattern")
        number, text = owners[own[0]]
        groups.setdefault((number, patterns.mark(own[0], text)), {})[own[0]] = path
    named = [(patterns.output_name(*key), files) for key, files in groups.items()]
    return sorted(named, key=lambda group: natural_key(group[0]))


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

    def output_name(self, number: int, text: str) -> str:
        """Return what the names have in common, but for numbers, with `merged` for the suffix or at the end."""
        pairs = zip(self._suffixes, self._texts, strict=True)
        names = [text.replace(_MARK, word).join(texts[number]) for word, texts in pairs]
        stems = [self.mark(shard, os.path.splitext(os.path.basename(name))[0]) for shard, name in enumerate(names)]
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
        directory = os.path.commonpath([os.path.dirname(name) for name in names])
        return os.path.join(directory, name + os.path.splitext(names[0])[1])


def script_metadata_names(path: str, suffix: str = "") -> list[str]:
    """Return the paths where a script may have left the metadata of a part: `x_gpu_0_metadata.json` and the like."""
    directory, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    names = [f"{stem}.json", f"{stem}_metadata.json", f"{stem}_meta.json"]
    if suffix and stem.endswith(suffix):
        names += [f"{stem.removesuffix(suffix)}metadata_{suffix}.json", f"metadata_{suffix}.json"]
    return [os.path.join(directory, word) for word in names if word != name]
