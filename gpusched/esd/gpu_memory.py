"""The memory that a spectral analysis takes at its peak, from the shapes of tensors. Reads no file.

The stage (commands/esd/solve) plans by it how many layers it solves at a time; the scheduler gets from it the GPU
memory of a model. The analysis goes through a model matrix by matrix, so the largest matrix decides, not the size of
the model. A matrix of R rows and n columns, n its shorter side, s bytes an element, takes

                                             host        GPU
    as it is stored                          s R n       s R n
    its Gram matrix in float64               8 n²        8 n² · 3  (the eigensolver's copy and its workspace)
    a block of 512 rows in float64           8 · 512 n   8 · 512 n · 2  (the workspace of its product)
    svd, instead of the last two             8 R n · 2   8 R n · 3  (the matrix in float64, copy, workspace)

On the host a single matrix is free once its Gram matrix is made, and the eigensolver's copy (8 n²) takes its place: the
larger of both counts. Float32 (`fast`) takes half of each float64. Layers are solved at a time as long as their host
memory is together at most 1.35 times that of the largest, or 256 MiB. The CUDA context with its libraries takes 600 MiB
more.

A convolution is one matrix for each position of the kernel, a stack of experts one for each expert. The figures for the
host are compared with measured peaks in tests/commands/esd/test_memory.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from gpusched.common.weights.safetensors_header import DTYPE_BITS
from gpusched.common.weights.tensor_headers import TensorShape

CONTEXT_BYTES = 600 << 20
BLOCK_ROWS = 512  # rows or columns of a matrix that are in float64 at a time
GPU_COPIES = 3
AHEAD = 1.35
AT_LEAST_BYTES = 256 << 20

_PACKED = ("I8", "U8", "I16", "I32", "U32", "F4", "F6_E2M3", "F6_E3M2")
_FEW = 1024  # elements of a table of positions, say
_STACK = 3  # dimensions of a stack of experts, and of a 1-D convolution


class LayerNeed(NamedTuple):
    """The peak memory of one layer in bytes."""

    host: int
    gpu: int


class GpuNeed(NamedTuple):
    """The GPU memory that a model needs, and the tensor that decides it."""

    bytes: int
    tensor: TensorShape


def layer_need(
    matrix: tuple[int, int], element_bytes: int, *, solver: str, matrices: int = 1, copies: int = 1
) -> LayerNeed:
    """Return the need of a layer of `matrices` matrices of one shape, which is `copies` times on the host."""
    rows, n = max(matrix), min(matrix)
    stored = element_bytes * rows * n
    on_host = stored * matrices * copies
    if solver == "svd":
        return LayerNeed(on_host + 2 * 8 * rows * n, stored + GPU_COPIES * 8 * rows * n)
    width = 4 if solver == "fast" else 8
    gram, block = width * n * n, width * min(BLOCK_ROWS, rows) * n
    kept = 0 if matrices * copies == 1 else on_host  # while eigenvalues are computed
    return LayerNeed(max(on_host + gram + block, kept + 2 * gram), stored + GPU_COPIES * gram + 2 * block)


def host_limit(largest: int) -> int:
    """Return the bytes that the layers in work may take together, if the largest needs so many."""
    return max(AT_LEAST_BYTES, int(AHEAD * largest))


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
    """Return the peak need of these tensors; None if there is nothing to analyse, or if weights are packed.

    `layers` is a regular expression: only tensors whose name it finds are analysed.
    """
    tensors = list(tensors)
    if any(map(is_packed, tensors)):
        return None
    is_wanted = re.compile(layers).search
    needs = [
        (layer_need(matrix_sides(tensor.shape), _width(tensor), solver=solver), tensor)
        for tensor in tensors
        if _width(tensor) and matrix_sides(tensor.shape)[1] and is_wanted(tensor.name)
    ]
    if not needs:
        return None
    largest, tensor = max(needs, key=lambda need: need[0].gpu)
    beside = 0
    if parallel and len(needs) > 1:
        room = max(0, host_limit(largest.host) - largest.host)
        beside = min(sorted(need.gpu for need, _ in needs)[-2], GPU_COPIES * room)
    return GpuNeed(CONTEXT_BYTES + largest.gpu + beside, tensor)


def is_packed(tensor: TensorShape) -> bool:
    """Return True for a matrix of small integers: its shape does not say that of the weights it stands for."""
    return tensor.dtype.upper() in _PACKED and len(tensor.shape) > 1 and math.prod(tensor.shape) > _FEW


def _width(tensor: TensorShape) -> int:
    """Return the bytes of an element; 0 for a type that is not analysed: integers, and types below 8 bits."""
    dtype = tensor.dtype.upper()
    if dtype.startswith("F8"):
        return 4  # with its scale in it
    return DTYPE_BITS.get(dtype, 0) // 8 if dtype.startswith(("F", "BF")) else 0
