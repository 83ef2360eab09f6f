"""The items that --items names: their number, their values, and files of some of them."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.libraries import install_command
from gpusched.common.text import clean, natural_key
from gpusched.common.text_input import TableRow, check_text, map_file, read_rows, split_lines

Take = Callable[[Sequence[int]], bytes]  # some items, in this order -> the content of an items file

_WILDCARD = re.compile(r"[*?\[]")
_KNOWN = "use lines, .jsonl, .csv, .tsv, .parquet, or a pattern of files"
_UNKNOWN = (".json", ".gz", ".xz", ".zst", ".bz2", ".zip", ".npy", ".npz", ".pt", ".safetensors", ".yaml", ".yml")


class Items(ABC):
    """Items in their order. `path` is that of their file, absolute."""

    path: str | None = None
    suffix = ".txt"  # of an items file
    count: int
    notes: Sequence[str] = ()  # about rows that are no items

    @property
    def digest(self) -> str:
        """A text that changes with the items."""
        return ""

    @abstractmethod
    def open(self) -> Take:
        """Return a function that makes the content of items files; what it holds in memory goes with it."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """Yield each item as JSON has it; bytes are JSON already. Raises GpuschedError for what is none."""


def open_items(name: str, is_output: Callable[[str], bool] = lambda path: False) -> Items:
    """Open the items that --items names, without files that the run itself writes; "-" is standard input.

    Raises GpuschedError for an unreadable file or an unknown format.
    """
    if name == "-":
        return TextItems(name, ".txt")
    expanded = os.path.expanduser(name)
    path = os.path.abspath(expanded)
    if not os.path.exists(path) and _WILDCARD.search(name):
        return FileItems(os.path.normpath(os.path.join(glob.escape(os.getcwd()), expanded)), is_output)
    suffix = os.path.splitext(path)[1].lower()
    if not os.path.isfile(path):
        what = "no regular file" if os.path.exists(path) else "there is no such file"
        raise _error(path, what, "use a regular file, or a pattern of files in quotes: 'in/*.wav'")
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


class NumberItems(Items):
    """Items that are only counted. An items file has their numbers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def open(self) -> Take:
        return lambda items: b"".join(b"%d\n" % item for item in items)

    def values(self) -> Iterator[int]:
        return iter(range(self.count))


class FileItems(Items):
    """The files that a pattern matches, gpu_2 before gpu_10. An items file has their absolute paths."""

    def __init__(self, pattern: str, is_output: Callable[[str], bool] = lambda path: False) -> None:
        self.path = pattern
        paths = glob.iglob(pattern, recursive=True)
        files = [path for path in paths if os.path.isfile(path) and not is_output(path)]
        if not files:
            raise _error(pattern, "no file matches this", "put the pattern in quotes; ** matches folders")
        self._files = sorted(files, key=natural_key)
        strange = next((path for path in self._files if "\n" in path), None)
        if strange is not None:
            raise _error(strange, "there is a newline in this name, and an items file has one name on each line")
        self.count = len(self._files)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self._files).encode("utf-8", "surrogateescape")).hexdigest()

    def open(self) -> Take:
        return lambda items: os.fsencode("".join(f"{self._files[item]}\n" for item in items))

    def values(self) -> Iterator[str]:
        return iter(self._files)


class TextItems(Items):
    """A file of lines, of JSON objects, or of CSV records below a header that every items file repeats.

    Empty lines are no items. The file is mapped, and only the positions of its records are in memory.
    """

    def __init__(self, path: str, suffix: str) -> None:
        self.path: str = path
        self.suffix = suffix if suffix in (".jsonl", ".csv", ".tsv") else ".txt"
        self._data = sys.stdin.buffer.read() if path == "-" else map_file(path)
        self.notes: list[str] = []
        try:
            self._begin = check_text(self._data)  # a byte order mark is part of no item
            is_table = suffix in (".csv", ".tsv")
            positions = array("Q", (at for span in (self._rows() if is_table else self._lines()) for at in span))
        except ValueError as error:
            raise _error(path, str(error), _KNOWN if "NUL" in str(error) else "") from None
        self._end = b"\r\n" if self._data[: self._data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
        self._starts, self._ends = positions[::2], positions[1::2]
        has_header = is_table and len(self._starts) > 0
        self._header = self._record(0) if has_header else b""
        self._first = int(has_header)  # the record that is item 0
        self.count = len(self._starts) - self._first

    @property
    def digest(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    def _lines(self) -> Iterator[tuple[int, int]]:
        return (line.span() for line in split_lines(self._data, self._begin) if line[0].strip())

    def _rows(self) -> Iterator[tuple[int, int]]:
        """Yield the positions of the header and of the records; a quoted newline ends no record."""
        rows = self._table("latin-1", self.notes)  # a character for each byte
        return ((self._begin + row.start, self._begin + row.end) for row in rows)

    def _table(self, encoding: str, notes: list[str]) -> Iterator[TableRow]:
        lines = (line[0].decode(encoding, "surrogateescape") for line in split_lines(self._data, self._begin))
        rows = read_rows(lines, notes, "\t" if self.suffix == ".tsv" else "")
        return (row for row in rows if len(row.cells) > 1 or row.cells[0].strip())  # a blank line is no item

    def _record(self, number: int) -> bytes:
        """Return a record with a newline at its end, which the last one may lack."""
        record = self._data[self._starts[number] : self._ends[number]]
        return record if record.endswith(b"\n") else record + self._end

    def open(self) -> Take:
        return lambda items: b"".join([self._header, *(self._record(self._first + item) for item in items)])

    def values(self) -> Iterator[Any]:
        import msgspec

        if self._header:
            rows = self._table("utf-8", [])
            names = next(rows).cells
            yield from (dict(zip(names, row.cells, strict=False)) for row in rows)
            return
        for number, start in enumerate(self._starts):
            line = self._record(number)
            if self.suffix == ".jsonl":
                try:
                    msgspec.json.decode(line)
                except msgspec.DecodeError as error:
                    at = self._data[:start].count(b"\n") + 1
                    raise _error(self.path, f"line {at} is no JSON: {error}") from None
                yield line.strip()
            else:
                yield line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")


class ParquetItems(Items):
    """The rows of a parquet file. Its data is only read for items files."""

    suffix = ".parquet"

    def __init__(self, path: str) -> None:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            hint = f"to install it: {install_command(['pyarrow'])}; or use .csv or .jsonl"
            raise _error(path, "pyarrow, which reads parquet, is not installed here", hint) from None
        self.path: str = path
        with _reading(path):
            self.count = int(parquet.read_metadata(path).num_rows)

    @property
    def digest(self) -> str:
        return hashlib.sha256(map_file(self.path)).hexdigest()

    def open(self) -> Take:
        import pyarrow
        import pyarrow.parquet as parquet

        with _reading(self.path):
            table = parquet.read_table(self.path, memory_map=True)

        def take(items: Sequence[int]) -> bytes:
            sink = pyarrow.BufferOutputStream()
            parquet.write_table(table.take(pyarrow.array(items, pyarrow.int64())), sink)
            return bytes(sink.getvalue().to_pybytes())

        return take

    def values(self) -> Iterator[dict[str, Any]]:
        import pyarrow.parquet as parquet

        with _reading(self.path), parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(1000):
                yield from batch.to_pylist()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's own errors are of these
        raise _error(path, f"not a readable parquet file: {str(error)[:200]}") from None
