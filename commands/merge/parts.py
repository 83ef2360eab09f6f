"""What is merged: the parts, their order, the order of their items, and what the user has asked for. Reads no file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusched.shards.split import shuffled, strided_positions


@dataclass
class Part:
    """One file, and of which shard. What is below the line is filled in while it is read."""

    path: str
    name: str  # as people are shown it
    shard: int | None = None
    suffix: str = ""
    start: int | None = None
    end: int | None = None
    items: int | None = None  # how many the shard was given
    seed: int | None = None
    # ----
    records: int | None = None  # None: it has no count
    size: int = 0
    sha256: str = ""
    skipped: str = ""  # why nothing of it is in the output
    values: Mapping[str, Any] = field(default_factory=dict)  # its own plain values, where it is one object


@dataclass(frozen=True, slots=True)
class Missing:
    """A shard that has left no file, or one that is not of this plan."""

    shard: int
    suffix: str
    why: str
    start: int | None = None
    end: int | None = None
    items: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How to merge, as asked for."""

    key: str | None = None
    on_duplicate: str | None = None  # None: as "error"
    expect: int | None = None
    sums: tuple[str, ...] = ()
    nan: str = "null"
    allow_partial: bool = False
    allow_pickle: bool = False
    remove_parts: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """What a format has made of the parts."""

    records: int | None
    per_item: bool = True  # whether the parts' counts are of records; else of whatever their arrays and lists hold


def shown_name(path: str, here: str) -> str:
    """A part's name as seen from the output's directory `here`, which no other file has.

    An absolute path stays, unless it leads into or below that directory.
    """
    directory, name = os.path.split(path)
    if os.pardir in directory.split(os.sep):  # after a link it leads elsewhere than the words say
        directory = os.path.realpath(directory)
    absolute = os.path.abspath(os.path.join(directory, name))
    inside = os.path.commonpath([absolute, here]) == here
    return path if os.path.isabs(path) and not inside else os.path.relpath(absolute, here)


@dataclass(frozen=True, slots=True)
class ItemOrder:
    """How a plan dealt its items out, where putting part after part does not give them back in order."""

    total: int
    num_shards: int
    strided: bool
    shuffle_seed: int | None
    ranges: Sequence[tuple[int, int]]  # of each shard, in the line; used where it is not strided

    def dealt(self, shard: int) -> range:
        """The positions in the line of this shard's items."""
        return strided_positions(self.total, self.num_shards, shard) if self.strided else range(*self.ranges[shard])

    def sequence(self, shards: Sequence[int]) -> Iterator[int]:
        """For each item that these shards have, in the items' order: which of them (by its place here) has it.

        Only where nothing was shuffled: then each part holds its items in their order.
        """
        place = {shard: k for k, shard in enumerate(shards)}
        for item in range(self.total):
            if (found := place.get(item % self.num_shards)) is not None:
                yield found

    def places(self, shards: Sequence[int]) -> array[int]:
        """For each item that these shards have, in the items' order: its number when part stands after part."""
        line = None if self.shuffle_seed is None else shuffled(self.total, self.shuffle_seed)
        where = array("q", [-1]) * self.total
        number = 0
        for shard in shards:
            for position in self.dealt(shard):
                where[position if line is None else line[position]] = number
                number += 1
        return array("q", (place for place in where if place >= 0))

    def fits(self, parts: Sequence[Part], counts: Sequence[int | None]) -> bool:
        """Whether each part has exactly as many records as its shard has items."""
        return all(
            part.shard is not None and count == len(self.dealt(part.shard))
            for part, count in zip(parts, counts, strict=True)
        )
