"""The same entries in random order: what spectrum chance would give them. Fits nothing."""

from __future__ import annotations

import zlib

import numpy as np
import torch

from ..fit.metrics import bulk_edges
from ..read.layers import Layer
from .spectrum import BLOCK, CONVOLUTION, windows

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shuffled(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A copy whose entries are in an order that depends on nothing but the name and their number."""
    copied = tensor.clone(memory_format=torch.contiguous_format)
    flat = copied.view(-1).view(_WORDS[copied.element_size()]).numpy()
    np.random.default_rng(zlib.crc32(name.encode())).shuffle(flat)
    return copied


def bulk(tensor: torch.Tensor, layer: Layer, *, farms: bool) -> tuple[float, float]:
    """The eigenvalues between which chance alone would keep this layer's: by its entries' variance and its shape."""
    total = squares = 0.0
    for part in tensor.split(BLOCK):
        entries = part.to(torch.float64)
        total += float(entries.sum())
        squares += float(entries.square().sum())
    mean = total / tensor.numel()
    variance = max(0.0, squares / tensor.numel() - mean * mean)
    rows, columns = layer.matrix
    if farms:
        rows, columns = windows(torch.empty(rows, columns, device="meta"))[0].shape
    return bulk_edges(variance * (CONVOLUTION if layer.convolution else 1.0), rows, columns)
