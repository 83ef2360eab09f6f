"""MLX: integers packed along the input, and a scale and a bias for each group of inputs.

mlx.core.quantize with mode "affine": weight (…, out, in · bits / 32), scales and biases (…, out, in / group size);
w = scale · q + bias. Stacks of experts have the experts first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo
from ..weights.packed import quantisation
from .bits import unpack

_BITS = (2, 3, 4, 5, 6, 8)


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the weights of the modules with words, scales and biases; the config says how long a group is."""
    settings = quantisation(stored.config)
    for stem, info in stored.ending(".weight"):
        parts = tuple(f"{stem}.{part}" for part in ("weight", "scales", "biases"))
        scales = stored.shape(parts[1])
        if info.dtype != "uint32" or not scales or scales != stored.shape(parts[2]):
            continue
        own = settings.get(stem)
        size = (own if isinstance(own, Mapping) else settings).get("group_size", 64)
        inputs = scales[-1] * size if isinstance(size, int) else 0
        bits, rest = divmod(info.shape[-1] * 32, inputs or 1)
        if rest or bits not in _BITS or scales[:-1] != info.shape[:-1]:
            continue
        logical = TensorInfo(f"{stem}.weight", (*info.shape[:-1], inputs), "float32", f"mlx {bits} bits")
        yield Derived(logical, parts, partial(_compute, bits=bits))


def _compute(packed: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: int) -> torch.Tensor:
    weight = unpack(packed.view(torch.int32), bits).to(torch.float32).unflatten(-1, (scales.shape[-1], -1))
    weight.mul_(scales.to(torch.float32).unsqueeze(-1)).add_(biases.to(torch.float32).unsqueeze(-1))
    return weight.flatten(-2)
