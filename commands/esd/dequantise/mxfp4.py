"""MXFP4: stacks of experts in blocks of 32 four-bit floats (E2M1) with a common power of two.

The format of gpt-oss (transformers, `convert_moe_packed_tensors`; OCP Microscaling Formats 1.0): X_blocks
(expert, out, blocks, 16), two numbers a byte, the first in its low half, and X_scales (expert, out, blocks), which are
exponents + 127. The stack has the shape (expert, in, out).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo
from .bits import unpack

_VALUES = torch.tensor((0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
_BLOCK = 32
_EXPONENT_BIAS = 127


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the stacks with blocks and scales."""
    for name, info in stored.ending("_blocks"):
        parts = (f"{name}_blocks", f"{name}_scales")
        if info.dtype != "uint8" or len(info.shape) != 4 or info.shape[3] * 2 != _BLOCK:
            continue
        if stored.shape(parts[1]) != info.shape[:3]:
            continue
        experts, outputs, blocks, _ = info.shape
        logical = TensorInfo(name, (experts, blocks * _BLOCK, outputs), "bfloat16", "mxfp4")
        yield Derived(logical, parts, _compute)


def _compute(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the weights in bfloat16, which holds each of them exactly."""
    codes = unpack(blocks, 4).int()
    values = torch.cat([_VALUES, -_VALUES]).to(torch.bfloat16)[codes]
    exponents = scales.to(torch.int32) - _EXPONENT_BIAS
    return torch.ldexp(values, exponents.unsqueeze(-1)).to(torch.bfloat16).flatten(-2).transpose(-1, -2).contiguous()
