"""Recognise the low-rank factors of adapters among the tensors of a model. They are no layers of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..read.tensors import MERGE_FIRST, ModelError, TensorInfo

# The names of factors in the formats of adapters that are files of their own.
_FORMATS = {
    "kohya": r"(^|\.)lora_(unet|te\d?|transformer|prior)_.*\.(lora_(down|up|mid)|alpha|dora_scale)(\.|$)",
    "LoHa, LoKr, OFT or IA3": r"\.(hada_(w[12]_[ab]|t[12])|lokr_(w[12](_[ab])?|t2)|oft_\w+|ia3_l)(\.|$)",
    "peft": r"\.(lora_(A|B|embedding_A|embedding_B|magnitude_vector))(\.|$)",
    "diffusers": r"[._](lora|lora_linear_layer)[._](down|up)\.weight$|\.lora_(down|up)\.weight$",
}
_WORDS = ("lora", "hada_", "lokr_", "oft_", "ia3_")  # one is in each name of a factor


def refuse_factors(infos: Sequence[TensorInfo]) -> None:
    """Raise ModelError, stage load, if there are factors of an adapter, alone or beside the weights they change."""
    names = [info.name for info in infos if any(word in info.name for word in _WORDS)]
    for label, pattern in _FORMATS.items():
        factor = next((name for name in names if re.search(pattern, name)), "")
        if not factor:
            continue
        if any(".base_layer." in info.name for info in infos):
            remedy = "analyse what peft's merge_and_unload returns"
            raise ModelError("load", f"the adapter in it is not merged ({factor}); {remedy}")
        problem = f"it holds an adapter in the format of {label} ({factor}), not the weights of a model"
        raise ModelError("load", f"{problem}; {MERGE_FIRST}")
