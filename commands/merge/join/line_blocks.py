"""Formats whose records are lines, read in large blocks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

from ..parts.model import MergePart
from ..parts.report import MergeReport, PartUnreadable
from ..write.output import MergeOutput
from .records import NO_KEY, Record, RecordFormat

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
LINE = re.compile(rb"[^\n]*\n|[^\n]+")  # with its newline, which nothing but \n is


class LineFormat(RecordFormat):
    """A format whose parts are lines. A subclass checks them."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Iterator[tuple[int, bytes, int]]:
        """Yield (line, text, number of records) of a block: all of it at once, or its records one by one."""
        raise NotImplementedError

    def identity(self, record: bytes) -> bytes | None:
        """Return the identity of the field that --key names; None where a record has no such field."""
        return b""

    def copy(self, part: MergePart, out: MergeOutput) -> None:
        digest = hashlib.sha256()
        part.records = 0
        for _, text, count in self._checked(part, BLOCK_BYTES, self.report, digest):
            out.write(text)
            part.records += count
        part.sha256 = digest.hexdigest()

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        for first, block, _ in self._checked(part, self.block_bytes, report):
            for line, text in enumerate(LINE.findall(block), first):
                key = self.identity(text) if self.options.key is not None else b""
                if key is None:
                    report.leave_out(part.name, line, NO_KEY)
                else:
                    yield line, text, key

    def _checked(
        self, part: MergePart, size: int, report: MergeReport, digest: Any = None
    ) -> Iterator[tuple[int, bytes, int]]:
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
                yield b"".join([*rest, data[:end]]) if rest else data[:end]
                rest.clear()
            rest.append(data[end:])
    if last := b"".join(rest):
        yield last


def bom_bytes(data: bytes) -> int:
    """Return how many bytes a byte order mark takes at the start of a text. PartUnreadable for another encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise PartUnreadable("is UTF-16; only UTF-8 is merged (iconv -f UTF-16 -t UTF-8)", 1)
    return len(BOM) if data.startswith(BOM) else 0
