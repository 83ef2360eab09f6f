"""Compare a layer with chance: the same entries in random order, and the edges of a random matrix's spectrum."""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch

from gpusched.esd.gpu_memory import BLOCK_ROWS

from ..weights.layers import Layer
from .spectrum import CONVOLUTION, windows

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shuffled(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy whose entries are in an order that depends only on the name and their number."""
    copied = tensor.clone(memory_format=torch.contiguous_format)
    flat = copied.view(-1).view(_WORDS[copied.element_size()]).numpy()
    np.random.default_rng(zlib.crc32(name.encode())).shuffle(flat)
    return copied


def bulk(tensor: torch.Tensor, layer: Layer, *, farms: bool) -> tuple[float, float]:
    """Return the edges of the spectrum of a random matrix with this layer's shape and variance of entries."""
    total = squares = 0.0
    for part in tensor.split(BLOCK_ROWS):
        entries = part.to(torch.float64)
        total += float(entries.sum())
        squares += float(entries.square().sum())
    mean = total / tensor.numel()
    variance = max(0.0, squares / tensor.numel() - mean * mean)
    return bulk_edges(variance * (CONVOLUTION if layer.convolution else 1.0), *sides(layer, farms=farms))


def sides(layer: Layer, *, farms: bool) -> tuple[int, int]:
    """Return the rows and columns of each matrix whose eigenvalues are computed: a window's, with FARMS."""
    rows, columns = windows(torch.empty(layer.matrix, device="meta"))[0].shape if farms else layer.matrix
    return rows, columns


def bulk_edges(variance: float, rows: int, columns: int) -> tuple[float, float]:
    """Return the least and the greatest eigenvalue of WᵀW for independent entries: s² (√rows ∓ √columns)².

    Marchenko and Pastur, Distribution of eigenvalues for some sets of random matrices, 1967, without its 1/N.
    """
    low, high = (variance * (math.sqrt(rows) + sign * math.sqrt(columns)) ** 2 for sign in (-1, 1))
    return low, high
