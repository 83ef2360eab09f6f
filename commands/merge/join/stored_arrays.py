"""Arrays that lie in files as rows of one size: joined by copying bytes. Knows no element type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..parts.model import MergePart, MergeRefused
from .dicts import Arrays

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array: bytes of a part's file, bytes in memory, or the rows of other arrays one after the other."""

    dtype: Any
    shape: tuple[int, ...]
    size_bytes: int
    part: MergePart | None = None
    begin: int = 0  # in the file
    data: bytes = b""
    pieces: Sequence[StoredArray] = ()
    places: Sequence[int] | None = None  # the order of the rows, where it is not that of the pieces

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes; all of them are in memory only where rows change their order."""
        if self.places:
            data, row = b"".join(piece.read() for piece in self.pieces), self.size_bytes // self.shape[0]
            yield from (data[place * row : (place + 1) * row] for place in self.places)
        elif self.part is None:
            yield self.data
            for piece in self.pieces:
                yield from piece.chunks()
        else:
            with open(self.part.path, "rb", buffering=0) as file:
                file.seek(self.begin)
                for left in range(self.size_bytes, 0, -CHUNK_BYTES):
                    chunk = file.read(min(CHUNK_BYTES, left))
                    if len(chunk) < min(CHUNK_BYTES, left):
                        raise MergeRefused("has become shorter while it was read", where=self.part.name)
                    yield chunk

    def read(self) -> bytes:
        return b"".join(self.chunks())


class StoredArrays(Arrays):
    """The operations on stored arrays, without sums."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, StoredArray)

    def dtype(self, value: Any) -> str:
        return str(value.dtype)

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        size, rows = sum(one.size_bytes for one in values), sum(one.shape[0] for one in values)
        if places and size % rows:
            raise MergeRefused(f"rows of {values[0].dtype} are no whole bytes: their order cannot be restored")
        return StoredArray(values[0].dtype, (rows, *values[0].shape[1:]), size, pieces=values, places=places)

    def stack(self, values: Sequence[Any]) -> Any:
        size = sum(one.size_bytes for one in values)
        return StoredArray(values[0].dtype, (len(values),), size, pieces=values)

    def equal(self, one: Any, other: Any) -> bool:
        return bool(one.read() == other.read())
