"""What goes wrong in a merge, said to people: refusals, records left out, notes. Prints nothing."""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from .parts import Part

EXIT_OK = 0
EXIT_INCOMPLETE = 1
EXIT_USAGE = 2
EXIT_CANNOT_WORK = 3

SHOWN = 5  # of the records that one part loses, this many are named one by one

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def clean(text: object, limit: int = 300) -> str:
    """Text from others on one line, without what a terminal would obey."""
    shown = _CONTROL.sub(lambda match: repr(match[0])[1:-1], str(text))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


class Refused(Exception):
    """Nothing is written: what is wrong, where, and what to do next. `exit_code` is one of the codes above."""

    def __init__(self, what: str, *, where: str = "", hint: str = "", exit_code: int = EXIT_INCOMPLETE) -> None:
        head = f"{clean(where)}: {what}" if where else what
        super().__init__(f"{head}\n  {hint}" if hint else head)
        self.exit_code = exit_code


class PartUnreadable(Exception):
    """One part cannot be read, as a whole or from `line` on; the others can."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


def too_many_open(error: BaseException) -> Refused | None:
    """What to say where this process may open no more files: it is the fault of no part."""
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    return Refused(
        f"too many parts to be open together: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files are the limit",
        hint="raise it (ulimit -n), or merge fewer parts at once",
        exit_code=EXIT_CANNOT_WORK,
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of a part that is not in the output."""

    part: str
    line: int | None
    why: str

    def __str__(self) -> str:
        place = f"{clean(self.part)}, line {self.line}" if self.line else clean(self.part)
        return f"{place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Short:
    """A part with fewer records than its shard has items: how it came to be is not known."""

    part: str
    shard: int | None
    suffix: str
    records: int
    items: int

    def __str__(self) -> str:
        return f"{clean(self.part)}: {number(self.records, 'record')} of {number(self.items, 'item')}"


@dataclass
class Told:
    """What a merge has to say at its end. Bounded: of many like things, the first ones and their number."""

    notes: list[str] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)  # part -> how many records
    wrong: list[str] = field(default_factory=list)  # counts that are not what they should be
    placed: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # first line, how often
    short: list[Short] = field(default_factory=list)

    unordered: bool = False

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def note_at(self, part: str, line: int, text: str) -> None:
        first, count = self.placed.get((part, text), (line, 0))
        self.placed[part, text] = first, count + 1

    def warnings(self) -> list[str]:
        """All notes, one line each; of those that many lines of a part have, the first."""
        found = list(self.notes)
        for (part, text), (line, count) in self.placed.items():
            more = f", and on {number(count - 1, 'line')} more" if count > 1 else ""
            found.append(f"{clean(part)}, line {line}: {text}{more}")
        return found

    def not_in_order(self) -> None:
        """The parts do not have what it takes to put items back into their order."""
        self.unordered = True
        self.note("not each part has one record an item: the parts stand one after the other, in their shards' order")

    def leave_out(self, part: str, line: int | None, why: str) -> None:
        count = self.lost[part] = self.lost.get(part, 0) + 1
        if count <= SHOWN:
            self.left_out.append(LeftOut(part, line, why))

    def lines(self) -> list[str]:
        """What is wrong, one line each."""
        more = [f"{clean(part)}: {count - SHOWN} more of them" for part, count in self.lost.items() if count > SHOWN]
        return [*map(str, self.left_out), *more, *self.wrong]

    def copy(self) -> Told:
        return Told(list(self.notes), list(self.left_out), dict(self.lost), list(self.wrong), dict(self.placed))

    def become(self, other: Told) -> None:
        """Forget what was told since `other` was copied."""
        self.notes, self.left_out, self.lost = list(other.notes), list(other.left_out), dict(other.lost)
        self.wrong, self.placed = list(other.wrong), dict(other.placed)


@contextmanager
def reading(part: Part, told: Told) -> Iterator[None]:
    """Around what reads a part: what cannot be read of it is left out, which is told; the others go on."""
    try:
        yield
    except PartUnreadable as error:
        line, why = error.line, error.why
    except OSError as error:
        if refused := too_many_open(error):
            raise refused from None
        line, why = None, f"cannot be read: {error.strerror or clean(error)}"
    else:
        if not part.records and part.name in told.lost:
            part.skipped = "none of its records can be read"
        return
    part.skipped = "" if part.records else why
    told.leave_out(part.name, line, why)


def number(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
