"""Read the name of a tensor: its own word, its block, its kind, and its place in the depth of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from gpusched.common.text import natural_key

Key = tuple[Any, ...]

_EMBEDDING = re.compile(
    r"embe?d(?!.*(proj|map|out|dense|linear|fc))|(^|_)emb(s|_|$)|^(wte|wpe|shared|codevectors|codebook|probe|latents|token_types)$"
    r"|^relative_attention_bias$|^relative_position_bias_table$|(^|_)tokens?$",
    re.IGNORECASE,
)
# Of a list of modules, the word before the number; but time_embed.0 and emb_layers.1 of diffusion models multiply.
_EMBEDDING_LIST = re.compile(r"embed_tokens|embeds_layers|(tok|word|token|position)_embeddings|codebooks?")
_LINEAR_EMBEDDER = re.compile(r"patch|(^|_)embedder$")
# Parameters that are not multiplied as matrices: of state space models, positions, rotations, scales and statistics.
_NO_LAYER = re.compile(
    r"A_log|rel_pos(_[hwt])?|freqs(_\w+)?|inv_freq|(cos|sin)_cached|relative_coords_table|attn_mask|pos_bias_[uv]|alibi"
    r"|time_(decay|first|faaaa|mix_\w|mix_(key|value|receptance|gate)|maa_\w)|scale_shift_table|running_(mean|var)"
    r"|mel_filters?|layer_?scale\w*|logit_scale|mean_image"
)
_HEAD = re.compile(r"lm_head|embed_out|output|output_projection|score|classifier|qa_outputs|head|fc")
_WORDS = ("weight", "kernel")  # the last part of a name that says nothing

# The kind of a layer, by the last words of its name; the first pattern that is found counts.
_PATTERNS = {
    "router": r"router(\.\w+)?|ffn_gate_inp|(moe|mlp|ffn|feed_forward|mixer)\.(gate|wg)",
    "qkv": r"(\w+_)?w?qkv(_\w+)?|c_attn|query_key_value|w_pack|in_proj_weight|att_proj",
    "kv": r"(\w+_)?kv(_\w+)?|key_value",
    "q": r"(\w+_)?(query|wq|q)(_[ab])?(_proj|_lin)?",
    "k": r"(\w+_)?(key|wk|k)(_proj|_lin)?",
    "v": r"(\w+_)?(value|wv|v)(_proj|_lin)?",
    "o": r"(\w+_)?o(_proj)?|out_lin|attn_out(put)?|.*att(n|ention)[^.]*\.(.*\.)?"
    r"(out_proj|dense|c_proj|wo|proj|to_out\.0|output)",
    "gate_up": r"gate_up_proj|gate_and_up_proj",
    "gate": r"gate_proj|w1|wi_0|ffn_gate(_\w+)?",
    "up": r"up_proj|w3|v1|c_fc|fc1|wi(_1)?|dense_h_to_4h|(.*\.)?intermediate[._]dense|ffn(_up\w*)?|lin(ear)?1|fc_in"
    r"|input_linear|ff_proj|ff\.layer_1|pwconv1",
    "down": r"down_proj|w2|(mlp|ffn)\.c_proj|fc2|wo|dense_4h_to_h|(.*\.)?output[._]dense|ffn_(down\w*|output)"
    r"|lin(ear)?2|fc_out|output_linear|ff_out|ff\.layer_2|pwconv2",
}
_KINDS = {kind: re.compile(rf"(^|\.)({pattern})$", re.IGNORECASE) for kind, pattern in _PATTERNS.items()}


def module_of(name: str) -> str:
    """Return the name of a tensor without its last part, if that says nothing: `a.b.weight` -> `a.b`."""
    stem, _, last = name.rpartition(".")
    return stem if stem and last in _WORDS else name


def word_of(name: str) -> str:
    """Return the own word of a tensor: `a.b.weight` and `a.b` -> `b`."""
    return module_of(name).rpartition(".")[2]


def is_embedding(name: str, shape: tuple[int, ...]) -> bool:
    """Return True for a table that is looked up, False for a matrix that is multiplied.

    By its word (`wte`, `embed_tokens`, `position_embeddings`; not `patch_embedding` or `x_embedder`, which multiply);
    in a list of tables, by the word before the number.
    """
    *path, word = module_of(name).split(".")
    if word.isdecimal() and path and _EMBEDDING_LIST.search(path[-1]):
        word = path[-1]
    if _LINEAR_EMBEDDER.search(word) or (len(shape) > 3 and shape[0] != 1):
        return False
    return bool(_EMBEDDING.search(word))


def is_no_layer(name: str) -> bool:
    """Return True for a parameter of two dimensions or more that is known not to be a matrix of weights."""
    return bool(_NO_LAYER.fullmatch(word_of(name)))


def is_head(name: str) -> bool:
    """Return True for the output head of a model, by its word."""
    return bool(_HEAD.fullmatch(word_of(name)))


def block_of(name: str) -> int | None:
    """Return the number of the block that a tensor belongs to: 3 of `model.layers.3.mlp.experts.7.w1`."""
    numbers = (part for part in re.split(r"[.\[\]]", name) if part.isdecimal())
    return next((int(number) for number in numbers), None)


def kind_of(name: str, *, convolution: bool = False) -> str:
    """Return the kind of a layer: q, k, v, qkv, o, gate, up, gate_up, down, router, conv, embedding, head, or other."""
    module = re.sub(r"\[\d+\]$", "", module_of(name))
    if convolution:
        return "conv"
    found = next((kind for kind, pattern in _KINDS.items() if pattern.search(module)), "")
    if found:
        return found
    return "embedding" if is_embedding(name, (2, 2)) else "head" if is_head(name) else "other"


def depth_order(names: Iterable[str]) -> Mapping[str, Key]:
    """Return a key for each name, so that blocks come in the order of their numbers: 2 before 10.

    At each level of the names, what differs in more than a number comes in the order of its first appearance.
    """
    places: dict[tuple[str, str], int] = {}
    keys: dict[str, Key] = {}
    for name in names:
        parts, key = name.split("."), []
        for depth, part in enumerate(parts):
            word, number = _sort_keys(part)
            sibling = (".".join(parts[:depth]), word)
            key.append((places.setdefault(sibling, len(places)), number))
        keys[name] = tuple(key)
    return keys


@cache
def _sort_keys(part: str) -> tuple[str, Key]:
    """Return a part of a name without its numbers, and its key in natural order."""
    return re.sub(r"[0-9]+", "#", part), natural_key(part)
