"""CSV and TSV: columns by name, their union, one header. Values stay text; one row is held at a time."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from types import SimpleNamespace

from gpusched.common.text import first_few
from gpusched.common.text_input import TableError, TableRow, read_rows

from ..join.records import NO_KEY, Record, RecordFormat, note_lacking, open_text
from ..parts.model import MergePart, MergeRefused, MergeReport, MergeTask, PartUnreadable, reading, shown


class CsvTables(RecordFormat):
    """The rows of .csv parts under the columns of all of them."""

    delimiter = ","

    def __init__(self, task: MergeTask) -> None:
        super().__init__(task)
        # It returns the line. With \r\n, since only the characters of the line's end are surely quoted in a field.
        self._writer = csv.writer(SimpleNamespace(write=str), delimiter=self.delimiter, lineterminator="\r\n")
        self._has_header = task.options.header != "no"
        self._headers: dict[str, list[str]] = {}
        filled = []
        for part in task.parts:
            with reading(part, self.report):
                first_rows = [row.cells for row in islice(self._rows(part, MergeReport()), 2)]
                if first_rows:
                    self._headers[part.path] = self._header(part, first_rows[0])
                filled += [part] if len(first_rows) > self._has_header else []
        # A part without rows decides nothing.
        self.columns = self._union(filled or [part for part in task.parts if part.path in self._headers])
        if self.columns and self._has_header:
            self.prefix = self._line(self.columns)

    def _header(self, part: MergePart, header: list[str]) -> list[str]:
        if not self._has_header:
            return [str(number) for number in range(len(header))]
        if self.options.header is None and all(map(_is_number, header)):
            why = f"its first row looks like data and not like names: {shown(self.delimiter.join(header), 60)}"
            raise MergeRefused(why, where=part.name, hint="--header yes or --header no says what it is")
        if twice := sorted(name for name in {*header} if header.count(name) > 1):
            raise PartUnreadable(f"names the column {shown(twice[0])!r} twice", 1)
        if len(header) == 1 and any(mark in header[0] for mark in {*",;\t|"} - {self.delimiter}):
            raise PartUnreadable(f"has one column, {shown(header[0], 60)!r}: it is separated by something else", 1)
        return header

    def _union(self, parts: Sequence[MergePart]) -> list[str]:
        """Return all columns, in the order in which they come."""
        union: dict[str, None] = {}
        for part in parts:
            header = self._headers[part.path]
            if union and not union.keys() & {*header}:
                why = f"has no column in common with {shown(parts[0].name)}: {shown(', '.join(header), 120)}"
                raise MergeRefused(why, where=part.name, hint="is its header missing? each part needs one")
            union.update(dict.fromkeys(header))
        for column in union:
            note_lacking(self.report, column, [p.name for p in parts if column not in self._headers[p.path]])
        return list(union)

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        if not (header := self._headers.get(part.path, [])):
            return
        at = {name: number for number, name in enumerate(header)}
        places = [at.get(name) for name in self.columns]
        key = at.get(self.options.key or "")
        if self.options.key is not None and key is None:
            raise PartUnreadable(NO_KEY)
        for row in islice(self._rows(part, report), int(self._has_header), None):
            cells = row.cells[: len(header)]
            values = cells if header == self.columns else ["" if place is None else cells[place] for place in places]
            yield row.line, self._line(values), b"" if key is None else cells[key].encode(), 1

    def _line(self, row: Sequence[str]) -> bytes:
        return str(self._writer.writerow(row)).removesuffix("\r\n").encode() + b"\n"

    def _rows(self, part: MergePart, report: MergeReport) -> Iterator[TableRow]:
        """Yield the rows, the header first."""
        notes: list[str] = []
        is_known = self.delimiter != "," or not self._has_header  # else the names of the columns show what it is
        try:
            yield from read_rows(
                _lines(part),
                notes,
                self.delimiter if is_known else "",
                has_names=self._has_header,
                leave_out=lambda line, why: report.leave_out(part.name, line, why),
            )
        except TableError as error:  # with an open quote, nobody knows where the next row begins
            raise PartUnreadable(f"{error.why}; all from here on is left out", error.line) from None
        for text in first_few(notes):
            report.note(f"{shown(part.name)}: {text}")


class TsvTables(CsvTables):
    """The rows of .tsv parts."""

    delimiter = "\t"


def _is_number(cell: str) -> bool:
    try:
        return bool(re.search("[0-9]", cell)) and float(cell) is not None
    except ValueError:
        return False


def _lines(part: MergePart) -> Iterator[str]:
    """Yield the lines as text, without a byte order mark. PartUnreadable where they are none."""
    with open_text(part.path) as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise PartUnreadable(f"all from here on is left out: {error}", number) from None
            if "\0" in text:
                raise PartUnreadable("holds NUL bytes; all from here on is left out", number)
            yield text
