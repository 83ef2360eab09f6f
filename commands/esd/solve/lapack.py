"""Gram matrices and their eigenvalues, computed in place where LAPACK allows it. Chooses no solver.

PyTorch's own eigvalsh works on a copy, which would be the largest thing in memory. So the LAPACK inside PyTorch is
called directly; if its library exports none, or one that fails a trial, PyTorch's function is used on a copy.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

PANEL = 128  # rows of the Gram matrix that one product makes
GPU_PANEL = 1024

_SOLVERS = {torch.float64: "dsyevd_", torch.float32: "ssyevd_"}


class NotConverged(Exception):
    """The eigensolver gave up."""


def add_gram(gram: torch.Tensor, block: torch.Tensor) -> None:
    """Add blockᵀ·block to the lower triangle of `gram`; the upper triangle has no meaning afterwards.

    gram: n×n, block: k×n, of one type and on one device. Panel by panel up to the diagonal: half of the products.
    """
    panel = PANEL if gram.device.type == "cpu" else GPU_PANEL
    for low in range(0, gram.shape[0], panel):
        high = low + panel
        gram[low:high, :high].addmm_(block[:, low:high].T, block[:, :high])


def eigenvalues(gram: torch.Tensor) -> torch.Tensor:
    """Return the ascending eigenvalues of the symmetric matrix with this lower triangle. Destroys `gram`.

    gram: n×n, contiguous, float64 or float32. Raises NotConverged, and PyTorch's errors for missing memory.
    """
    library = _library() if gram.device.type == "cpu" else None
    if library is not None:
        return _in_place(library, gram)
    try:
        values: torch.Tensor = torch.linalg.eigvalsh(gram)
    except torch.linalg.LinAlgError as error:
        raise NotConverged(str(error)) from None
    return values


def _in_place(library: Any, gram: torch.Tensor) -> torch.Tensor:
    n = gram.shape[0]
    solve = getattr(library, _SOLVERS[gram.dtype])
    values = torch.empty(n, dtype=gram.dtype)
    info = ctypes.c_int64(0)

    def call(work: torch.Tensor, length: int, iwork: torch.Tensor, ilength: int) -> None:
        # Row by row is column by column of the transposed: our lower triangle is LAPACK's upper one.
        solve(
            *(b"N", b"U", _int(n), _at(gram), _int(n), _at(values), _at(work), _int(length)),
            *(_at(iwork), _int(ilength), ctypes.byref(info)),
        )
        if code := ctypes.c_int32(info.value & 0xFFFFFFFF).value:
            raise NotConverged(f"the eigensolver stopped with {code}")

    best, iwork = torch.zeros(1, dtype=gram.dtype), torch.zeros(8, dtype=torch.int64)
    call(best, -1, iwork, -1)  # asks for the best size of the workspace; the least is 2n + 1
    length = max(2 * n + 1, int(best.item()))
    call(torch.empty(length, dtype=gram.dtype), length, iwork, 8)
    return values


def _int(value: int) -> Any:
    # This LAPACK has integers of 32 or 64 bits; on a little-endian machine both read this rightly.
    return ctypes.byref(ctypes.c_int64(value))


def _at(tensor: torch.Tensor) -> Any:
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def _library() -> Any | None:
    """Return PyTorch's library if its LAPACK passes a trial in both precisions, else None."""
    directory = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            library = ctypes.CDLL(str(directory / name))
            if all(_passes(library, dtype) for dtype in _SOLVERS):
                return library
        except (OSError, AttributeError, NotConverged):
            continue
    return None


def _passes(library: Any, dtype: torch.dtype) -> bool:
    """Return True if the solver finds the eigenvalues 2 and 4 of a matrix by its lower triangle."""
    gram = torch.tensor([[3.0, -9.0], [1.0, 3.0]], dtype=dtype)
    return bool(torch.allclose(_in_place(library, gram), torch.tensor([2.0, 4.0], dtype=dtype)))
