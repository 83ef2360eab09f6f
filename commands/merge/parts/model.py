"""The values that a merge is about: its parts, the order of the items, and its problems in words. Reads no file."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusched.common.errors import EXIT_SOME_FAILED, GpuschedError
from gpusched.common.text import clean, first_few
from gpusched.shards.merge_options import MergeOptions
from gpusched.shards.split import shuffled

if TYPE_CHECKING:
    from gpusched.shards.on_disk import ShardRun
    from gpusched.shards.plan import Shard, ShardPlan

SHOWN = 5  # of like things


def shown(text: object, limit: int = 300) -> str:
    """Return text from others on one printable line, cut at `limit` characters."""
    line = clean(str(text))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def count_of(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class MergeRefused(GpuschedError):
    """A refusal: nothing is written."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", exit_code: int = EXIT_SOME_FAILED) -> None:
        super().__init__(what, where=shown(where), hint=hint, exit_code=exit_code)


class PartUnreadable(Exception):
    """One part cannot be read, as a whole or from `line` on; the others can."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


class LeftOut(NamedTuple):
    """A record or a part that is not in the output."""

    part: str
    line: int | None
    why: str

    def __str__(self) -> str:
        return f"{shown(self.part)}{f', line {self.line}' if self.line else ''}: {self.why}"


@dataclass
class MergeReport:
    """The problems of one merge. Its size is bounded: of many like things, the first ones and their number."""

    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)  # part -> how many records
    marks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # first line, how often
    ordered: list[str] = field(default_factory=list)  # what has one row for each item, and was put into their order
    unordered: list[str] = field(default_factory=list)  # what has not, and why

    def note(self, text: str) -> None:
        """Keep a warning, once."""
        if text not in self.notes:
            self.notes.append(text)

    def note_at(self, part: str, line: int, text: str) -> None:
        """Keep a warning about a line of a part; for many lines it is one warning."""
        first, count = self.marks.get((part, text), (line, 0))
        self.marks[part, text] = first, count + 1

    def leave_out(self, part: str, line: int | None, why: str) -> None:
        """Keep the loss of a record, or of all of a part from a line on."""
        self.lost[part] = self.lost.get(part, 0) + 1
        if self.lost[part] <= SHOWN:
            self.left_out.append(LeftOut(part, line, why))

    def warnings(self) -> list[str]:
        """Return all warnings, one line each."""
        lines = list(self.notes)
        for (part, text), (line, count) in self.marks.items():
            more = f", and on {count_of(count - 1, 'line')} more" if count > 1 else ""
            lines.append(f"{shown(part)}, line {line}: {text}{more}")
        return lines

    def errors(self) -> list[str]:
        """Return what is left out, one line each."""
        more = [f"{shown(part)}: {count - SHOWN} more of them" for part, count in self.lost.items() if count > SHOWN]
        return [*map(str, self.left_out), *more]


@dataclass
class MergePart:
    """One file and its shard. The fields below the line are filled in while it is read."""

    path: str
    name: str  # as people see it: from the output's directory
    shard: Shard | None = None
    run: ShardRun | None = None  # the attempt of the shard that it should be of
    # ----
    records: int | None = None  # None: it has no count
    size: int = 0
    stamp: tuple[Any, ...] = ()  # another one after a change
    sha256: str = ""
    skipped: str = ""  # why nothing of it is in the output
    rows: Mapping[str, int] = field(default_factory=dict)  # of each list and array, where it is one dict
    is_short: bool = False  # fewer records than its shard has items
    values: Mapping[str, Any] = field(default_factory=dict)  # its plain values, where it is one object


@dataclass
class MergeTask:
    """The merge of some parts into one output. `order`: the plan, where its parts one after the other are no order."""

    output: str
    parts: list[MergePart]
    options: MergeOptions
    order: ShardPlan | None = None
    missing: list[MergePart] = field(default_factory=list)  # `skipped` says why
    order_text: str = "the items' own order"
    counts_items: bool = True  # the counts of the parts are of records, and not of lists in a dict
    report: MergeReport = field(default_factory=MergeReport)
    known_places: dict[tuple[str, ...], array[int]] = field(default_factory=dict)  # by the paths of the parts

    def places(self, key: str, parts: Sequence[MergePart], counts: Sequence[int | None]) -> array[int] | None:
        """Return the row of each item, in the order of the items, where the rows of part stand after part.

        None if the parts need no other order, or do not have exactly one row for each item of their shards. `key` has
        these rows; the report gets which it is, since all keys and outputs of a plan have one order.
        """
        if self.order is None:
            return None
        read = [(part, count) for part, count in zip(parts, counts, strict=True) if not part.skipped]
        label = f"{shown(os.path.basename(self.output))}{f', {shown(key)!r}' if key else ''}"
        for part, count in read:
            if part.shard is not None and count != part.shard.count:
                rows = "no rows" if count is None else count_of(count, "row")
                items = count_of(part.shard.count, "item")
                self.report.unordered.append(f"{label}: {rows} for {items} in {shown(part.name)}")
                return None
        self.report.ordered.append(label)
        paths = tuple(part.path for part, _ in read)
        if paths not in self.known_places:
            self.known_places[paths] = self._places(self.order, [part.shard for part, _ in read if part.shard])
        return self.known_places[paths]

    @staticmethod
    def _places(order: ShardPlan, shards: Sequence[Shard]) -> array[int]:
        seed, row = order.shuffle_seed, 0
        line = None if seed is None else shuffled(order.total, seed)
        rows_by_item = array("q", [-1]) * order.total
        for shard in shards:
            for position in order.positions(shard):
                rows_by_item[position if line is None else line[position]] = row
                row += 1
        return array("q", (row for row in rows_by_item if row >= 0))

    @property
    def order_in_words(self) -> str:
        """The order of the records of the output."""
        is_restored = self.order is None or bool(self.report.ordered)
        return self.order_text if is_restored else "the parts one after the other, by their shards"


def check_order(tasks: Sequence[MergeTask]) -> None:
    """Keep the warning that the items' order is not restored.

    Raises MergeRefused if only some of the keys and outputs of a plan have one row for each item: they would get two
    orders.
    """
    ordered = [text for task in tasks for text in task.report.ordered]
    unordered = [text for task in tasks for text in task.report.unordered]
    if ordered and unordered:
        why = f"the order of the items can be restored in some of it ({ordered[0]}), and not in the rest:"
        hint = "leave the rest out of the parts, or out of --merge; or make shards without --strided and --shuffle"
        raise MergeRefused("\n  ".join([why, *first_few(unordered)]), hint=hint)
    for task in tasks:
        for text in task.report.unordered:
            task.report.note(f"{text}, so the parts stand one after the other, by their shards")


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
    """Return the name of a part as seen from `directory`; an absolute path from elsewhere stays."""
    above, name = os.path.split(path)
    absolute = os.path.join(os.path.realpath(above), name)  # after a link, `..` leads elsewhere than the words say
    directory = os.path.realpath(directory)
    is_inside = os.path.commonpath([absolute, directory]) == directory
    return path if os.path.isabs(path) and not is_inside else os.path.relpath(absolute, directory)
