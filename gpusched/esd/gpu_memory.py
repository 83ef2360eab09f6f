"""The GPU memory that the spectral analysis of a model takes at its peak, from the shapes of its tensors.

The analysis goes through a model matrix by matrix (commands/esd/spectrum.py, pipeline.py), so the largest matrix
decides, not the size of the model. A matrix of R rows and n columns, n its shorter side, s bytes an element, takes

    s R n                as it is stored
    8 n² · 3             the Gram matrix in float64, the eigensolver's copy of it, and its workspace; half in float32
    8 · 512 n · 2        a block of 512 rows in float64, and the workspace of its product
    (svd: 8 R n · 3      the matrix in float64, the solver's copy, and its workspace, instead of the last two)

Two matrices are on the GPU at a time as long as the host memory that they take, s R n + 8 n² each, is together at
most 1.4 times that of the largest, or 256 MiB. The CUDA context with its libraries takes 600 MiB more.

A convolution is one matrix for each position of the kernel, a stack of experts one for each expert.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpusched.common.tensor_headers import TensorShape
from gpusched.core.model import MIB

CONTEXT_BYTES = 600 * MIB
BLOCK_ROWS = 512
COPIES = 3
AHEAD = 1.4
AT_LEAST_BYTES = 256 * MIB

_STACK = 3  # dimensions of a stack of experts, and of a 1-D convolution
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_FLOAT8 = re.compile(r"F8_")


class GpuNeed(NamedTuple):
    """The GPU memory that a model needs, and the tensor that decides it."""

    bytes: int
    tensor: TensorShape


def matrix_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the longer and the shorter side of the matrices that a tensor is analysed as; zeros if there are none.

    Three dimensions are a stack of experts or a 1-D convolution: the one with the longer shorter side is assumed.
    """
    if len(shape) < 2:
        return 0, 0
    pairs = [shape[:2], shape[1:]] if len(shape) == _STACK else [shape[:2]]
    long, short = max(((max(pair), min(pair)) for pair in pairs), key=lambda sides: (sides[1], sides[0]))
    return (long, short) if short else (0, 0)


def gpu_need(
    tensors: Iterable[TensorShape], *, solver: str = "auto", parallel: bool = True, layers: str = ""
) -> GpuNeed | None:
    """Return the peak need of these tensors; None if there is nothing to analyse.

    `layers` is a regular expression: only tensors whose name it finds are analysed.
    """
    matches = re.compile(layers).search
    sizes = [
        (_on_gpu(tensor, solver), _on_host(tensor, solver), tensor)
        for tensor in tensors
        if _width(tensor) and matrix_sides(tensor.shape)[1] and matches(tensor.name)
    ]
    if not sizes:
        return None
    largest, host, tensor = max(sizes, key=lambda size: size[0])
    beside = 0
    if parallel and len(sizes) > 1:
        room = max(AT_LEAST_BYTES, int(AHEAD * host)) - host
        beside = min(sorted(size for size, _, _ in sizes)[-2], COPIES * max(0, room))
    return GpuNeed(CONTEXT_BYTES + largest + beside, tensor)


def _width(tensor: TensorShape) -> int:
    """Return the bytes of an element; 0 for a type that is not analysed: integers, and numbers quantised into them."""
    dtype = tensor.dtype.upper()
    return _BYTES.get(dtype, 1 if _FLOAT8.match(dtype) else 0)


def _on_gpu(tensor: TensorShape, solver: str) -> int:
    """Return the bytes that the analysis of a tensor takes on the GPU."""
    rows, n = matrix_sides(tensor.shape)
    stored = _width(tensor) * rows * n
    if solver == "svd":
        return stored + 8 * COPIES * rows * n
    of_gram = 4 if solver == "fast" else 8
    return stored + of_gram * COPIES * n * n + 2 * of_gram * min(BLOCK_ROWS, rows) * n


def _on_host(tensor: TensorShape, solver: str) -> int:
    """Return the bytes that the analysis of a tensor takes of the host's memory."""
    rows, n = matrix_sides(tensor.shape)
    return _width(tensor) * rows * n + (16 * rows * n if solver == "svd" else 8 * n * n)
