"""Recognise packed weights that are not dequantised, and the companions of packed weights, which are never layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..read.tensors import TensorInfo

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
QUANTISED = "quantised"  # the first word of the reason of a packed tensor
_PACKED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float4_", "float6_", "float8_")
# What the packed numbers are called, by the software or the format that packs them.
_FORMATS = {
    "GPTQ or AWQ": r"qweight",
    "MXFP4": r"\w+_blocks",
    "compressed-tensors": r"weight_packed",
    "AQLM": r"codes",
    "VPTQ": r"(res_|outlier_)?indices",
    "HQQ": r"W_q",
    "QuIP#": r"Qidxs\w*",
    "EXL2": r"q_weight",
    "EXL3": r"trellis",
    "Marlin": r"B",
    "quanto or torchao": r"\w*_(q|int_)?data",
    "": r"\w*weight",
}
# What only companions of packed numbers are called; in a module with packed numbers, all but its bias is one.
_COMPANION = re.compile(
    r"qzeros|g_idx|\w+_scales|\w+_scale_inv|weight_scale\w*|weight_zero_point|weight_shape|(nested_)?(absmax|quant_map)"
    r"|SCB|codebooks|(res_|outlier_)?centroids|q_scale\w*|q_invperm|q_groups?|SU|SV|suh|svh"
)
# Scales of activations and of the cache of keys and values, which no weight is multiplied by.
_ACTIVATION = re.compile(
    r"(input|output|act|activation|k|v|q|kv|attn|attention|logit|embed|layer)_?scale\w*|scale_(input|output)"
)
_OWN_MODULE = re.compile(r"weight|(res_|outlier_)?centroids")
_BITS = ("bits", "num_bits", "w_bit", "weight_bits", "nbits")
_GUESSED_BITS = 4


def quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config.json says of packed weights; empty if they are plain."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        settings = part.get("quantization_config") or part.get("quantization")
        if isinstance(settings, Mapping):
            return settings
    return {}


def packed_tensors(infos: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return a reason for each tensor that is packed or belongs to one, and the elements of the layer it stands for.

    What this program dequantises is not among `infos` any more.
    """
    modules: dict[str, list[TensorInfo]] = defaultdict(list)
    for name, info in infos.items():
        modules[_module(name)].append(info)
    reasons: dict[str, tuple[str, int]] = {}
    for members in modules.values():
        packed = {info.name: packer for info in members if (packer := _packer(info, members)) is not None}
        for info in members:
            if info.name in packed:
                by = quantisation(config).get("quant_method") or packed[info.name]
                reason = f"{QUANTISED} ({info.dtype}){' by ' if by else ''}{str(by)[:80]}"
                reasons[info.name] = (reason, _elements(info, config))
            elif _COMPANION.fullmatch(_last(info.name)) or (
                packed and not info.name.endswith(("weight", "bias", "proj"))
            ):
                reasons[info.name] = (f"part of a quantised weight ({info.dtype})", 0)
    return reasons


def scales_of(info: TensorInfo, names: Sequence[str]) -> list[str]:
    """Return the names among those of a module that are scales of this weight."""
    prefix = "" if _last(info.name) == "weight" else _last(info.name)
    return [
        name
        for name in names
        if "scale" in _last(name).lower()
        and not _ACTIVATION.fullmatch(_last(name))
        and name != info.name
        and _last(name).startswith(prefix)
    ]


def _packer(info: TensorInfo, members: Sequence[TensorInfo]) -> str | None:
    """Return what has packed this tensor, "" if that is not known; None if it holds no packed numbers."""
    last = _last(info.name)
    if len(info.shape) < 2 or _COMPANION.fullmatch(last):
        return None
    if info.dtype in FLOAT8:
        scales = scales_of(info, [other.name for other in members])
        return f"a scale of an unknown kind ({_last(scales[0])})" if scales else None
    if info.dtype.startswith(_PACKED) or last.startswith("Qidxs"):
        is_scaled = bool(scales_of(info, [other.name for other in members]))
        found = (name for name, pattern in _FORMATS.items() if re.fullmatch(pattern, last))
        return next(found, "" if is_scaled else None)
    return None


def _module(name: str) -> str:
    """Return the module of a tensor. States and codebooks in modules of their own belong to the module around them."""
    parts = name.split(".")[:-1]
    while parts and _OWN_MODULE.fullmatch(parts[-1]):
        parts.pop()
    return ".".join(parts)


def _last(name: str) -> str:
    """Return what a tensor is called in its module: `a.weight` -> `weight`, `a.centroids.weight` -> `centroids`."""
    *parts, last = name.split(".")
    return parts[-1] if parts and last == "weight" and _OWN_MODULE.fullmatch(parts[-1]) else last


def _elements(info: TensorInfo, config: Mapping[str, Any]) -> int:
    """Return how many numbers a packed tensor stands for: of integers by the bits that the config tells, else 4."""
    if info.dtype in (*FLOAT8, "int8"):
        return info.elements
    stated = next((value for key, value in quantisation(config).items() if key in _BITS and isinstance(value, int)), 0)
    width = int(next(iter(re.findall(r"\d+", info.dtype)), 8))
    return info.elements * width // (stated if stated > 0 else _GUESSED_BITS)
