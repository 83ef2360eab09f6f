"""Read the tensors of one safetensors file with `pread`.

A mapped file counts as this process's memory once it is read; the buffer of a read is freed with its tensor.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gpusched.common.safetensors_header import HeaderError, read_header_of

from .tensors import ModelError, TensorInfo

# Type in the file -> type in torch, without its prefix.
_TORCH_NAMES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "BOOL": "bool"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
    **{"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3", "F6_E3M2": "float6_e3m2"},
}
_LARGEST_READ_BYTES = 1 << 30


class SafetensorsFile:
    """An open file. Raises ModelError if it is damaged, or changes while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._state = _state(self._fd)
            self._entries = read_header_of(self._fd).tensors
        except (OSError, HeaderError) as error:
            self.close()
            problem = str(error) if isinstance(error, HeaderError) else f"cannot be read: {error.strerror}"
            raise ModelError("load", f"{path.name} {problem}") from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def infos(self) -> list[TensorInfo]:
        """The tensors in the order of their data."""
        return [
            TensorInfo(entry.name, entry.shape, _TORCH_NAMES[entry.dtype], str(self.path))
            for entry in self._entries.values()
        ]

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        """Read a tensor, or one part of it along its first dimension."""
        entry = self._entries[name]
        begin, size, shape = entry.begin, entry.size_bytes, entry.shape
        if part is not None:
            size //= shape[0]
            begin, shape = begin + part * size, shape[1:]
        if _state(self._fd) != self._state:
            raise ModelError("load", f"{self.path.name} changed while it was read")
        dtype = getattr(torch, _TORCH_NAMES[entry.dtype], None)
        if dtype is None:
            raise ModelError("load", f"{name} is of type {entry.dtype}, which this PyTorch does not know")
        buffer = torch.empty(size, dtype=torch.uint8)
        self._fill(memoryview(buffer.numpy()), begin)
        return buffer.view(dtype).reshape(shape)

    def _fill(self, view: memoryview, offset: int) -> None:
        """Read bytes of the file from `offset` until `view` is full."""
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done : done + _LARGEST_READ_BYTES]], offset + done)
            except OSError as error:
                raise ModelError("load", f"{self.path.name} cannot be read: {error.strerror}") from None
            if not count:
                raise ModelError("load", f"{self.path.name} was cut while it was read")
            done += count


def _state(fd: int) -> tuple[int, int]:
    """Return the size of a file in bytes and the time of its last change."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns
