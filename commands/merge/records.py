"""Records of text, one by one: put part after part, or back into the order of the items; repeated ones found.

Knows no format. Memory does not grow with the records, but for --key (their identities) and a shuffled plan (80 bytes
a record).
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from .output import Output
from .parts import ItemOrder, Options, Part
from .trouble import Refused, Told, clean, number, reading

Record = tuple[int, bytes, bytes | None]  # line, the text to write, identity of its key
Placed = tuple[Part, Record]

SHOWN_DUPLICATES = 5
NO_KEY = "has no field of the name that --key gives"


class Source(Protocol):
    """A format whose parts are records of text."""

    @property
    def prefix(self) -> bytes: ...
    @property
    def separator(self) -> bytes: ...
    @property
    def suffix(self) -> bytes: ...

    def records(self, part: Part) -> Iterator[Record]:
        """The records of a part. PartUnreadable where it cannot be read on."""
        ...


def merge_records(
    source: Source,
    parts: Sequence[Part],
    out: Output,
    order: ItemOrder | None,
    options: Options,
    told: Told,
    copy: Callable[[Part], None] | None = None,
) -> int:
    """Write the records of all parts; how many were written. `copy` adds a whole part faster than by records."""
    out.write(source.prefix)
    mark, before = out.mark(), told.copy()
    written = None
    if order is not None and all(part.shard is not None for part in parts):
        written = _in_item_order(source, parts, out, order, options, told)
        if written is None:
            out.back(mark)
            told.become(before)
    if written is None:
        if copy is not None and options.key is None:
            for part in parts:
                with reading(part, told):
                    copy(part)
            written = sum(part.records or 0 for part in parts)
        else:
            written = _write(source, out, lambda: _one_after_the_other(source, parts, told), options, told)
        if order is not None:
            told.not_in_order()
    out.write(source.suffix)
    return written


def check_key(key: str, columns: Sequence[str]) -> None:
    """Refused where no part has the column that --key names."""
    if key not in columns:
        raise Refused(
            f"there is no column {clean(key)!r} to find repeated rows by",
            hint=f"the columns are {clean(', '.join(columns))}",
        )


def tell_lacking(told: Told, column: str, lacking: Sequence[Part], parts: int, filled: str) -> None:
    """Say which of the parts lack a column, and what it is `filled` with there."""
    which = clean(lacking[0].name) if len(lacking) == 1 else f"{len(lacking)} of {parts} parts"
    told.note(f"column {clean(column)!r} is not in {which}: {filled} there")


def field_identity(value: Any) -> bytes:
    """Equal for equal JSON values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _counted(source: Source, part: Part, told: Told) -> Iterator[Record]:
    """The records of a part up to where it cannot be read on; they are counted."""
    part.records = 0
    with reading(part, told):
        for record in source.records(part):
            part.records += 1
            yield record


def _one_after_the_other(source: Source, parts: Sequence[Part], told: Told) -> Iterator[Placed]:
    for part in parts:
        for record in _counted(source, part, told):
            yield part, record


# ---- the items' order ------------------------------------------------------------------------------


class _DoesNotFit(Exception):
    """A part has fewer or more records than its shard has items."""


def _in_item_order(
    source: Source, parts: Sequence[Part], out: Output, order: ItemOrder, options: Options, told: Told
) -> int | None:
    """None where the counts do not allow it; what was written and told by then is to be dropped."""
    try:
        if order.shuffle_seed is None:
            return _write(source, out, lambda: _round_robin(source, parts, order, told), options, told)
        with _Spool(source, parts, out, order, told) as spool:
            return _write(source, out, spool.ordered, options, told)
    except _DoesNotFit:
        return None


def _round_robin(source: Source, parts: Sequence[Part], order: ItemOrder, told: Told) -> Iterator[Placed]:
    streams = [_counted(source, part, told) for part in parts]
    for k in order.sequence([_shard(part) for part in parts]):
        record = next(streams[k], None)
        if record is None:
            raise _DoesNotFit
        yield parts[k], record
    if any(next(stream, None) is not None for stream in streams):
        raise _DoesNotFit


def _shard(part: Part) -> int:
    assert part.shard is not None
    return part.shard


class _Spool:
    """All records in a file without a name, and where each begins: they can be taken out in any order."""

    def __init__(self, source: Source, parts: Sequence[Part], out: Output, order: ItemOrder, told: Told) -> None:
        self._file = out.scratch()
        try:
            self._starts = array("q", [0])
            self._lines = array("q")
            self._keys: list[bytes | None] = []
            self._part_of = array("i")
            self._parts = parts
            at = 0
            for k, part in enumerate(parts):
                for line, text, key in _counted(source, part, told):
                    self._file.write(text)
                    at += len(text)
                    self._starts.append(at)
                    self._lines.append(line)
                    self._part_of.append(k)
                    if key is not None:
                        self._keys.append(key)
            if not order.fits(parts, [part.records for part in parts]):
                raise _DoesNotFit
            self._places = order.places([_shard(part) for part in parts])
            self._file.flush()  # what follows reads without its buffer, which each record would fill anew
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def ordered(self) -> Iterator[Placed]:
        for place in self._places:
            text = self._text(self._starts[place], self._starts[place + 1])
            key = self._keys[place] if self._keys else None
            yield self._parts[self._part_of[place]], (self._lines[place], text, key)

    def _text(self, begin: int, end: int) -> bytes:
        text = os.pread(self._file.fileno(), end - begin, begin)
        while len(text) < end - begin:  # one read gives 2 GiB at most
            text += os.pread(self._file.fileno(), end - begin - len(text), begin + len(text))
        return text


# ---- writing, and repeated records -----------------------------------------------------------------


def _write(source: Source, out: Output, placed: Callable[[], Iterator[Placed]], options: Options, told: Told) -> int:
    chosen = placed() if options.key is None else _without_duplicates(placed, options, told)
    separator, count = source.separator, 0
    for _, (_, text, _) in chosen:
        if separator and count:
            out.write(separator)
        out.write(text)
        count += 1
    return count


def _without_duplicates(placed: Callable[[], Iterator[Placed]], options: Options, told: Told) -> Iterator[Placed]:
    """Each key once, at its own place; or a refusal that names the repeated ones."""
    known = KeyFilter(options, told, lambda: (record[2] or b"" for _, record in placed()))
    for part, record in placed():
        if known.takes(record[2] or b"", f"{clean(part.name)}, line {record[0]}"):
            yield part, record
    known.close()


class KeyFilter:
    """Says of one record after the other whether it is the one that stays of those with its key.

    `keys` gives all keys in the same order; it is asked for only where the last one is to stay.
    """

    def __init__(self, options: Options, told: Told, keys: Callable[[], Iterator[bytes]]) -> None:
        self._field = clean(options.key)
        self._told = told
        self._policy = options.on_duplicate or "error"
        self._last: dict[bytes, int] = {}
        self._seen: set[bytes] = set()
        self._at = -1
        self._dropped = 0
        self._repeated: list[str] = []
        if self._policy == "keep-last":
            before = told.copy()
            self._last = {_digest(key): place for place, key in enumerate(keys())}
            told.become(before)

    def takes(self, key: bytes, where: str) -> bool:
        self._at += 1
        digest = _digest(key)
        if self._policy == "keep-last":
            taken = self._last[digest] == self._at
        else:
            taken = digest not in self._seen
            self._seen.add(digest)
        if not taken:
            self._dropped += 1
            if self._policy == "error" and len(self._repeated) < SHOWN_DUPLICATES:
                self._repeated.append(f"{where}: {clean(key.decode('utf-8', 'replace'), 60)} is there before")
        return taken

    def close(self) -> None:
        """Refused if there were repeated ones and nobody has said which stays."""
        if not self._dropped:
            return
        if self._policy == "error":
            more = self._dropped - len(self._repeated)
            lines = [*self._repeated, *([f"and {more:,} more"] if more else [])]
            raise Refused(
                f"{number(self._dropped, 'repeated record')} by {self._field}:\n  " + "\n  ".join(lines),
                hint="--on-duplicate keep-first or keep-last chooses",
            )
        self._told.note(f"{number(self._dropped, 'repeated record')} by {self._field} dropped ({self._policy})")


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
