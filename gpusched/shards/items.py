"""The items of a sharded run: their number, their weights, and an items file for each shard. Decides no split."""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import math
import mmap
import os
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.natural_order import natural_key
from gpusched.common.text import clean

SIZE = "size"
_WILDCARD = re.compile(r"[*?\[]")
_KNOWN = "use lines, .jsonl, .csv, .tsv, .parquet, or a pattern of files"
_UNKNOWN = (".json", ".gz", ".xz", ".zst", ".bz2", ".zip", ".npy", ".npz", ".pt", ".safetensors", ".yaml", ".yml")


class Items(ABC):
    """Items in their order. `path` is that of their file, absolute; `digest` changes with the items."""

    path: str | None = None
    suffix = ".txt"  # of an items file
    count: int
    digest = ""

    @abstractmethod
    def weights(self, column: str) -> list[float]:
        """Return the weight of each item, from this column."""

    @abstractmethod
    def write(self, path: str, items: Sequence[int]) -> None:
        """Write an items file with these items, in this order, readable for this user only."""

    def release(self) -> None:  # noqa: B027
        """Free the memory that writing items files has taken: the jobs run for days."""


def open_items(name: str) -> Items:
    """Open the items that --items names. Raises GpuschedError for an unreadable file or an unknown format."""
    expanded = os.path.expanduser(name)
    path = os.path.abspath(expanded)
    if not os.path.exists(path) and _WILDCARD.search(name):
        return FileItems(os.path.normpath(os.path.join(glob.escape(os.getcwd()), expanded)))
    suffix = os.path.splitext(path)[1].lower()
    if not os.path.isfile(path):
        raise _error(path, "no regular file", "use a regular file, or a pattern of files in quotes: 'in/*.wav'")
    if suffix in _UNKNOWN:
        raise _error(path, f"items cannot be read from {suffix}", _KNOWN)
    try:
        if suffix == ".parquet":
            return ParquetItems(path)
        return TextItems(path, suffix)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from None


def _error(path: str, what: str, hint: str = "") -> GpuschedError:
    return GpuschedError(clean(what), where=f"--items {clean(path)}", hint=clean(hint))


def _no_column(path: str | None, column: str, names: Sequence[str]) -> GpuschedError:
    return _error(str(path), f"there is no column {column!r}", f"its columns: {', '.join(names)[:300]}")


def _mapped(path: str) -> mmap.mmap | bytes:
    """Return the bytes of a file, mapped into memory."""
    with open(path, "rb") as file:
        is_empty = os.fstat(file.fileno()).st_size == 0
        return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class NumberItems(Items):
    """Items that are only counted. An items file has their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def weights(self, column: str) -> list[float]:
        raise GpuschedError("items that are only counted have no weights", where="--weights", hint="use --items FILE")

    def write(self, path: str, items: Sequence[int]) -> None:
        write_atomically(path, b"".join(b"%d\n" % item for item in items), sync=True)


class FileItems(Items):
    """The files that a pattern matches, gpu_2 before gpu_10. An items file has their absolute paths."""

    def __init__(self, pattern: str) -> None:
        self.path = pattern
        files = [path for path in glob.iglob(pattern, recursive=True) if os.path.isfile(path)]
        if not files:
            raise _error(pattern, "no file matches this", "put the pattern in quotes; ** matches folders")
        self._files = sorted(files, key=natural_key)
        strange = next((path for path in self._files if "\n" in path), None)
        if strange is not None:
            raise _error(strange, "there is a newline in this name, and an items file has one name on each line")
        self.count = len(self._files)
        self.digest = hashlib.sha256("\n".join(self._files).encode("utf-8", "surrogateescape")).hexdigest()

    def weights(self, column: str) -> list[float]:
        if column != SIZE:
            raise _error(str(self.path), f"files have no column {column!r}", "use --weights size for their sizes")
        return [float(os.stat(path).st_size) for path in self._files]

    def write(self, path: str, items: Sequence[int]) -> None:
        text = "".join(f"{self._files[item]}\n" for item in items)
        write_atomically(path, os.fsencode(text), sync=True)


class TextItems(Items):
    """A file of lines, of JSON objects, or of CSV records below a header that every items file repeats.

    Empty lines are no items. The file is mapped, and only the positions of its records are in memory.
    """

    def __init__(self, path: str, suffix: str) -> None:
        self.path = path
        self.suffix = suffix if suffix in (".jsonl", ".csv", ".tsv") else ".txt"
        self._data = _mapped(path)
        if self._data[:65536].find(b"\0") >= 0:
            raise _error(path, "not a text file: it has NUL bytes", _KNOWN)
        self.digest = hashlib.sha256(self._data).hexdigest()
        self._begin = 3 if self._data[:3] == b"\xef\xbb\xbf" else 0  # a byte order mark is part of no item
        self._end = b"\r\n" if self._data[: self._data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
        self._header = b""
        self._delimiter = ","
        self._starts, self._ends = array("Q"), array("Q")
        records = self._records() if suffix in (".csv", ".tsv") else self._lines()
        for start, end in records:
            self._starts.append(start)
            self._ends.append(end)
        self.count = len(self._starts)

    def _lines(self) -> Iterator[tuple[int, int]]:
        at, data, size = self._begin, self._data, len(self._data)
        while at < size:
            end = data.find(b"\n", at) + 1 or size
            if data[at:end].strip():
                yield at, end
            at = end

    def _records(self) -> Iterator[tuple[int, int]]:
        """Return the positions of the records below the header; a quoted newline ends no record."""
        head = self._text(self._begin, self._data.find(b"\n") + 1 or len(self._data))
        self._delimiter = "\t" if self.suffix == ".tsv" else next((mark for mark in ",\t;" if mark in head), ",")
        at = read = self._begin
        size = len(self._data)

        def lines() -> Iterator[str]:
            nonlocal read
            while read < size:
                start, read = read, self._data.find(b"\n", read) + 1 or size
                yield self._data[start:read].decode("latin-1")  # a character for each byte

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
            raise _error(str(self.path), f"line {reader.line_num}: {error}") from None

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode("utf-8", "replace")

    def _whole(self, start: int, end: int) -> bytes:
        """Return a record with a newline at its end, which the last one may lack."""
        record = self._data[start:end]
        return record if record.endswith(b"\n") else record + self._end

    def weights(self, column: str) -> list[float]:
        positions = zip(self._starts, self._ends, strict=True)
        if self.suffix == ".jsonl":
            return [self._number(n, self._of_object(n, a, b, column), column) for n, (a, b) in enumerate(positions)]
        if self.suffix == ".txt":
            raise _error(str(self.path), "lines have no columns of weights", "use .csv, .jsonl, .parquet or files")
        names = [name.strip() for name in self._cells(self._header.decode("utf-8", "replace"))]
        if column not in names:
            raise _no_column(self.path, column, names)
        at = names.index(column)
        weights = []
        for n, (start, end) in enumerate(positions):
            cells = self._cells(self._text(start, end))
            weights.append(self._number(n, cells[at] if at < len(cells) else None, column))
        return weights

    def _cells(self, record: str) -> list[str]:
        return next(csv.reader([record], delimiter=self._delimiter), [])

    def _of_object(self, n: int, start: int, end: int, column: str) -> object:
        try:
            item = json.loads(self._data[start:end])
        except (ValueError, RecursionError):
            raise _error(str(self.path), f"item {n} is not JSON: {self._text(start, end)[:60].strip()}") from None
        return item.get(column) if isinstance(item, dict) else None

    def _number(self, n: int, value: object, column: str) -> float:
        return weight(value, f"{column} of item {n}", str(self.path))

    def write(self, path: str, items: Sequence[int]) -> None:
        parts = [self._header, *(self._whole(self._starts[item], self._ends[item]) for item in items)]
        write_atomically(path, b"".join(parts), sync=True)


class ParquetItems(Items):
    """The rows of a parquet file. Its data is only read for weights and for items files."""

    suffix = ".parquet"

    def __init__(self, path: str) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            hint = "pip install 'gpusched-lab[merge]', or use .csv or .jsonl"
            raise _error(path, "pyarrow, which reads parquet, is not installed", hint) from None
        self.path = path
        self.digest = hashlib.sha256(_mapped(path)).hexdigest()
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
            raise _error(str(self.path), f"not a readable parquet file: {str(error)[:200]}") from None

    def weights(self, column: str) -> list[float]:
        import pyarrow.parquet as parquet

        if column not in self._names:
            raise _no_column(self.path, column, self._names)
        with self._reading():
            values = parquet.ParquetFile(self.path).read(columns=[column]).column(column).to_pylist()
        return [weight(value, f"{column} of row {n}", str(self.path)) for n, value in enumerate(values)]

    def write(self, path: str, items: Sequence[int]) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        if self._table is None:
            with self._reading():
                self._table = parquet.read_table(self.path, memory_map=True)
        rows = self._table.take(pyarrow.array(items, pyarrow.int64()))
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(rows, sink)
        write_atomically(path, sink.getvalue().to_pybytes(), sync=True)

    def release(self) -> None:
        self._table = None


def weight(value: object, name: str, where: str) -> float:
    """Return a cell as a weight. Raises GpuschedError for anything but a number that is at least 0."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        text = "missing" if value is None else repr(value)[:60]
        raise _error(where, f"{name} is {text}, and a weight must be a number, at least 0")
    return number
