"""Problems of a merge in words: refusals, records that are left out, notes. Prints nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpusched.common.errors import EXIT_SOME_FAILED, GpuschedError
from gpusched.common.text import clean

SHOWN = 5  # of like things


def shown(text: object, limit: int = 300) -> str:
    """Return text from others on one printable line, cut at `limit` characters."""
    line = clean(str(text))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def count_of(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def first_of(lines: list[str], limit: int = SHOWN) -> list[str]:
    """Return the first lines, and the number of the others in one line more."""
    return lines if len(lines) <= limit else [*lines[:limit], f"and {len(lines) - limit:,} more"]


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
    is_unordered: bool = False

    def note(self, text: str) -> None:
        """Keep a warning, once."""
        if text not in self.notes:
            self.notes.append(text)

    def note_at(self, part: str, line: int, text: str) -> None:
        """Keep a warning about a line of a part; for many lines it is one warning."""
        first, count = self.marks.get((part, text), (line, 0))
        self.marks[part, text] = first, count + 1

    def note_order(self) -> None:
        """Keep the warning that items are not put back into their order."""
        self.is_unordered = True
        self.note("the parts do not have one record for each item: they stand one after the other, by their shards")

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
