"""One safetensors file: its header, read with suspicion, and its tensors by pread. Knows no model, maps no memory.

A mapped file counts as this process's memory once it is read; a read into a new buffer does not outlive the tensor.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from .shown import shown
from .tensors import ModelError, TensorInfo

_LARGEST_HEADER = 100_000_000  # bytes, as the format has it

# Name in the file -> name in torch, bits of one element.
_DTYPES = {
    **{"F64": ("float64", 64), "F32": ("float32", 32), "F16": ("float16", 16), "BF16": ("bfloat16", 16)},
    **{"I64": ("int64", 64), "I32": ("int32", 32), "I16": ("int16", 16), "I8": ("int8", 8), "BOOL": ("bool", 8)},
    **{"U64": ("uint64", 64), "U32": ("uint32", 32), "U16": ("uint16", 16), "U8": ("uint8", 8)},
    **{"F8_E4M3": ("float8_e4m3fn", 8), "F8_E5M2": ("float8_e5m2", 8), "F8_E8M0": ("float8_e8m0fnu", 8)},
    **{"F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8)},
    **{"F4": ("float4_e2m1fn", 4), "F6_E2M3": ("float6_e2m3", 6), "F6_E3M2": ("float6_e3m2", 6)},
    **{"C64": ("complex64", 64)},
}


class SafetensorsFile:
    """An open file. Its tensors are found by name; ModelError for one that is not what its header says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ModelError("load", f"{shown(path.name)} cannot be opened: {error.strerror}") from None
        try:
            self._state = _state(self._fd)
            self._start, header = self._header()
            self.places = self._places(header)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def infos(self) -> list[TensorInfo]:
        return [info for info, _, _ in self.places.values()]

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        """A tensor, or one part of it along its first dimension."""
        info, begin, end = self.places[name]
        shape = info.shape
        if part is not None:
            size = (end - begin) // shape[0]
            begin, end, shape = begin + part * size, begin + (part + 1) * size, shape[1:]
        if _state(self._fd) != self._state:
            raise ModelError("load", f"{shown(self.path.name)} changed while it was read")
        dtype = getattr(torch, info.dtype, None)
        if dtype is None:
            raise ModelError("load", f"{shown(name)} is of type {info.dtype}, which this PyTorch does not know")
        buffer = torch.empty(end - begin, dtype=torch.uint8)
        self._fill(memoryview(buffer.numpy()), self._start + begin)
        return buffer.view(dtype).reshape(shape)

    def _fill(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done : done + (1 << 30)]], offset + done)
            except OSError as error:
                raise ModelError("load", f"{shown(self.path.name)} cannot be read: {error.strerror}") from None
            if not count:
                raise ModelError("load", f"{shown(self.path.name)} was cut while it was read")
            done += count

    def _header(self) -> tuple[int, dict[str, Any]]:
        """Where the data begin, and the header."""
        name, size = shown(self.path.name), self._state[0]
        if not size:
            raise ModelError("load", f"{name} is empty")
        first = os.pread(self._fd, 200, 0)
        if first.startswith(b"version https://git-lfs"):
            raise ModelError("load", f"{name} is a Git LFS pointer, not the weights; fetch them with `git lfs pull`")
        length = int.from_bytes(first[:8], "little")
        if size < 8 or length > _LARGEST_HEADER or first[8:9] != b"{":
            raise ModelError("load", f"{name} is no safetensors file, or a damaged one")
        if 8 + length > size:
            raise ModelError("load", f"{name} is cut: its header has {length} bytes, the file {size}")
        buffer = bytearray(length)
        self._fill(memoryview(buffer), 8)
        try:
            header = json.loads(buffer)
        except (ValueError, RecursionError):
            raise ModelError("load", f"{name} has a header that is no JSON") from None
        if not isinstance(header, dict):
            raise ModelError("load", f"{name} has a header that is no JSON object")
        return 8 + length, header

    def _places(self, header: dict[str, Any]) -> dict[str, tuple[TensorInfo, int, int]]:
        """Name -> the tensor, and where its data begin and end, in the order of the file."""
        found = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            try:
                dtype, bits = _DTYPES[entry["dtype"]]
                shape = tuple(entry["shape"])
                begin, end = entry["data_offsets"]
                sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
            except (KeyError, TypeError, ValueError):
                raise ModelError("load", f"{shown(self.path.name)} describes {shown(name)} in no known way") from None
            info = TensorInfo(name, shape, dtype, str(self.path))
            if not sound or (end - begin) * 8 != info.elements * bits:
                raise ModelError("load", f"{shown(self.path.name)} gives {shown(name)} a shape that is not its size")
            if self._start + end > self._state[0]:
                there = f"{shown(name)} ends at byte {self._start + end}, the file at {self._state[0]}"
                raise ModelError("load", f"{shown(self.path.name)} is cut: {there}")
            found.append((info, begin, end))
        found.sort(key=lambda place: place[1])
        for (_, _, end), (info, begin, _) in pairwise(found):
            if begin < end:
                raise ModelError("load", f"{shown(self.path.name)} lets {shown(info.name)} overlap another tensor")
        return {place[0].name: place for place in found}


def _state(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns
