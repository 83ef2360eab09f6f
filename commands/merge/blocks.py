"""The lines of a file in large blocks, read into buffers that are used again. Looks at no line.

Fresh memory for each block would cost more than reading it: the kernel clears every page of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from .hashing import Hasher
from .trouble import PartUnreadable

SIZE = 1 << 18
BUFFERS = 4
BOM = b"\xef\xbb\xbf"


def share(parts: int) -> int:
    """How many bytes to read at once of each of so many files that are open together."""
    return max(1 << 14, min(1 << 18, (1 << 25) // max(parts, 1)))


@dataclass(slots=True)
class Block:
    """Whole lines: `buffer[begin:end]`. Only the last one of a file may lack its newline. Good until the next few."""

    buffer: bytearray
    view: memoryview
    begin: int
    end: int
    ticket: int = 0  # of the sum that is still being made of it

    @property
    def lines(self) -> memoryview:
        return self.view[self.begin : self.end]

    def ended(self) -> bool:
        return self.buffer[self.end - 1] == 10


class Blocks:
    """A ring of buffers, for one file after the other. A buffer is filled again once `hasher` is done with it."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._ring = [self._fresh(SIZE) for _ in range(BUFFERS)]
        self._at = 0

    @staticmethod
    def _fresh(size: int) -> Block:
        buffer = bytearray(size)
        return Block(buffer, memoryview(buffer), 0, 0)

    def read(self, file: BinaryIO, digest: Any) -> Iterator[Block]:
        """The lines of a file that was opened without a buffer; all its bytes go into `digest`."""
        rest = b""
        first = True
        while True:
            block = self._ring[self._at % BUFFERS]
            self._hasher.wait(block.ticket)
            block, got = self._fill(block, rest, file)
            if not got:
                break
            self._ring[self._at % BUFFERS] = block
            self._at += 1
            block.ticket = self._hasher.update(digest, block.view[len(rest) : got])
            block.begin = 0
            if first:
                block.begin, first = check_beginning(bytes(block.view[: min(got, 3)])), False
            block.end = max(block.buffer.rfind(b"\n", 0, got) + 1, block.begin)
            rest = bytes(block.view[block.end : got])
            if block.end > block.begin:
                yield block
        if rest:
            last = self._fresh(len(rest))
            last.view[:], last.end = rest, len(rest)
            yield last

    def _fill(self, block: Block, rest: bytes, file: BinaryIO) -> tuple[Block, int]:
        """Its buffer with `rest` and what comes next, longer if need be; how much there is, 0 at the end."""
        if len(rest) >= len(block.buffer) // 2:
            block = self._fresh(len(rest) * 4)
        block.view[: len(rest)] = rest
        got: int = file.readinto(block.view[len(rest) :])  # type: ignore[attr-defined]
        return block, len(rest) + got if got else 0


def whole_lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The file in pieces of about `size` bytes that end with a line; only the last one may lack its newline.

    A byte order mark is dropped.
    """
    rest: list[bytes] = []
    first = True
    while data := file.read(size):
        if first:
            data, first = data[check_beginning(data[:3]) :], False
        end = data.rfind(b"\n") + 1
        if not end:
            rest.append(data)
            continue
        yield b"".join([*rest, data[:end]]) if rest else data[:end]
        rest = [data[end:]] if end < len(data) else []
    if rest and (last := b"".join(rest)):
        yield last


def check_beginning(data: bytes) -> int:
    """How many bytes to skip at the beginning of a text. PartUnreadable for another encoding than UTF-8."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise PartUnreadable("is UTF-16; only UTF-8 is merged (iconv -f UTF-16 -t UTF-8)", 1)
    return len(BOM) if data.startswith(BOM) else 0
