"""8-bit floats with scales: w = stored · scale, one for a tensor, a row, a column, or a block of 128×128.

`weight_scale_inv` of DeepSeek-V3 (inference/kernel.py, `weight_dequant`: multiplied, in spite of its name),
`weight_scale` of compressed-tensors, FBGEMM and ModelOpt, `scale_weight` of ComfyUI, `scale` of others. A scale may be
a power of two (E8M0). Stacks of experts have the experts first, and scales called `X_scale_inv`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo
from ..weights.packed import FLOAT8, quantisation, scales_of

_SCALES = ("weight_scale_inv", "weight_scale", "scale_weight", "scale")
_BLOCK = (128, 128)


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the 8-bit weights with one scale of a known name whose shape fits."""
    block = quantisation(stored.config).get("weight_block_size")
    sides = tuple(block) if isinstance(block, list) and len(block) == 2 else _BLOCK
    modules: dict[str, list[str]] = defaultdict(list)
    for name in stored.infos:
        modules[name.rpartition(".")[0]].append(name)
    for name, info in stored.infos.items():
        if info.dtype not in FLOAT8 or len(info.shape) not in (2, 3):
            continue
        stem, _, last = name.rpartition(".")
        scales = scales_of(info, modules[stem])
        known = _SCALES if last == "weight" else (f"{last}_scale_inv", f"{last}_scale")
        if len(scales) != 1 or scales[0].rpartition(".")[2] not in known:
            continue
        shape = _scale_shape(info.shape, stored.infos[scales[0]].shape, sides)
        if shape is None:
            continue
        logical = TensorInfo(name, info.shape, "float32", f"{info.dtype} with {scales[0].rpartition('.')[2]}")
        yield Derived(logical, (name, scales[0]), partial(_compute, shape=shape, block=sides))


def _compute(
    stored: torch.Tensor, scale: torch.Tensor, *, shape: tuple[int, ...], block: Sequence[int]
) -> torch.Tensor:
    weight = stored.to(torch.float32)
    scale = scale.to(torch.float32).reshape(-1, *shape[1:])
    if 1 < scale.shape[-1] < weight.shape[-1]:  # a number for each block
        scale = scale.repeat_interleave(block[1], dim=-1)[..., : weight.shape[-1]]
    if not 1 < scale.shape[-2] < weight.shape[-2]:
        return weight.mul_(scale)
    for index, rows in enumerate(weight.split(block[0], dim=-2)):
        rows.mul_(scale[..., index : index + 1, :])
    return weight


def _scale_shape(weight: tuple[int, ...], scale: tuple[int, ...], block: Sequence[int]) -> tuple[int, ...] | None:
    """Return the scale's shape with as many dimensions as the weight's; None if it fits no known way of scaling."""
    *experts, rows, columns = weight
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    if all(size == 1 for size in scale):
        return (1,) * len(weight)
    if scale == (rows,):
        return (rows, 1)
    if scale[: len(experts)] != tuple(experts):
        return None
    rest = scale[len(experts) :]
    if all(size == 1 for size in rest):
        return (*experts, 1, 1)
    return scale if rest in ((rows, 1), (1, columns), blocks) else None
