"""One safetensors file: its header, read with suspicion, and its tensors by pread. Knows no model, maps no memory.

A mapped file counts as this process's memory once it is read; a read into a new buffer does not outlive the tensor.
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


class SafetensorsFile:
    """An open file. Its tensors are found by name; ModelError for one that is not what its header says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._state = _state(self._fd)
            self._entries = read_header_of(self._fd).tensors
        except OSError as error:
            self.close()
            raise ModelError("load", f"{path.name} cannot be read: {error.strerror}") from None
        except HeaderError as error:
            self.close()
            raise ModelError("load", f"{path.name} {error}") from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def infos(self) -> list[TensorInfo]:
        return [
            TensorInfo(entry.name, entry.shape, _TORCH_NAMES[entry.dtype], str(self.path))
            for entry in self._entries.values()
        ]

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        """A tensor, or one part of it along its first dimension."""
        entry = self._entries[name]
        begin, end, shape = entry.begin, entry.end, entry.shape
        if part is not None:
            size = (end - begin) // shape[0]
            begin, end, shape = begin + part * size, begin + (part + 1) * size, shape[1:]
        if _state(self._fd) != self._state:
            raise ModelError("load", f"{self.path.name} changed while it was read")
        dtype = getattr(torch, _TORCH_NAMES[entry.dtype], None)
        if dtype is None:
            raise ModelError("load", f"{name} is of type {entry.dtype}, which this PyTorch does not know")
        buffer = torch.empty(end - begin, dtype=torch.uint8)
        self._fill(memoryview(buffer.numpy()), begin)
        return buffer.view(dtype).reshape(shape)

    def _fill(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._fd, [view[done : done + (1 << 30)]], offset + done)
            except OSError as error:
                raise ModelError("load", f"{self.path.name} cannot be read: {error.strerror}") from None
            if not count:
                raise ModelError("load", f"{self.path.name} was cut while it was read")
            done += count


def _state(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns
