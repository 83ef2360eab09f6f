"""Formats whose records are lines, read in large blocks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from ..parts.model import MergePart, reading
from ..parts.report import MergeReport, PartUnreadable
from ..write.output import MergeOutput
from .records import NO_KEY, Placing, Record, RecordFormat

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
LINE = re.compile(rb"[^\n]*\n|[^\n]+")  # with its newline, which nothing but \n is

Checked = Iterator[tuple[int, bytes, int]]  # line, text, number of records: a whole block, or one record


class LineFormat(RecordFormat):
    """A format whose parts are lines. A subclass checks them."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Checked:
        """Yield a block that is right as a whole, or else its records one by one."""
        raise NotImplementedError

    def identity(self, record: bytes) -> bytes | None:
        """Return the identity of the field that --key names; None where a record has no such field."""
        return b""

    def _write_all(self, placing: Placing | None, out: MergeOutput) -> int:
        if placing is not None or self.options.key is not None:
            return super()._write_all(placing, out)
        for part in self.parts:  # whole blocks at once
            digest, part.records = hashlib.sha256(), 0
            with reading(part, self.report):
                for _, text, count in self._checked(part, BLOCK_BYTES, self.report, digest):
                    out.write(text)
                    part.records += count
                part.sha256 = digest.hexdigest()
        return sum(part.records or 0 for part in self.parts)

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        for first, block, _ in self._checked(part, self.block_bytes, report):
            for line, text in enumerate(LINE.findall(block), first):
                key = self.identity(text) if self.options.key is not None else b""
                if key is None:
                    report.leave_out(part.name, line, NO_KEY)
                else:
                    yield line, text, key

    def _checked(self, part: MergePart, size: int, report: MergeReport, digest: Any = None) -> Checked:
        line = 1
        for block in line_blocks(part.path, size, digest):
            yield from self.check(part, line, block, report)
            line += block.count(b"\n")


def line_blocks(path: str, size: int, digest: Any = None) -> Iterator[bytes]:
    """Yield a file in pieces of about `size` bytes that end with a line; only the last one may lack its newline.

    A byte order mark is dropped. All bytes of the file go into `digest`. PartUnreadable for another encoding.
    """
    rest: list[bytes] = []
    is_first = True
    with open(path, "rb", buffering=0) as file:
        while data := file.read(size):
            if digest is not None:
                digest.update(data)
            if is_first:
                data, is_first = data[bom_bytes(data[:3]) :], False
            end = data.rfind(b"\n") + 1
            if end:
                yield b"".join([*rest, data[:end]])
                rest.clear()
            rest.append(data[end:])
    if last := b"".join(rest):
        yield last


def bom_bytes(data: bytes) -> int:
    """Return how many bytes a byte order mark takes at the start of a text. PartUnreadable for another encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise PartUnreadable("is UTF-16; only UTF-8 is merged (iconv -f UTF-16 -t UTF-8)", 1)
    return len(BOM) if data.startswith(BOM) else 0
