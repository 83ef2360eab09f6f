"""Plain text, a line a record: lines are kept byte for byte. Looks at no line's content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from .jsonl import whole_lines
from .output import Output
from .parts import Part
from .records import Record


class Lines:
    """The lines of .txt parts, each with its newline."""

    prefix = b""
    separator = b""
    suffix = b""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def copy(self, part: Part, out: Output) -> None:
        """Add one part to the output; its last line gets the newline that it lacks."""
        digest = hashlib.sha256()
        part.records = 0
        with open(part.path, "rb", buffering=0) as file:
            for block in out.blocks.read(file, digest):
                part.records += block.buffer.count(b"\n", block.begin, block.end)
                block.ticket = out.write_block(block.lines)
                if not block.ended():
                    out.write(b"\n")
                    part.records += 1
        out.hasher.settle()
        part.sha256 = digest.hexdigest()

    def records(self, part: Part) -> Iterator[Record]:
        line = 0
        with open(part.path, "rb", buffering=0) as file:
            for chunk in whole_lines(file, self.chunk):
                for text in chunk.removesuffix(b"\n").split(b"\n"):
                    line += 1
                    yield line, text + b"\n", None
