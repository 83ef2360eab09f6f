"""Records of text, joined. Memory grows with them only for --key (identities) and the order of items (places)."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, BinaryIO

from gpusched.common.text_input import encoding_problem, map_file

from ..parts.model import (
    SHOWN,
    MergePart,
    MergeRefused,
    MergeReport,
    MergeTask,
    PartUnreadable,
    count_of,
    reading,
    shown,
)
from ..write.output import MergeOutput

Record = tuple[int, bytes, bytes, int]  # line, text to write, identity of its key, number of records in the text
PlacedRecord = tuple[MergePart, Record]
Checked = Iterator[tuple[int, bytes, int]]  # line, text, number of records: a whole block, or one record
Placing = Callable[[MergeReport], Iterable[PlacedRecord]]

BLOCK_BYTES = 1 << 16
BOM = b"\xef\xbb\xbf"
LINE = re.compile(rb"[^\n]*\n|[^\n]+")  # with its newline, which nothing but \n is
NO_KEY = "has no field of the name that --key gives"


class RecordFormat:
    """A format whose parts are records of text. A subclass reads them."""

    prefix = separator = suffix = b""  # of the output

    def __init__(self, task: MergeTask) -> None:
        self.task, self.options, self.report = task, task.options, task.report

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        """Yield the records of a part. PartUnreadable where it cannot be read on."""
        raise NotImplementedError

    def write(self, out: MergeOutput) -> int | None:
        """Write the records of all parts."""
        with tempfile.TemporaryFile(dir=out.directory) as scratch:  # without a name
            placing: Placing = self._part_by_part if self.task.order is None else self._in_item_order(scratch)
            keys = KeyFilter(self.task, lambda: (record[2] for _, record in placing(MergeReport())))
            count = 0
            out.write(self.prefix)
            for part, (line, text, key, number) in placing(self.report):
                if self.options.key is None or keys.takes(key, part.name, f"line {line}"):
                    out.write(self.separator + text if count else text)
                    count += number
            keys.close()
            out.write(self.suffix)
        return count

    def _part_by_part(self, report: MergeReport) -> Iterator[PlacedRecord]:
        """Yield the records of each part up to where it cannot be read on, and count them."""
        for part in self.task.parts:
            part.records = 0
            if not part.size:
                report.note(f"{shown(part.name)} is empty: it is skipped")
            with reading(part, report):
                for record in self.records(part, report):
                    part.records += record[3]
                    yield part, record

    def _in_item_order(self, file: IO[bytes]) -> Placing:
        """Write all records into a file, from which they are taken in the order of the items."""
        starts, heads = array("q", [0]), []
        for part, (line, text, key, _) in self._part_by_part(self.report):
            file.write(text)
            starts.append(starts[-1] + len(text))
            if self.options.key is not None:
                heads.append((part, line, key))
        file.flush()
        places = None
        if self.task.counts_items:
            places = self.task.places("", self.task.parts, [part.records for part in self.task.parts])
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if starts[-1] else b""

        def placed(_: MergeReport) -> Iterator[PlacedRecord]:
            for place in range(len(starts) - 1) if places is None else places:
                part, line, key = heads[place] if heads else (self.task.parts[0], 0, b"")
                yield part, (line, data[starts[place] : starts[place + 1]], key, 1)

        return placed


class LineFormat(RecordFormat):
    """A format whose parts are lines. A subclass checks them."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Checked:
        """Yield a block that is right as a whole, or else its records one by one."""
        raise NotImplementedError

    def identity(self, record: bytes) -> bytes | None:
        """Return the identity of the field that --key names; None where a record has no such field."""
        raise NotImplementedError

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        has_key, first = self.options.key is not None, 1
        for block in line_blocks(part.path):
            for at, text, count in self.check(part, first, block, report):
                if not has_key and self.task.order is None:
                    yield at, text, b"", count
                    continue
                for line, record in enumerate(LINE.findall(text), at):
                    key = self.identity(record) if has_key else b""
                    if key is None:
                        report.leave_out(part.name, line, NO_KEY)
                    else:
                        yield line, record, key, 1
            first += block.count(b"\n")


class KeyFilter:
    """Decides for one record after the other if it stays; each key stays once, at its own place."""

    def __init__(self, task: MergeTask, keys: Callable[[], Iterable[bytes]]) -> None:
        """`keys` gives all keys in the same order; it is called only where the last record of a key stays."""
        self._task, self._at, self._dropped = task, -1, 0
        keeps_last = task.options.key is not None and task.options.on_duplicate == "keep-last"
        self._kept = {_digest(key): at for at, key in enumerate(keys())} if keeps_last else {}  # key -> its place
        self._repeated: list[str] = []

    def takes(self, key: bytes, part: str, place: str) -> bool:
        """Return True if the next record, which has this key, stays."""
        self._at += 1
        is_taken = self._kept.setdefault(_digest(key), self._at) == self._at
        if not is_taken:
            self._dropped += 1
            if self._dropped <= SHOWN:
                text = shown(key.decode("utf-8", "replace"), 60)
                self._repeated.append(f"{shown(part)}, {place}: {text} is there before")
        return is_taken

    def close(self) -> None:
        """Report the dropped records. Raises MergeRefused if no option says which of them stays."""
        policy = self._task.options.on_duplicate
        text = f"{count_of(self._dropped, 'repeated record')} by {shown(self._task.options.key)}"
        if self._dropped and policy != "error":
            self._task.report.note(f"{text} dropped ({policy})")
        elif self._dropped:
            more = [f"and {self._dropped - SHOWN:,} more"] if self._dropped > SHOWN else []
            hint = "--on-duplicate keep-first or keep-last chooses"
            raise MergeRefused("\n  ".join([f"{text}:", *self._repeated, *more]), hint=hint)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def field_identity(value: Any) -> bytes:
    """Return bytes that are equal for equal values of JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")


def note_lacking(report: MergeReport, column: str, lacking: list[str], filled: str = "empty") -> None:
    """Report a column that these parts lack, and the value that is filled in."""
    if lacking:
        names = shown(lacking[0]) if len(lacking) == 1 else f"{len(lacking)} parts"
        report.note(f"column {shown(column)!r} is not in {names}: {filled} there")


def line_blocks(path: str) -> Iterator[bytes]:
    """Yield a file in pieces of about 64 KiB that end with a line, without a byte order mark.

    PartUnreadable for another encoding than UTF-8.
    """
    with open_text(path) as file:
        while block := file.read(BLOCK_BYTES):
            yield block if block.endswith(b"\n") else block + file.readline()


def open_text(path: str) -> BinaryIO:
    """Open a part behind its byte order mark. PartUnreadable for another encoding than UTF-8."""
    data = map_file(path)
    if problem := encoding_problem(data):
        raise PartUnreadable(f"is {problem}", 1)
    file = open(path, "rb")  # noqa: SIM115  # the caller closes it
    file.seek(len(BOM) if data[:3] == BOM else 0)
    return file
