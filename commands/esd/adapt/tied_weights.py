"""Find the tensors of a model that may share one weight: the input embedding and the head. Reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..read.tensors import TensorInfo
from ..weights.tied import is_declared_tied

_HEADS = frozenset({"lm_head", "embed_out", "decoder", "output_projection"})
_EMBEDDINGS = frozenset({"wte", "embed_tokens", "embed_in", "word_embeddings", "shared", "tok_embeddings"})
_WITH_HEAD = ("CausalLM", "LMHead", "ConditionalGeneration")  # in the names of architectures


def leaf(name: str) -> str:
    """Return the name of a tensor's module without its path: `a.b.weight` -> `b`."""
    return name.rpartition(".")[0].rpartition(".")[2]


def is_head(name: str) -> bool:
    return leaf(name) in _HEADS


def is_embedding(name: str) -> bool:
    return leaf(name) in _EMBEDDINGS


def partners(name: str, infos: Mapping[str, TensorInfo], shape: tuple[int, ...]) -> list[str]:
    """Return the tensors of this shape that may share their weight with the embedding or head of this name."""
    if not is_head(name) and not is_embedding(name):
        return []
    return [
        other
        for other, info in infos.items()
        if other != name
        and other.endswith(".weight")
        and (is_embedding(other) or (is_head(other) and is_embedding(name)))
        and info.shape == shape
    ]


def unstored_head(embedding: str, infos: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> str:
    """Return the name of a head that shares this embedding and is not stored; "" if there is none."""
    names = config.get("architectures")
    named = isinstance(names, list) and any(part in str(name) for name in names for part in _WITH_HEAD)
    absent = not any(is_head(name) for name in infos)
    return (
        "lm_head.weight"
        if is_embedding(embedding) and named and absent and is_declared_tied(config) is not False
        else ""
    )
