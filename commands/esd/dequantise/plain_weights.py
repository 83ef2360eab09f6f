"""Show a model as its plain weights: what is packed is dequantised, what is no model is refused."""

from __future__ import annotations

import hashlib

import torch

from ..read.derived import DerivedSource
from ..read.tensors import TensorSource
from ..weights.foreign import refuse_factors
from . import FINDERS


def plain_weights(source: TensorSource) -> TensorSource:
    """Return a source of the weights that the stored tensors stand for. Raises ModelError for factors of an adapter."""
    refuse_factors(source.infos())
    return DerivedSource(source, FINDERS)


def have_same_content(source: TensorSource, name: str, other: str) -> bool:
    """Return True if two tensors of one shape hold the same numbers. At most one of them is in memory at a time."""
    rows = [source.read(each, slice(0, 1)) for each in (name, other)]
    if rows[0].dtype != rows[1].dtype or not torch.equal(*rows):
        return False
    first, second = (_digest(source.read(each)) for each in (name, other))
    return first == second


def _digest(tensor: torch.Tensor) -> tuple[torch.dtype, bytes]:
    return tensor.dtype, hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()).digest()
