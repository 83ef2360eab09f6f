"""Records of text, one by one: part after part, or in the order of the items; repeated ones found. Knows no format.

Memory does not grow with the records, but for --key (their identities) and a shuffled plan (their places).
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..parts.model import Joined, MergePart, MergeTask, reading
from ..parts.report import SHOWN, MergeRefused, MergeReport, count_of, shown
from ..write.output import MergeOutput

Record = tuple[int, bytes, bytes]  # line, text to write, identity of its key
PlacedRecord = tuple[MergePart, Record]
Placing = Callable[[MergeReport], Iterator[PlacedRecord]]

NO_KEY = "has no field of the name that --key gives"
_BLOCKS_BYTES = 1 << 25  # of all files that are open together


class RecordFormat:
    """A format whose parts are records of text. A subclass reads them."""

    prefix = b""
    separator = b""
    suffix = b""

    def __init__(self, task: MergeTask) -> None:
        self.task = task
        self.parts, self.options, self.report = task.parts, task.options, task.report
        self.block_bytes = max(1 << 14, min(1 << 18, _BLOCKS_BYTES // len(task.parts)))

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        """Yield the records of a part. PartUnreadable where it cannot be read on."""
        raise NotImplementedError

    def write(self, out: MergeOutput) -> Joined:
        """Write the records of all parts."""
        for part in self.parts:
            if not part.size:
                self.report.note(f"{shown(part.name)} is empty: it is skipped")
        out.write(self.prefix)
        count = self._write_all(self._placing(out), out)
        out.write(self.suffix)
        return Joined(count)

    def _write_all(self, placing: Placing | None, out: MergeOutput) -> int:
        count = 0
        for _, (_, text, _) in self._chosen(placing or self._one_after_the_other):
            out.write(self.separator + text if count else text)
            count += 1
        return count

    def _placing(self, out: MergeOutput) -> Placing | None:
        """Return a function that yields the records in the items' order; None if the parts are not to be mixed."""
        if (order := self.task.order) is None:
            return None
        survey = MergeReport()
        if not order.fits(self.parts, [sum(1 for _ in self._counted(part, survey)) for part in self.parts]):
            self.report.note_order()
            return None
        return self._in_turn if order.plan.shuffle_seed is None else self._spooled(out, order.places(self.parts))

    def _counted(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        """Yield the records of a part up to where it cannot be read on, and count them."""
        part.records = 0
        with reading(part, report):
            for record in self.records(part, report):
                part.records += 1
                yield record

    def _one_after_the_other(self, report: MergeReport) -> Iterator[PlacedRecord]:
        return ((part, record) for part in self.parts for record in self._counted(part, report))

    def _in_turn(self, report: MergeReport) -> Iterator[PlacedRecord]:
        """Yield one record of each part in turn, as strided shards have them."""
        streams = [(part, self._counted(part, report)) for part in self.parts]
        while streams:
            for part, stream in list(streams):
                if (record := next(stream, None)) is None:
                    streams.remove((part, stream))
                else:
                    yield part, record

    def _spooled(self, out: MergeOutput, places: Sequence[int]) -> Placing:
        """Write all records into a file without a name, from which they can be taken in any order."""
        file, starts = out.scratch(), array("q", [0])
        heads: list[tuple[MergePart, int, bytes]] = []
        for part, (line, text, key) in self._one_after_the_other(self.report):
            file.write(text)
            starts.append(starts[-1] + len(text))
            heads.append((part, line, key))
        file.flush()  # each record is read from the file itself: a buffer would be filled anew for each

        def ordered(_: MergeReport) -> Iterator[PlacedRecord]:
            for place in places:
                text, (begin, end) = b"", starts[place : place + 2]
                while len(text) < end - begin:  # one read gives 2 GiB at most
                    text += os.pread(file.fileno(), end - begin - len(text), begin + len(text))
                part, line, key = heads[place]
                yield part, (line, text, key)

        return ordered

    def _chosen(self, placing: Placing) -> Iterator[PlacedRecord]:
        """Yield the records without those that repeat a key."""
        if self.options.key is None:
            yield from placing(self.report)
            return
        keys = KeyFilter(self.task, lambda: (key for _, (_, _, key) in placing(MergeReport())))
        for part, record in placing(self.report):
            if keys.takes(record[2], part.name, f"line {record[0]}"):
                yield part, record
        keys.close()


class KeyFilter:
    """Decides for one record after the other if it stays; each key stays once, at its own place."""

    def __init__(self, task: MergeTask, keys: Callable[[], Iterator[bytes]]) -> None:
        """`keys` gives all keys in the same order; it is called only where the last record of a key stays."""
        self._task = task
        self._policy = task.options.on_duplicate
        self._last = {_digest(key): at for at, key in enumerate(keys())} if self._policy == "keep-last" else {}
        self._seen: set[bytes] = set()
        self._at = -1
        self._dropped = 0
        self._repeated: list[str] = []

    def takes(self, key: bytes, part: str, place: str) -> bool:
        """Return True if the next record, which has this key, stays."""
        self._at += 1
        digest = _digest(key)
        is_taken = self._last[digest] == self._at if self._last else digest not in self._seen
        if not self._last:
            self._seen.add(digest)
        if not is_taken:
            self._dropped += 1
            if self._dropped <= SHOWN:
                text = shown(key.decode("utf-8", "replace"), 60)
                self._repeated.append(f"{shown(part)}, {place}: {text} is there before")
        return is_taken

    def close(self) -> None:
        """Report the dropped records. Raises MergeRefused if no option says which of them stays."""
        text = f"{count_of(self._dropped, 'repeated record')} by {shown(self._task.options.key)}"
        if self._dropped and self._policy != "error":
            self._task.report.note(f"{text} dropped ({self._policy})")
        elif self._dropped:
            more = [f"and {self._dropped - SHOWN:,} more"] if self._dropped > SHOWN else []
            hint = "--on-duplicate keep-first or keep-last chooses"
            raise MergeRefused("\n  ".join([f"{text}:", *self._repeated, *more]), hint=hint)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def field_identity(value: Any) -> bytes:
    """Return bytes that are equal for equal values."""
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        text = repr(value)
    return text.encode("utf-8", "surrogatepass")


def check_key(key: str | None, columns: Sequence[str]) -> None:
    """Refuse where no part has the column that --key names."""
    if key is not None and key not in columns:
        hint = f"the columns are {shown(', '.join(columns))}"
        raise MergeRefused(f"there is no column {shown(key)!r} to find repeated rows by", hint=hint)


def note_lacking(
    task: MergeTask, column: str, having: Sequence[MergePart], parts: Sequence[MergePart], filled: str = "empty"
) -> bool:
    """Report a column that some parts lack, and the value that is filled in. Return True if there are such parts."""
    lacking = [part.name for part in parts if part not in having]
    names = shown(lacking[0]) if len(lacking) == 1 else f"{len(lacking)} of {len(parts)} parts"
    if lacking:
        task.report.note(f"column {shown(column)!r} is not in {names}: {filled} there")
    return bool(lacking)
