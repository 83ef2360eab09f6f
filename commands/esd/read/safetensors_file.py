"""Read the tensors of safetensors files with `pread`.

A mapped file counts as this process's memory once it is read; the buffer of a read is freed with its tensor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpusched.common.weights.safetensors_header import HeaderError, TensorEntry, read_header_of

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


class _Stored(NamedTuple):
    """One tensor in an open file, and the state of the file when its header was read."""

    path: Path
    fd: int
    state: tuple[int, int]
    entry: TensorEntry


class SafetensorsSource:
    """One or more safetensors files of one model. Headers are read now, tensors on demand.

    Raises ModelError if a file is damaged, or changes while it is open.
    """

    def __init__(
        self, files: Sequence[Path], config: Mapping[str, Any], index: Mapping[str, str] | None = None
    ) -> None:
        """`index`: the file name of each tensor, if the model has an index; every tensor has to be where it says."""
        self.config = config
        self.notes: list[str] = []
        self._stored: dict[str, _Stored] = {}
        with ExitStack() as opened:
            for path in files:
                for stored in _open(path, opened):
                    name = stored.entry.name
                    if index is None or index.get(name) == path.name:
                        self._stored[name] = stored
                    else:
                        self.notes.append(f"{name} in {path.name} is not in the index: left out")
            for name, where in (index or {}).items():
                if name not in self._stored:
                    raise ModelError("load", f"the index looks for {name} in {where}, which lacks it")
            self._opened = opened.pop_all()

    def infos(self) -> Sequence[TensorInfo]:
        return [
            TensorInfo(name, entry.shape, _TORCH_NAMES[entry.dtype]) for name, (_, _, _, entry) in self._stored.items()
        ]

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        path, fd, state, entry = self._stored[name]
        begin, size, shape = entry.begin, entry.size_bytes, entry.shape
        if rows is not None:
            chosen, row_bytes = range(shape[0])[rows], size // shape[0]
            begin, size, shape = begin + chosen.start * row_bytes, len(chosen) * row_bytes, (len(chosen), *shape[1:])
        if _state(fd) != state:
            raise ModelError("load", f"{path.name} changed while it was read")
        buffer = torch.empty(size, dtype=torch.uint8)
        view = memoryview(buffer.numpy())
        while view:
            try:
                count = os.preadv(fd, [view], begin)
            except OSError as error:
                raise ModelError("load", f"{path.name} cannot be read: {error.strerror}") from None
            if not count:
                raise ModelError("load", f"{path.name} was cut while it was read")
            view, begin = view[count:], begin + count
        return buffer.view(getattr(torch, _TORCH_NAMES[entry.dtype])).reshape(shape)

    def close(self) -> None:
        self._opened.close()


def _open(path: Path, opened: ExitStack) -> list[_Stored]:
    """Open a file and return its tensors in the order of their data."""
    try:
        fd = opened.enter_context(path.open("rb", buffering=0)).fileno()
        state = _state(fd)
        return [_Stored(path, fd, state, entry) for entry in read_header_of(fd).tensors.values()]
    except (OSError, HeaderError) as error:
        problem = str(error) if isinstance(error, HeaderError) else f"cannot be read: {error.strerror}"
        raise ModelError("load", f"{path.name} {problem}") from None


def _state(fd: int) -> tuple[int, int]:
    """Return the size of a file in bytes and the time of its last change."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns
