"""Choose the layers to analyse, with a reason for each tensor that is skipped. Reads no tensor.

Name, shape, dtype and config decide, so the choice is known before anything is read:

- the last word of a name, or the one before `weight`, shows biases, embeddings and the parts of quantised weights;
- three dimensions are a stack of experts if the name says so (`experts`, `moe`, `input_linear`, `output_linear`), or if
  the last two are longer than 32 and the name says nothing of a convolution; otherwise a convolution (out, in, k);
- four and five dimensions are convolutions. (out, in, k…) and, transposed, (in, out, k…) have the same spectrum;
- two dimensions are one matrix, a fused q/k/v whole. Conv1D of the GPT-2 family is stored in×out: the same spectrum.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.esd.options import AnalysisOptions

from .tensors import TensorInfo

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_EIGHT_BITS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_SHORT_FLOATS = ("float4", "float6", "float8_e8m0")
_STACK_SIDE = 32  # a kernel is shorter, an expert is longer
_MOST_DIMENSIONS = 5

_EXPERTS = re.compile(r"(^|[._])(experts?|moe|input_linear|output_linear)([._]|$)")
_CONVOLUTION = re.compile(r"conv|downsample|patch_embed|kernel", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed(?!.*(proj|map|out|dense|linear|fc))|(^|_)emb(s|_|$)|^(wte|wpe)$", re.IGNORECASE)
_EMBEDDINGS = ("shared", "relative_attention_bias", "relative_position_bias_table", "cls_token", "mask_token")
_HEAD = re.compile(r"head|out|decoder|score|classif|predict|logit|proj|dense|fc|linear|cls", re.IGNORECASE)
_TIED_HEADS = ("lm_head", "embed_out", "output", "output_projection")
# Tensors beside a quantised weight, and names that only parts of one have.
_BESIDE = ("scale", "scales", "scale_weight", "weight_scale", "weight_scale_inv", "weight.absmax", "SCB", "weight.SCB")
_PARTS = re.compile(
    r"(^|[._])(qweight|qzeros|g_idx|SCB|absmax|quant_map|nested_absmax|nested_quant_map|weight_scale(_\w+)?|weight_packed"
    r"|weight_zero_point|weight_shape|input_scale|\w+_blocks|\w+_scales)$"
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One matrix or convolution to analyse: a whole tensor, or one expert of a stack."""

    name: str
    tensor: TensorInfo
    convolution: bool = False
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]

    @property
    def matrix(self) -> tuple[int, int]:
        """The rows and columns of its matrix, or of each matrix of a convolution."""
        return self.shape[0], self.shape[1]

    @property
    def elements(self) -> int:
        return self.tensor.elements // (self.tensor.shape[0] if self.expert is not None else 1)


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor with two or more dimensions that gets no row, and the reason. `twin`: what it is tied to."""

    tensor: TensorInfo
    reason: str
    twin: str = ""


def choose_layers(
    infos: Sequence[TensorInfo],
    config: Mapping[str, Any],
    options: AnalysisOptions,
    embeddings: Collection[str] = (),
) -> tuple[list[Layer], list[Skip]]:
    """Return the layers and the skipped tensors, in the order of `infos`. Tensors below two dimensions are in neither.

    `embeddings`: names of tensors that are embeddings by their type.
    """
    names = {info.name for info in infos}
    is_wanted = re.compile(options.layers).search
    layers: list[Layer] = []
    skips: list[Skip] = []
    for info in infos:
        if len(info.shape) < 2:
            continue
        reason = refusal(info, names)
        if not reason and not options.embeddings and (info.name in embeddings or embedding(info, config)):
            reason = "an embedding (analysed with --embeddings)"
        twin = "" if reason else _twin(info, infos, config)
        reason = f"tied to {twin}" if twin else reason
        if not reason and not is_wanted(info.name):
            reason = "left out by --layers"
        if reason:
            skips.append(Skip(info, reason, twin))
        elif is_stack(info):
            layers += [Layer(f"{info.name}[{n}]", info, expert=n) for n in range(info.shape[0])]
        else:
            layers.append(Layer(info.name, info, convolution=len(info.shape) > 2))
    return layers, skips


def refusal(info: TensorInfo, names: Collection[str]) -> str:
    """Return why a tensor is no matrix of weights; "" if it is one. `names`: the names of all tensors of the model."""
    if not info.name.isprintable():
        return "its name has characters that cannot be shown"
    if not info.elements:
        return "empty: it has no elements"
    if quantised := _quantised(info, names):
        return quantised
    if info.dtype not in _FLOATS + _EIGHT_BITS:
        return f"{info.dtype}, not weights"
    if info.name.rpartition(".")[2].endswith("bias"):
        return "a bias, not a matrix of weights"
    if sum(size > 1 for size in info.shape) < 2:
        return "a vector: it has one dimension besides those of length 1"
    if len(info.shape) > _MOST_DIMENSIONS:
        return f"{len(info.shape)} dimensions: no known kind of layer"
    return ""


def embedding(info: TensorInfo, config: Mapping[str, Any]) -> bool:
    """Return True for a table that is looked up, False for a matrix that is multiplied.

    It is recognised by its own word (`wte`, `embed_tokens`, `position_embeddings`, `shared`; not `patch_embedding`,
    which multiplies), or by as many rows as the config has words, unless its word is one of an output (`lm_head`).
    """
    word = _word(info.name)
    if "patch" in word or (len(info.shape) > 3 and info.shape[0] != 1):
        return False
    if word in _EMBEDDINGS or _EMBEDDING.search(word):
        return True
    return len(info.shape) == 2 and info.shape[0] == config.get("vocab_size") and not _HEAD.search(word)


def is_stack(info: TensorInfo) -> bool:
    """Return True if a tensor of three dimensions is a stack of experts, False for a convolution over one dimension."""
    if len(info.shape) != 3:
        return False
    if _EXPERTS.search(info.name):
        return True
    return min(info.shape[1:]) > _STACK_SIDE and not _CONVOLUTION.search(info.name)


def _word(name: str) -> str:
    parts = name.split(".")
    return parts[-2] if len(parts) > 1 and parts[-1] == "weight" else parts[-1]


def _twin(info: TensorInfo, infos: Sequence[TensorInfo], config: Mapping[str, Any]) -> str:
    """Return the embedding that the model uses in place of this stored output head; "" for all other tensors."""
    if not is_declared_tied(config) or _word(info.name) not in _TIED_HEADS:
        return ""
    twins = (i.name for i in infos if i.shape == info.shape and i.name != info.name and embedding(i, config))
    return next(twins, "")


def is_declared_tied(config: Mapping[str, Any]) -> bool | None:
    """Return True or False as a config.json says it; None if it leaves the tying to the model's class."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        value = part.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def _quantised(info: TensorInfo, names: Collection[str]) -> str:
    """Return why a tensor is packed, or scaled by another one; "" if it holds plain weights."""
    stem = info.name.rpartition(".")[0]
    if _PARTS.search(info.name) or (_word(info.name) == "scales" and f"{stem}.qweight" in names):
        return f"part of a quantised weight ({info.dtype})"
    if info.dtype in _FLOATS:
        return ""
    marks = (*(f"{stem}.{mark}" for mark in _BESIDE), f"{info.name}_scale", f"{info.name}_scale_inv")
    is_packed = info.dtype in ("int8", "uint8") and info.name.endswith("weight")
    if is_packed or info.dtype.startswith(_SHORT_FLOATS) or any(mark in names for mark in marks):
        return f"quantised ({info.dtype})"
    return ""
