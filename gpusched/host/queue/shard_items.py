"""The items of a sharded run: a file of them or a pattern of files -> how many, their weights, an items file a shard.

Decides no split.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import math
import mmap
import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from gpusched.common.errors import GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.natural_order import natural_key
from gpusched.common.text import clean

SIZE = "size"
_WILD = re.compile(r"[*?\[]")
_OTHERS = (".json", ".gz", ".xz", ".zst", ".bz2", ".zip", ".npy", ".npz", ".pt", ".safetensors", ".yaml", ".yml")


class Items(Protocol):
    """Items in the order that they are given in. `path` is absolute; `digest` is another one for other items."""

    @property
    def path(self) -> str | None: ...
    @property
    def suffix(self) -> str:
        """Of an items file."""

    @property
    def count(self) -> int: ...
    @property
    def digest(self) -> str: ...
    def weights(self, column: str) -> list[float]: ...
    def write(self, path: str, items: Sequence[int]) -> None:
        """An items file of these, in this order, for this user alone."""

    def release(self) -> None:
        """Let go of what was read to write items files: the jobs run for days."""


def open_items(given: str) -> Items:
    """What --items names. Raises GpuschedError for what cannot be read, or is of no format that is known."""
    words = os.path.expanduser(given)
    path = os.path.abspath(words)
    if not os.path.exists(path) and _WILD.search(given):
        return FileItems(os.path.normpath(os.path.join(glob.escape(os.getcwd()), words)))
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        raise _no(path, "is a directory", f"its files: --items '{given.rstrip('/')}/*'")
    if os.path.exists(path) and not os.path.isfile(path):
        raise _no(path, "is a pipe or a device, and the items are read at every start", "write them into a file first")
    if suffix in _OTHERS:
        raise _no(path, f"items are not read from {suffix}", "lines, .jsonl, .csv, .tsv, .parquet, or a glob of files")
    try:
        if suffix == ".parquet":
            return ParquetItems(path)
        return TextItems(path, suffix)
    except OSError as error:
        raise _no(path, f"cannot be read: {error.strerror or error}", "a file, or a glob in quotes") from None


def _no(path: str, what: str, hint: str = "") -> GpuschedError:
    return GpuschedError(clean(what), where=f"--items {clean(path)}", hint=clean(hint))


class _Light:
    def release(self) -> None:
        """Nothing: names and places are small, and the pages of a mapped file are the kernel's to take back."""


class NumberItems(_Light):
    """Items that are only counted: an items file has their numbers."""

    path: str | None = None
    suffix = ".txt"
    digest = ""

    def __init__(self, count: int) -> None:
        self.count = count

    def weights(self, column: str) -> list[float]:
        raise GpuschedError("items that are only counted have no weights", where="--weights", hint="--items FILE")

    def write(self, path: str, items: Sequence[int]) -> None:
        write_atomically(path, b"".join(b"%d\n" % item for item in items), sync=True)


class FileItems(_Light):
    """The files that a pattern matches, gpu_2 before gpu_10. An items file has their paths, absolute."""

    suffix = ".txt"

    def __init__(self, pattern: str) -> None:
        self.path: str | None = pattern
        found = [path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path)]
        if not found:
            raise _no(pattern, "no file matches this", "the pattern goes in quotes; ** goes into folders")
        self._files = sorted(found, key=natural_key)
        strange = next((path for path in self._files if "\n" in path), None)
        if strange is not None:
            raise _no(strange, "there is a newline in this name, and an items file has one name a line")
        self.count = len(self._files)
        self.digest = hashlib.sha256("\n".join(self._files).encode("utf-8", "surrogateescape")).hexdigest()

    def weights(self, column: str) -> list[float]:
        if column != SIZE:
            raise _no(str(self.path), f"files have no column {column!r}", "--weights size goes by their sizes")
        return [float(os.stat(path).st_size) for path in self._files]

    def write(self, path: str, items: Sequence[int]) -> None:
        text = "".join(f"{self._files[item]}\n" for item in items)
        write_atomically(path, os.fsencode(text), sync=True)


class TextItems(_Light):
    """A file of lines, of JSON objects, or of CSV records below a header, which every items file repeats.

    Empty lines are no items. The file is mapped, and only the places of its records are held.
    """

    def __init__(self, path: str, suffix: str) -> None:
        self.path: str | None = path
        self.suffix = suffix if suffix in (".jsonl", ".csv", ".tsv") else ".txt"
        with open(path, "rb") as file:
            self._data: mmap.mmap | bytes = b""
            if os.fstat(file.fileno()).st_size:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:65536].find(b"\0") >= 0:
            raise _no(
                path, "it is no text: it has NUL bytes", "lines, .jsonl, .csv, .tsv, .parquet, or a glob of files"
            )
        self.digest = hashlib.sha256(self._data).hexdigest()
        self._begin = 3 if self._data[:3] == b"\xef\xbb\xbf" else 0  # a byte order mark belongs to no item
        self._end = b"\r\n" if self._data[: self._data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
        self._header = b""
        self._delimiter = ","
        self._starts, self._ends = array("Q"), array("Q")
        records = self._records() if suffix in (".csv", ".tsv") else self._lines()
        for start, end in records:
            self._starts.append(start)
            self._ends.append(end)
        self.count = len(self._starts)

    def _lines(self, at: int | None = None) -> Iterator[tuple[int, int]]:
        at = self._begin if at is None else at
        data, size = self._data, len(self._data)
        while at < size:
            end = data.find(b"\n", at) + 1 or size
            if data[at:end].strip():
                yield at, end
            at = end

    def _records(self) -> Iterator[tuple[int, int]]:
        """Places of the records; a quoted newline ends none. The first one is the header."""
        head = self._text(self._begin, self._data.find(b"\n") + 1 or len(self._data))
        self._delimiter = "\t" if self.suffix == ".tsv" else next((mark for mark in ",\t;" if mark in head), ",")
        at = read = self._begin
        size = len(self._data)

        def lines() -> Iterator[str]:
            nonlocal read
            while read < size:
                start, read = read, self._data.find(b"\n", read) + 1 or size
                yield self._data[start:read].decode("latin-1")  # one character a byte

        csv.field_size_limit(1 << 30)  # a field may be a whole document
        reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
        try:
            for row in reader:
                if len(row) > 1 or any(cell.strip() for cell in row):
                    if self._header:
                        yield at, read
                    else:
                        self._header = self._whole(at, read)
                at = read
        except csv.Error as error:
            raise _no(str(self.path), f"line {reader.line_num}: {error}") from None

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "replace")

    def _whole(self, start: int, end: int) -> bytes:
        """A record with a newline behind it, which the last one may lack."""
        record = self._data[start:end]
        return record if record.endswith(b"\n") else record + self._end

    def weights(self, column: str) -> list[float]:
        spots = zip(self._starts, self._ends, strict=True)
        if self.suffix == ".jsonl":
            return [self._number(n, self._of_object(n, a, b, column), column) for n, (a, b) in enumerate(spots)]
        if self.suffix == ".txt":
            raise _no(str(self.path), "lines have no columns to weigh by", "take .csv, .jsonl, .parquet or files")
        names = [name.strip() for name in self._cells(self._header.decode("utf-8", "replace"))]
        if column not in names:
            raise _no(str(self.path), f"there is no column {column!r}", f"it has: {', '.join(names)[:300]}")
        at = names.index(column)
        found = []
        for n, (start, end) in enumerate(spots):
            cells = self._cells(self._text(start, end))
            found.append(self._number(n, cells[at] if at < len(cells) else None, column))
        return found

    def _cells(self, record: str) -> list[str]:
        return next(csv.reader([record], delimiter=self._delimiter), [])

    def _of_object(self, n: int, start: int, end: int, column: str) -> object:
        try:
            found = json.loads(self._data[start:end])
        except (ValueError, RecursionError):
            raise _no(str(self.path), f"item {n} is no JSON: {self._text(start, end)[:60].strip()}") from None
        return found.get(column) if isinstance(found, dict) else None

    def _number(self, n: int, value: object, column: str) -> float:
        return weight(value, f"{column} of item {n}", str(self.path))

    def write(self, path: str, items: Sequence[int]) -> None:
        parts = [self._header, *(self._whole(self._starts[item], self._ends[item]) for item in items)]
        write_atomically(path, b"".join(parts), sync=True)


class ParquetItems:
    """The rows of a parquet file. Of its data, only a weight's column is read before a shard's file is written."""

    suffix = ".parquet"

    def __init__(self, path: str) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            hint = "pip install 'gpusched-lab[merge]' brings it; a .csv or .jsonl needs nothing"
            raise _no(path, "pyarrow is not installed, which reads parquet", hint) from None
        self.path: str | None = path
        with open(path, "rb") as file:
            found = hashlib.sha256()
            while piece := file.read(1 << 20):
                found.update(piece)
        self.digest = found.hexdigest()
        self._table: Any = None
        with self._reading():
            file = parquet.ParquetFile(path)
            self.count = int(file.metadata.num_rows)
            self._names: list[str] = list(file.schema_arrow.names)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's own errors are of these
            raise _no(str(self.path), f"is no parquet file that can be read: {str(error)[:200]}") from None

    def weights(self, column: str) -> list[float]:
        import pyarrow.parquet as parquet

        if column not in self._names:
            raise _no(str(self.path), f"there is no column {column!r}", f"it has: {', '.join(self._names)[:300]}")
        with self._reading():
            values = parquet.ParquetFile(self.path).read(columns=[column]).column(column).to_pylist()
        return [weight(value, f"{column} of row {n}", str(self.path)) for n, value in enumerate(values)]

    def write(self, path: str, items: Sequence[int]) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        if self._table is None:
            with self._reading():
                self._table = parquet.read_table(self.path, memory_map=True)
        if isinstance(items, range) and items.step == 1:
            rows = self._table.slice(items.start, len(items))
        else:
            rows = self._table.take(pyarrow.array(items, pyarrow.int64()))
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(rows, sink)
        write_atomically(path, sink.getvalue().to_pybytes(), sync=True)

    def release(self) -> None:
        self._table = None


def weight(value: object, what: str, where: str) -> float:
    """A cell as a weight. Raises GpuschedError for what is no number, or below 0."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        shown = "missing" if value is None else repr(value)[:60]
        raise _no(where, f"{what} is {shown}, and a weight is a number, at least 0", "--weights names the column")
    return number
