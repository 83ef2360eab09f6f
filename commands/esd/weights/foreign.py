"""Recognise the low-rank factors of adapters among the tensors of a model. They are no layers of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..read.tensors import ModelError, TensorInfo

# The names of factors in the formats of adapters that are files of their own.
_FORMATS = {
    "kohya": re.compile(r"(^|\.)lora_(unet|te\d?|transformer|prior)_.*\.(lora_(down|up|mid)|alpha|dora_scale)(\.|$)"),
    "LoHa, LoKr, OFT or IA3": re.compile(r"\.(hada_(w[12]_[ab]|t[12])|lokr_(w[12](_[ab])?|t2)|oft_\w+|ia3_l)(\.|$)"),
    "peft": re.compile(r"\.(lora_(A|B|embedding_A|embedding_B|magnitude_vector))(\.|$)"),
    "diffusers": re.compile(r"[._](lora|lora_linear_layer)[._](down|up)\.weight$|\.lora_(down|up)\.weight$"),
}
_WRAPPED = re.compile(r"\.base_layer\.")


def refuse_factors(infos: Sequence[TensorInfo]) -> None:
    """Raise ModelError, stage load, if there are factors of an adapter, alone or beside the weights they change."""
    for label, pattern in _FORMATS.items():
        factor = next((info.name for info in infos if pattern.search(info.name)), "")
        if not factor:
            continue
        if any(_WRAPPED.search(info.name) for info in infos):
            raise ModelError(
                "load",
                f"the adapter in it is not merged ({factor}); analyse what peft's merge_and_unload returns",
            )
        raise ModelError(
            "load",
            f"it holds an adapter in the format of {label} ({factor}), not the weights of a model; merge it with the "
            "software that made it, and analyse the merged copy",
        )
