"""Weights that training keeps in several tensors, or several of them in one: norms, masks, experts, heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from ..read.derived import Derived, StoredTensors

# Weight norm (Salimans and Kingma 2016): w = g · v / ‖v‖, by slices along the dimension that g has. Old and new names.
_NORMED = (("weight_v", "weight_g"), ("parametrizations.weight.original1", "parametrizations.weight.original0"))
_STACKED = re.compile(r".*experts\.mlp\.(w1|v1|w2)")  # DBRX and MegaBlocks: the experts' rows below each other
_HEADS = re.compile(r".*rel_attn\.[qkvor]")  # XLNet: (model, heads, size of a head)
_COUNTS = ("moe_num_experts", "num_experts", "num_local_experts")


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield weights with a norm or a mask of their own, experts in one matrix, and matrices cut into heads."""
    for v_name, g_name in _NORMED:
        for stem, info in stored.ending(f".{v_name}"):
            parts = (f"{stem}.{v_name}", f"{stem}.{g_name}")
            g = stored.shape(parts[1])
            if g and len(g) == len(info.shape) and all(a in (1, b) for a, b in zip(g, info.shape, strict=True)):
                named = replace(info, name=f"{stem}.weight", packing=f"{info.dtype} with {g_name}")
                yield Derived(named, parts, _normed)
    for stem, info in stored.ending(".weight_orig"):
        parts = (f"{stem}.weight_orig", f"{stem}.weight_mask")
        if stored.shape(parts[1]) == info.shape:
            named = replace(info, name=f"{stem}.weight", packing=f"{info.dtype} with weight_mask")
            yield Derived(named, parts, _masked)
    experts = _experts(stored.config)
    for name, info in stored.infos.items():
        shape = info.shape
        if _STACKED.fullmatch(name) and len(shape) == 2 and experts > 1 and shape[0] % experts == 0:
            stack = replace(info, shape=(experts, shape[0] // experts, shape[1]))
            yield Derived(stack, (name,), _as_it_is)
        elif _HEADS.fullmatch(name) and len(shape) == 3:
            flat = replace(info, shape=(shape[0], shape[1] * shape[2]))
            yield Derived(flat, (name,), _as_it_is)


def _normed(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Return g · v / ‖v‖; in float32 as PyTorch does it, rounded once."""
    wide, kept = v.to(torch.float32), [size > 1 for size in g.shape]
    norm = wide.norm(dim=[dim for dim, is_kept in enumerate(kept) if not is_kept], keepdim=True)
    return (wide * (g.to(torch.float32) / norm)).to(v.dtype)


def _masked(weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return weight * mask.to(weight.dtype)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself: only its shape is another one."""
    return tensor


def _experts(config: Mapping[str, object]) -> int:
    """Return the number of experts that a config.json states; 0 if it states none."""
    for part in (config, config.get("ffn_config"), config.get("text_config")):
        for key in _COUNTS:
            value = part.get(key) if isinstance(part, Mapping) else None
            if isinstance(value, int):
                return value
    return 0
