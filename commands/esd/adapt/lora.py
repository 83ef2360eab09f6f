"""Merge one low-rank change into one weight, bit for bit as peft 0.21 does it on a CPU (LoRA: Hu et al. 2021).

The operations and the memory layouts of their operands are those of peft: another order of the same arithmetic gives
other last bits.
"""

from __future__ import annotations

import torch

LINEAR, CONV1D, EMBEDDING = "linear", "conv1d", "embedding"


def merge(weight: torch.Tensor, kind: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the weight plus (B A)·scale, rounded once to the weight's dtype.

    Shapes of A, B and the weight: linear (r, in), (out, r), (out, in); conv1d, the transposed linear of GPT-2, the
    same with (in, out); embedding (r, rows), (columns, r), (rows, columns). The result has memory of its own.
    """
    product = _operand(b, weight) @ _operand(a, weight)
    delta = (product if kind == LINEAR else product.T).mul_(scale)
    if kind == EMBEDDING:
        delta = delta.to(weight.dtype)  # so that embeddings are rounded twice, as in peft
    return torch.add(weight, delta, out=torch.empty_like(weight))


def _operand(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a copy in float32, or in float64 for a float64 weight.

    A view into a file may lie at any address, and the last bits of a product depend on the alignment.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return tensor.to(wide, copy=True).contiguous()
