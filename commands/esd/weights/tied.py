"""Find the tensors that share the weight of an embedding. Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..read.tensors import TensorInfo


def is_declared_tied(config: Mapping[str, Any]) -> bool | None:
    """Return True or False as a config.json says it; None if it leaves the tying to the model's class."""
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        value = part.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def tied_tensors(
    infos: Sequence[TensorInfo],
    embeddings: Sequence[TensorInfo],
    config: Mapping[str, Any],
    is_same: Callable[[str, str], bool],
) -> dict[str, str]:
    """Return a reason for each tensor that is the weight of an embedding once more.

    `is_same` compares contents: a stored head that differs is a layer, whatever the config says of it. Where no
    embedding is stored, the head of a model that ties both is the embedding.
    """
    declared = is_declared_tied(config)
    others = [info for info in infos if info not in embeddings and len(info.shape) == 2]
    if not embeddings:
        return {
            info.name: "tied to the embedding, which is stored under this name only"
            for info in others
            if declared and info.name.endswith("lm_head.weight")
        }
    reasons = {}
    for info in others if declared is not False else ():
        for table in embeddings:
            if table.shape == info.shape and is_same(info.name, table.name):
                reasons[info.name] = f"tied to {table.name}"
                break
    return reasons
