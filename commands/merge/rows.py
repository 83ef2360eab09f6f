"""Rows of one size in files: copied one part after the other, or dealt back into the items' order. Knows no dtype."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

from .output import Output
from .parts import ItemOrder, Part
from .trouble import Refused

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of `row_bytes` each, from `offset` of a file on; or in memory."""

    part: Part
    offset: int
    count: int
    row_bytes: int
    memory: bytes | None = None

    def open(self) -> BinaryIO:
        file: BinaryIO
        if self.memory is None:
            file = io.BufferedReader(io.FileIO(self.part.path))
        else:
            file = io.BytesIO(self.memory)
        file.seek(self.offset)
        return file


def write_rows(rows: Sequence[Rows], out: Output, order: ItemOrder | None) -> None:
    """All rows. With an order, each part has to have as many rows as its shard has items."""
    if order is None or not rows or not rows[0].row_bytes:
        for one in rows:
            _copy(one, out)
        return
    shards = [one.part.shard for one in rows if one.part.shard is not None]
    size = rows[0].row_bytes
    with ExitStack() as stack:
        files = [stack.enter_context(one.open()) for one in rows]
        if order.shuffle_seed is None:
            for k in order.sequence(shards):
                out.write(_read(files[k], size, rows[k]))
            return
        firsts, first = [], 0
        for one in rows:
            firsts.append(first)
            first += one.count
        owner = [k for k, one in enumerate(rows) for _ in range(one.count)] if len(rows) > 1 else None
        for place in order.places(shards):
            k = owner[place] if owner else 0
            files[k].seek(rows[k].offset + (place - firsts[k]) * size)
            out.write(_read(files[k], size, rows[k]))


def _copy(rows: Rows, out: Output) -> None:
    left = rows.count * rows.row_bytes
    with rows.open() as file:
        while left:
            data = _read(file, min(CHUNK, left), rows)
            out.write(data)
            left -= len(data)


def _read(file: BinaryIO, size: int, rows: Rows) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise Refused("has become shorter while it was read", where=rows.part.name)
    return data
