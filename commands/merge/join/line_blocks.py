"""Formats whose records are lines, read in large blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..parts.model import MergePart
from ..parts.report import MergeReport, PartUnreadable
from .records import NO_KEY, Record, RecordFormat

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


def line_blocks(path: str) -> Iterator[bytes]:
    """Yield a file in pieces of about 1 MiB that end with a line, without a byte order mark.

    PartUnreadable for another encoding than UTF-8.
    """
    with open(path, "rb") as file:
        file.seek(bom_bytes(file.read(3)))
        while block := file.read(BLOCK_BYTES):
            yield block if block.endswith(b"\n") else block + file.readline()


def bom_bytes(data: bytes) -> int:
    """Return how many bytes a byte order mark takes at the start of a text. PartUnreadable for another encoding."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise PartUnreadable("is UTF-16; only UTF-8 is merged (iconv -f UTF-16 -t UTF-8)", 1)
    return len(BOM) if data.startswith(BOM) else 0
