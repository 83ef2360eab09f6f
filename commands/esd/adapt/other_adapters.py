"""Merge one change of AdaLoRA, LoHa, LoKr or (IA)³ into one weight, bit for bit as peft 0.21 does it on a CPU.

AdaLoRA: Zhang et al. 2023; LoHa: Hyeon-Woo et al. 2021 (FedPara); LoKr: Yeh et al. 2023 (LyCORIS); (IA)³: Liu et al.
2022. `parts`: the tensors of the change by the ends of their names, in float32, or in float64 for a float64 weight.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .lora import CONV1D

Parts = Mapping[str, torch.Tensor]
Shapes = Mapping[str, tuple[int, ...]]


def merge(weight: torch.Tensor, method: str, kind: str, parts: Parts, scale: float, rank: int) -> torch.Tensor:
    """Return the changed weight in its own dtype; a bias too, which (IA)³ scales as the rows of its weight.

    `rank`: of AdaLoRA, that before it cut any.
    """
    if method == "IA3":
        factors = parts["ia3_l"].reshape(weight.shape) if weight.dim() == 1 else parts["ia3_l"]
        return torch.mul(weight, factors.T if kind == CONV1D else factors).to(weight.dtype)
    delta = (
        _adalora(parts, scale, rank) if method == "ADALORA" else {"LOHA": _loha, "LOKR": _lokr}[method](parts, scale)
    )
    delta = (delta.T if kind == CONV1D else delta).reshape(weight.shape)
    return torch.add(weight, delta, out=torch.empty_like(weight))


def _adalora(parts: Parts, scale: float, init_rank: int) -> torch.Tensor:
    values = parts["lora_E"]
    rank = torch.tensor([float(init_rank)], dtype=values.dtype) + 1e-5
    return parts["lora_B"] @ (parts["lora_A"] * values) * scale / rank


def _loha(parts: Parts, scale: float) -> torch.Tensor:
    if "hada_t1" in parts:
        first, second = (
            torch.einsum("i j k l, j r, i p -> p r k l", *(parts[f"hada_{name}"] for name in names))
            for names in (("t1", "w1_b", "w1_a"), ("t2", "w2_b", "w2_a"))
        )
    else:
        first, second = (parts[f"hada_w{n}_a"] @ parts[f"hada_w{n}_b"] for n in (1, 2))
    return first * second * torch.tensor(scale)


def _lokr(parts: Parts, scale: float) -> torch.Tensor:
    first = parts["lokr_w1"] if "lokr_w1" in parts else parts["lokr_w1_a"] @ parts["lokr_w1_b"]
    if "lokr_w2" in parts:
        second = parts["lokr_w2"]
    elif "lokr_t2" in parts:
        factors = (parts[f"lokr_{name}"] for name in ("t2", "w2_a", "w2_b"))
        second = torch.einsum("i j k l, i p, j r -> p r k l", *factors)
    else:
        second = parts["lokr_w2_a"] @ parts["lokr_w2_b"]
    if second.dim() == 4:
        first = first.unsqueeze(2).unsqueeze(2)
    return torch.kron(first, second.contiguous()) * scale


def problem(method: str, kind: str, shapes: Shapes, weight: tuple[int, ...], rank: int) -> str:
    """Return why tensors of these shapes cannot change a weight of this shape; "" if they can."""
    try:
        with torch.device("meta"):
            parts = {name: torch.empty(shape) for name, shape in shapes.items()}
            changed = merge(torch.empty(weight), method, kind, parts, 1.0, rank)
            fits = method != "IA3" or (len(weight) == 2 and changed.shape == weight)
    except (KeyError, RuntimeError, IndexError):
        fits = False
    if not fits:
        return f"its tensors ({', '.join(sorted(shapes))}) make no change of the shape {weight}"
    ranks = {shape[0] for name, shape in shapes.items() if name.endswith("_b")} - {rank}
    return f"its factors have the rank {ranks.pop()}, but its settings say {rank}" if ranks else ""
