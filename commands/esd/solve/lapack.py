"""Gram matrices and their eigenvalues, each where it lies. Reads no tensor of a model, chooses no solver.

PyTorch's own eigvalsh works on a copy, which is the largest thing that an analysis would have in memory. The LAPACK
that PyTorch brings is therefore called directly; where its library shows none, or one that fails a trial, PyTorch's
function does the same on a copy.
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
    """Add blockᵀ·block to the lower triangle of `gram`; what is above the diagonal means nothing afterwards.

    gram: n×n, block: k×n, of one type and on one device. Panel by panel up to the diagonal: half of the products.
    """
    panel = PANEL if gram.device.type == "cpu" else GPU_PANEL
    for low in range(0, gram.shape[0], panel):
        high = low + panel
        gram[low:high, :high].addmm_(block[:, low:high].T, block[:, :high])


def eigenvalues(gram: torch.Tensor) -> torch.Tensor:
    """Ascending eigenvalues of the symmetric matrix whose lower triangle this is. Leaves nonsense in `gram`.

    gram: n×n, contiguous, float64 or float32. Raises NotConverged, and what PyTorch raises for want of memory.
    """
    library = _library() if gram.device.type == "cpu" else None
    if library is not None:
        return _in_place(library, gram)
    try:
        found: torch.Tensor = torch.linalg.eigvalsh(gram)
    except torch.linalg.LinAlgError as error:
        raise NotConverged(str(error)) from None
    return found


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

    wish, iwork = torch.zeros(1, dtype=gram.dtype), torch.zeros(8, dtype=torch.int64)
    call(wish, -1, iwork, -1)  # asks how much room it would like; the least is 2n + 1
    length = max(2 * n + 1, int(wish.item()))
    call(torch.empty(length, dtype=gram.dtype), length, iwork, 8)
    return values


def _int(value: int) -> Any:
    # Whether this LAPACK has integers of 32 or 64 bits is not known; on a little-endian machine both read this rightly.
    return ctypes.byref(ctypes.c_int64(value))


def _at(tensor: torch.Tensor) -> Any:
    return ctypes.c_void_p(tensor.data_ptr())


@functools.cache
def _library() -> Any | None:
    """PyTorch's library, if its LAPACK passes a trial in both precisions."""
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
    """Whether it gives 2 and 4 for a matrix that has these eigenvalues, by its lower triangle."""
    gram = torch.tensor([[3.0, -9.0], [1.0, 3.0]], dtype=dtype)
    return bool(torch.allclose(_in_place(library, gram), torch.tensor([2.0, 4.0], dtype=dtype)))
