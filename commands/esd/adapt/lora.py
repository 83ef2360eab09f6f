"""Merge one low-rank change into one weight, bit for bit as peft 0.21 does it on a CPU.

LoRA: Hu et al. 2021; DoRA: Liu et al. 2024. The operations and the memory layouts of their operands are those of
peft: another order of the same arithmetic gives other last bits.
"""

from __future__ import annotations

import torch

LINEAR, CONV1D, EMBEDDING, CONVOLUTION = "linear", "conv1d", "embedding", "convolution"


def merge(
    weight: torch.Tensor,
    kind: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    magnitude: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the weight plus (B A)·scale, rounded once to the weight's dtype. A `magnitude` rescales it (DoRA).

    The tensors of the adapter are operands, as the function of this name makes them.

    Shapes of A, B and the weight: linear (r, in), (out, r), (out, in); conv1d, the transposed linear of GPT-2, the
    same with (in, out); embedding (r, rows), (columns, r), (rows, columns); convolution (r, in, k…), (out, r, 1…),
    (out, in, k…). The result has memory of its own.
    """
    delta = _delta(weight, kind, a, b, scale)
    if magnitude is not None:
        return _rescaled(weight, kind, delta, magnitude)
    if kind == EMBEDDING:
        delta = delta.to(weight.dtype)  # so that embeddings are rounded twice, as in peft
    return torch.add(weight, delta, out=torch.empty_like(weight))


def operand(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a copy in float32, or in float64 for a float64 weight.

    A view into a file may lie at any address, and the last bits of a product depend on the alignment.
    """
    wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return tensor.to(wide, copy=True).contiguous()


def _delta(weight: torch.Tensor, kind: str, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    if kind == CONVOLUTION:
        if weight.shape[2:] == (1, 1):
            flat = b.squeeze(3).squeeze(2) @ a.squeeze(3).squeeze(2)
            return flat.unsqueeze(2).unsqueeze(3) * scale
        convolve = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}[weight.dim()]
        return convolve(a.transpose(0, 1), b).transpose(0, 1) * scale
    product = b @ a
    return (product if kind == LINEAR else product.T).mul_(scale)


def _rescaled(weight: torch.Tensor, kind: str, delta: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    if kind == CONVOLUTION:
        changed = weight + delta
        norm = changed.norm(p=2, dim=tuple(range(1, weight.dim())), keepdim=True).transpose(1, 0)
        return ((magnitude / norm).view(-1, *(1,) * (weight.dim() - 1)) * changed).to(weight.dtype)
    upright = weight + delta if kind == LINEAR else weight.T + delta.T
    norm = torch.linalg.norm(upright, dim=1).to(upright.dtype)
    factor = magnitude / norm
    factor = factor.view(-1, 1) if kind == LINEAR else factor.view(1, -1)
    return (factor * (weight + delta)).to(weight.dtype)
