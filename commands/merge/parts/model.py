"""The values that a merge is about: its parts, its options, and the order of the items. Reads no file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusched.shards.merge_options import MergeOptions
from gpusched.shards.split import shuffled

from .report import MergeRefused, MergeReport, PartUnreadable, shown

if TYPE_CHECKING:
    from gpusched.shards.plan import Shard, ShardPlan


@dataclass
class MergePart:
    """One file and its shard. The fields below the line are filled in while it is read."""

    path: str
    name: str  # as people see it: from the output's directory
    shard: Shard | None = None
    # ----
    records: int | None = None  # None: it has no count
    size: int = 0
    stamp: tuple[Any, ...] = ()  # another one after a change
    sha256: str = ""
    skipped: str = ""  # why nothing of it is in the output
    values: Mapping[str, Any] = field(default_factory=dict)  # its plain values, where it is one object


class MissingPart(NamedTuple):
    """A part that does not exist, or is of another run."""

    name: str
    why: str
    shard: Shard | None = None


class Joined(NamedTuple):
    """The result of joining the parts. `per_item`: the counts are of records, not of lists in a dict."""

    records: int | None
    per_item: bool = True


class ItemOrder(NamedTuple):
    """The order of a plan's items, where the parts one after the other do not have it."""

    plan: ShardPlan

    def fits(self, parts: Sequence[MergePart], counts: Sequence[int | None]) -> bool:
        """Return True if each part has exactly one record for each item of its shard."""
        return [part.shard.count if part.shard else None for part in parts] == list(counts)

    def places(self, parts: Sequence[MergePart]) -> array[int]:
        """Return the row of each item, in the order of the items, where the rows of part stand after part."""
        seed, row = self.plan.shuffle_seed, 0
        line = None if seed is None else shuffled(self.plan.total, seed)
        rows = array("q", [-1]) * self.plan.total
        for part in parts:
            for position in self.plan.positions(part.shard) if part.shard else ():
                rows[position if line is None else line[position]] = row
                row += 1
        return array("q", (row for row in rows if row >= 0))


@dataclass
class MergeTask:
    """The merge of some parts into one output. The report collects its problems."""

    output: str
    parts: list[MergePart]
    options: MergeOptions
    order: ItemOrder | None = None
    missing: list[MissingPart] = field(default_factory=list)
    order_text: str = "the items' own order"
    report: MergeReport = field(default_factory=MergeReport)


@contextmanager
def reading(part: MergePart, report: MergeReport, noun: str = "") -> Iterator[None]:
    """Report what cannot be read of a part inside this context as left out; the other parts go on.

    `noun` names the kind of file where a library reads it: any error of the library then means a damaged part.
    """
    try:
        yield
        if not part.records and part.name in report.lost:
            part.skipped = "none of its records can be read"
    except (MergeRefused, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, PartUnreadable):
            why = str(error)
        elif isinstance(error, OSError) and error.strerror:
            why = f"cannot be read: {error.strerror}"
        elif noun:
            begin = f"from record {part.records + 1} on it " if part.records else ""
            why = f"{begin}is no {noun}, or is cut or damaged: {shown(error, 160)}" if part.size else "is empty"
        else:
            raise
        part.skipped = "" if part.records else why
        report.leave_out(part.name, getattr(error, "line", None), why)


def suffix_of(path: str) -> str:
    """Return the suffix of a name in lower case, without the dot: its format."""
    return os.path.splitext(path)[1].lower().removeprefix(".")


def name_from(directory: str, path: str) -> str:
    """Return the name of a part as seen from `directory`, which no other file has.

    An absolute path stays, unless it leads into or below that directory.
    """
    above, name = os.path.split(path)
    absolute = os.path.join(os.path.realpath(above), name)  # after a link, `..` leads elsewhere than the words say
    directory = os.path.realpath(directory)
    is_inside = os.path.commonpath([absolute, directory]) == directory
    return path if os.path.isabs(path) and not is_inside else os.path.relpath(absolute, directory)
