"""Shapes of a model's tensors -> the GPU memory that the spectral analysis of it takes at its peak. Reads no file.

The analysis goes through a model matrix by matrix, so that the largest one decides and not the size of the model.
For a matrix of R rows and n columns, n being its shorter side, the peak holds

    8 n² bytes        the Gram matrix in float64
  + 16 n² bytes       a copy for the eigensolver, and its workspace
  + 16 b n bytes      a block of b rows in float64, and the next one on its way
  + s R n bytes       the matrix as it is stored, of s bytes an element; twice, since the next one is read meanwhile
  + 600 MiB           the CUDA context with its libraries

Convolutions are one matrix for each position of the kernel, stacks of experts one for each expert.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpusched.core.model import MIB

CONTEXT_BYTES = 600 * MIB
BLOCK_ROWS = 512
GRAM_COPIES = 3  # the Gram matrix, the eigensolver's copy, its workspace

_EXPERT_DIMENSIONS = 3
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}


class TensorShape(NamedTuple):
    """A tensor as a safetensors header tells of it; `dtype` in its words: BF16, F32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"


@dataclass(frozen=True, slots=True)
class Shapes:
    """The tensors of a model, or why they are not known. `base`: of an adapter, the model that it says it changes."""

    tensors: tuple[TensorShape, ...] = ()
    why_not: str = ""
    base: str = ""


class Need(NamedTuple):
    """What a model needs of a GPU, and the tensor that decides it."""

    bytes: int
    tensor: TensorShape


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """The longer and the shorter side of the matrices that a tensor is analysed as; zeros where it is none."""
    if len(shape) < 2:
        return 0, 0
    sides = shape[-2:] if len(shape) == _EXPERT_DIMENSIONS else shape[:2]
    # three dimensions are a stack of experts or a 1-D convolution: take the larger of the two
    if len(shape) == _EXPERT_DIMENSIONS and min(shape[:2]) > min(sides):
        sides = shape[:2]
    return max(sides), min(sides)


def tensor_bytes(tensor: TensorShape) -> int:
    """Memory for one tensor, without the context."""
    rows, n = matrix(tensor.shape)
    stored = _BYTES.get(tensor.dtype.upper(), 1) * rows * n
    return 8 * GRAM_COPIES * n * n + 16 * min(BLOCK_ROWS, rows) * n + 2 * stored


def need(tensors: Iterable[TensorShape]) -> Need | None:
    """What these need at the peak; None where there is nothing to analyse."""
    largest = max((t for t in tensors if matrix(t.shape)[1]), key=tensor_bytes, default=None)
    return None if largest is None else Need(CONTEXT_BYTES + tensor_bytes(largest), largest)
