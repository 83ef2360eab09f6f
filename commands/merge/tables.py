"""CSV and TSV: columns by name, their union, one header. Values stay text; holds one row at a time."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence

from .blocks import check_beginning
from .parts import Options, Part
from .records import NO_KEY, Record, check_key, tell_lacking
from .trouble import PartUnreadable, Refused, Told, clean, number, reading

FIELD_BYTES = 1 << 26  # a field that is longer is a quote that nobody closed
DELIMITERS = {",": "a comma", "\t": "a tab", ";": "a semicolon", "|": "a bar"}


class Tables:
    """The rows of .csv or .tsv parts under the columns of all of them. Made after a look at each header."""

    separator = b""
    suffix = b""

    def __init__(self, parts: Sequence[Part], delimiter: str, options: Options, told: Told) -> None:
        csv.field_size_limit(FIELD_BYTES)
        self.delimiter = delimiter
        self.told = told
        self.key = options.key
        headers: list[tuple[Part, list[str]]] = []
        for part in parts:
            with reading(part, told):
                header = next(self._rows(part), (1, [], True))[1]
                self._check_header(header)
                if header:
                    headers.append((part, header))
                else:
                    told.note(f"{clean(part.name)} is empty: it is skipped")
        self._with_header = {part.path for part, _ in headers}
        self.columns = self._union(headers)
        self._row = io.StringIO()
        self._writer = csv.writer(self._row, delimiter=delimiter, lineterminator="\r\n")
        self.prefix = self._text(self.columns) if self.columns else b""
        if self.key is not None and self.columns:
            check_key(self.key, self.columns)

    def records(self, part: Part) -> Iterator[Record]:
        if part.path not in self._with_header:
            return
        rows = self._rows(part)
        header = next(rows, (1, [], True))[1]
        place = {name: k for k, name in enumerate(header)}
        same = header == self.columns
        takes = [place.get(name) for name in self.columns]
        key = None if self.key is None else place.get(self.key)
        for line, row, plain in rows:
            if len(row) != len(header):
                why = f"has {number(len(row), 'field')} under a header of {len(header)}"
                self.told.leave_out(part.name, line, why)
                continue
            if self.key is not None and key is None:
                raise PartUnreadable(NO_KEY)
            values = row if same else ["" if k is None else row[k] for k in takes]
            text = f"{self.delimiter.join(values)}\n".encode() if plain else self._text(values)
            yield line, text, None if key is None else row[key].encode()

    def _text(self, row: Sequence[str]) -> bytes:
        self._row.seek(0)
        self._row.truncate()
        self._writer.writerow(row)
        # Written with both, since only what is in the line's end is surely quoted in a field.
        return self._row.getvalue().removesuffix("\r\n").encode() + b"\n"

    def _rows(self, part: Part) -> Iterator[tuple[int, list[str], bool]]:
        """(line where it begins, fields, whether none of them needs quotes), the header first; no blank lines.

        A row that is wrong is left out and told; a wrong header is PartUnreadable.
        """
        lines = _Lines(part)
        header = True
        for text in lines:
            begins = lines.number
            bare = text.removesuffix("\n").removesuffix("\r")
            if '"' not in bare and "\r" not in bare:
                if bare:
                    yield begins, bare.split(self.delimiter), True
                    header = False
                continue
            try:
                row = next(csv.reader(itertools.chain((text,), lines), delimiter=self.delimiter, strict=True))
            except csv.Error as error:
                if "unexpected end" in str(error):
                    why = "opens a quote that is never closed: all from here on is left out, or the file is cut"
                    raise PartUnreadable(why, begins) from None
                if header or "field larger" in str(error):
                    raise PartUnreadable(f"is no CSV from here on: {clean(error)}", begins) from None
                self.told.leave_out(part.name, begins, f"is no CSV: {clean(error)}")
                continue
            yield begins, row, False
            header = False

    def _check_header(self, header: Sequence[str]) -> None:
        twice = {name for name in header if header.count(name) > 1}
        if twice:
            raise PartUnreadable(f"names the column {clean(sorted(twice)[0])!r} twice", 1)
        if len(header) == 1:
            for other, name in DELIMITERS.items():
                if other != self.delimiter and other in header[0]:
                    raise PartUnreadable(f"is separated by {name}, not by {DELIMITERS[self.delimiter]}", 1)

    def _union(self, headers: Sequence[tuple[Part, list[str]]]) -> list[str]:
        """All columns, in the order in which they come; what only some parts have is told."""
        union: dict[str, None] = {}
        for part, header in headers:
            if union and not union.keys() & set(header):
                first = headers[0][0].name
                raise Refused(
                    f"has no column in common with {clean(first)}: {clean(', '.join(header), 120)}",
                    where=part.name,
                    hint="is its header missing? each part needs one",
                )
            union.update(dict.fromkeys(header))
        for column in union:
            if lacking := [part for part, header in headers if column not in header]:
                tell_lacking(self.told, column, lacking, len(headers), "empty")
        return list(union)


class _Lines:
    """The lines of a part as text, without a byte order mark; `number` is that of the last one given."""

    def __init__(self, part: Part) -> None:
        self.number = 0
        self._texts = self._read(part)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._texts)

    def _read(self, part: Part) -> Iterator[str]:
        with open(part.path, "rb") as file:
            for line in file:
                self.number += 1
                if self.number == 1:
                    line = line[check_beginning(line[:3]) :]
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    why = f"is not UTF-8 (byte {error.start + 1} of the line); all from here on is left out"
                    raise PartUnreadable(why, self.number) from None
                if "\0" in text:
                    raise PartUnreadable("holds NUL bytes; all from here on is left out", self.number)
                yield text
