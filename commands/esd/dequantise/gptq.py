"""GPTQ (Frantar et al. 2022): integers packed along the input, and a scale and a zero for each group of inputs.

The format of AutoGPTQ (auto_gptq/nn_modules/qlinear, `pack`): qweight (in · bits / 32, out), qzeros
(groups, out · bits / 32), scales (groups, out), g_idx (in), the group of each input. w = scale · (q − zero). Version 1
stores zero − 1; gptq_v2 of GPTQModel stores zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo
from ..weights.packed import quantisation
from .bits import CHUNK, unpack

_BITS = (2, 3, 4, 8)


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the weights of the modules with qweight, qzeros and scales in this layout."""
    settings = quantisation(stored.config)
    layout = settings.get("checkpoint_format") or settings.get("packing_format") or "gptq"
    if settings.get("is_marlin_format") or "gptq" not in str(layout):
        return
    first_zero = 0 if "v2" in str(layout) else 1
    for stem, info in stored.ending(".qweight"):
        zeros, scales = stored.shape(f"{stem}.qzeros"), stored.shape(f"{stem}.scales")
        if not zeros or not scales or info.dtype != "int32" or scales[1] != info.shape[1] or zeros[0] != scales[0]:
            continue
        bits = zeros[1] * 32 // scales[1]
        inputs = info.shape[0] * 32 // max(1, bits)
        if bits not in _BITS or inputs % scales[0]:
            continue
        parts = tuple(f"{stem}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
        has_order = stored.shape(parts[3]) == (inputs,)
        logical = TensorInfo(f"{stem}.weight", (scales[1], inputs), "float32", f"gptq {bits} bits")
        yield Derived(logical, parts[: 3 + has_order], partial(_compute, bits=bits, first_zero=first_zero))


def _compute(
    packed: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    order: torch.Tensor | None = None,
    *,
    bits: int,
    first_zero: int,
) -> torch.Tensor:
    weight = unpack(packed.T, bits).to(torch.float32)
    offsets = ((unpack(zeros, bits) + first_zero) & ((1 << bits) - 1)).to(torch.float32)
    groups = torch.arange(weight.shape[1]) // (weight.shape[1] // len(scales)) if order is None else order.long()
    factors = scales.to(torch.float32)
    for inputs, part in zip(weight.split(CHUNK, dim=1), groups.split(CHUNK), strict=True):
        inputs.sub_(offsets[part].T).mul_(factors[part].T)
    return weight
