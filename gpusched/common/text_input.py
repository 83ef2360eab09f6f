"""Text and tables that people hand in, from bytes: the same input is read, or refused, alike wherever it goes.

Text is UTF-8, with or without a byte order mark; other bytes are kept as they are. A line ends with a newline and with
nothing else. A table is CSV below a line that names its columns.
"""

from __future__ import annotations

import csv
import itertools
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, NoReturn

from gpusched.common.text import count

_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_SAMPLE_BYTES = 4096
_CELL_BYTES = 1 << 26  # a cell may be a whole document; one that is longer is a quote that nobody closed
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # the first line of a table that a spreadsheet has written
_COMMENT = re.compile(r"\s*#(?!\w)")  # `#id` may be the name of a column


def map_file(path: str) -> mmap.mmap | bytes:
    """Return the bytes of a file, mapped into memory."""
    with open(path, "rb") as file:
        is_empty = os.fstat(file.fileno()).st_size == 0
        return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def encoding_problem(data: bytes | mmap.mmap) -> str:
    r"""Return what these first bytes are if they are not read, with the remedy; empty for UTF-8 with \n at its ends."""
    sample = data[:_SAMPLE_BYTES]
    even, odd = sample[::2].count(0), sample[1::2].count(0)  # most characters of most texts are ASCII
    name = "UTF-16BE" if even > odd else "UTF-16LE"
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        name = "UTF-16"
    elif 4 * min(even, odd) >= max(even, odd) or max(even, odd) < max(2, len(sample) // 8):
        has_only_cr = data.find(b"\n") < 0 and 0 <= data.find(b"\r") < len(data) - 1
        return (
            r"text whose lines end in \r alone; save it with \n, by: tr '\r' '\n' < FILE > NEW" if has_only_cr else ""
        )
    return f"UTF-16, not UTF-8; save it as UTF-8, by: iconv -f {name} -t UTF-8 FILE > NEW"


def check_text(data: bytes | mmap.mmap) -> int:
    """Return how many bytes a byte order mark takes. Raises ValueError for what is no text, or none in UTF-8."""
    if problem := encoding_problem(data):
        raise ValueError(f"this is {problem}")
    if (at := data.find(b"\0")) >= 0:
        line = data[:at].count(b"\n") + 1
        raise ValueError(f"not a text file: line {line} has a NUL byte")
    return len(_BOM) if data[:3] == _BOM else 0


def split_lines(data: bytes | mmap.mmap, start: int = 0) -> Iterator[re.Match[bytes]]:
    """Yield each line with its newline, as a match that knows its offsets."""
    return _LINE.finditer(data, start)


class TableRow(NamedTuple):
    """A row of a table: its line, from 1, its offsets into the text in characters, and its cells."""

    line: int
    start: int
    end: int
    cells: list[str]


class TableError(ValueError):
    """A row that is none, and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line} {why}")
        self.line, self.why = line, why


def _refuse(line: int, why: str) -> NoReturn:
    raise TableError(line, why)


def read_table(data: bytes, notes: list[str]) -> list[TableRow]:
    """Return the rows of a table, the names of its columns first. Raises ValueError as `read_rows`, and for no text."""
    lines = split_lines(data, check_text(data))
    return list(read_rows((line[0].decode("utf-8", "surrogateescape") for line in lines), notes))


def read_rows(
    lines: Iterable[str],
    notes: list[str],
    delimiter: str = "",
    *,
    has_names: bool = True,
    leave_out: Callable[[int, str], None] = _refuse,
) -> Iterator[TableRow]:
    """Yield the names of the columns, and the rows below them. Raises TableError where it cannot be read on.

    The first line shows what separates cells: `sep=;` or, in the names, a comma, a tab or a semicolon. Blank lines are
    no rows. Names that come again, as in joined files, and comments are left out, and a note says so. `leave_out` gets
    the rows of another width, with their lines.
    """
    source, line = _CountedLines(lines), ""
    for line in source:
        separator = _SEPARATOR.fullmatch(line)
        if separator:
            delimiter = separator[1]
        elif line.strip() and not _COMMENT.match(line):
            break
    else:
        return
    delimiter = delimiter or next((mark for mark in ",\t;" if mark in line), ",")
    csv.field_size_limit(_CELL_BYTES)
    names: list[str] = []
    start, number = source.end - len(line), source.number
    try:
        for cells in csv.reader(itertools.chain([line], source), delimiter=delimiter, strict=True):
            row = TableRow(number, start, source.end, cells)
            start, number = source.end, source.number + 1
            if not cells or (len(cells) == 1 < len(names) and not cells[0].strip()):
                continue
            if cells == names and has_names:
                notes.append(f"line {row.line} repeats the names of the columns and is left out")
            elif not names or (len(cells) >= len(names) and not any(cells[len(names) :])):
                yield row
            elif _COMMENT.match(cells[0]):
                notes.append(f"line {row.line} is a comment and is left out")
            else:
                leave_out(row.line, f"has {count(len(cells), 'field')}, and the header has {len(names)}")
            names = names or cells
    except csv.Error as error:
        raise TableError(number, f"is no CSV: {error}") from None


class _CountedLines:
    """Lines, with the number and the end of the last one, in characters."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.number = self.end = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            self.end += len(line)
            yield line
