"""Read the header of a safetensors file: the type, the shape and the byte range of each tensor. Reads no weights.

A file is eight bytes with the length of the header (little-endian), the header as a JSON object, and the data
(https://huggingface.co/docs/safetensors, "Format"). Everything in it is checked against the size of the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from gpusched.common.text import one_line

LARGEST_HEADER_BYTES = 100_000_000  # the limit of the format

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}

_MOST_DIMENSIONS = 64
_LFS_POINTER = b"version https://git-lfs"


class HeaderError(ValueError):
    """A file that is no sound safetensors file. The text continues a sentence that begins with the file's name."""


class TensorEntry(NamedTuple):
    """One tensor of a file. `dtype` is a key of DTYPE_BITS; `begin` and `end` are byte offsets in the whole file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The tensors of a file by name, in the order of their data, and its texts (`__metadata__`)."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


def read_header(path: str | os.PathLike[str]) -> SafetensorsHeader:
    """Read the header of the file at `path`. Raises HeaderError for its content, OSError where it cannot be read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return read_header_of(fd)
    finally:
        os.close(fd)


def read_header_of(fd: int) -> SafetensorsHeader:
    """Read the header of an open file; its position does not change. Raises as `read_header`."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise HeaderError("is no regular file")
    length = _header_length(os.pread(fd, 64, 0), status.st_size)
    try:
        fields = json.loads(os.pread(fd, length, 8))
    except (ValueError, RecursionError):
        raise HeaderError("is damaged: its header is not JSON") from None
    if not isinstance(fields, dict):
        raise HeaderError("is damaged: its header is not a JSON object")
    texts = fields.pop("__metadata__", None)
    if texts is not None and not isinstance(texts, dict):
        raise HeaderError("is damaged: its metadata is not a JSON object")
    tensors = [_entry(name, field, 8 + length, status.st_size) for name, field in fields.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    for before, after in pairwise(tensors):
        if after.begin < before.end:
            raise HeaderError(f"is damaged: the tensor {one_line(after.name)} overlaps another tensor")
    metadata = {key: str(text) for key, text in (texts or {}).items()}
    return SafetensorsHeader({tensor.name: tensor for tensor in tensors}, metadata)


def _header_length(start: bytes, file_bytes: int) -> int:
    if not file_bytes:
        raise HeaderError("is empty")
    if start.startswith(_LFS_POINTER):
        raise HeaderError("is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
    length = int.from_bytes(start[:8], "little")
    if file_bytes < 8 or length > LARGEST_HEADER_BYTES or start[8:9] not in (b"{", b""):
        raise HeaderError("is no safetensors file, or is damaged")
    if 8 + length > file_bytes:
        raise HeaderError(f"is cut: its header has {length:,} bytes, the file {file_bytes:,}")
    return length


def _entry(name: str, field: Any, start: int, file_bytes: int) -> TensorEntry:
    """Check one field of the header against the file. `start`: the offset at which the data begin."""
    label = one_line(name)
    try:
        dtype, shape = field["dtype"], tuple(field["shape"])
        begin, end = field["data_offsets"]
        bits = DTYPE_BITS[dtype]
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise HeaderError(f"describes the tensor {label} in an unknown way") from None
    if any(type(size) is not int or size < 0 for size in (*shape, begin, end)):
        raise HeaderError(f"gives the tensor {label} a negative size, or one that is no whole number")
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise HeaderError(f"gives the tensor {label} {end - begin:,} bytes, which its shape and type do not make")
    if start + end > file_bytes:
        raise HeaderError(f"is cut: the tensor {label} ends at byte {start + end:,}, the file at {file_bytes:,}")
    return TensorEntry(name, dtype, shape, start + begin, start + end)
