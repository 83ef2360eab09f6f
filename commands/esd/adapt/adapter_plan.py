"""Plan which tensors of the base an adapter changes, and how, from names and shapes. Reads no tensor.

A name that matches no tensor of the base, or two, is an error: the base must never pass for the adapted model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..read.tensors import ModelError, TensorInfo
from .adapter_config import AdapterConfig
from .lora import CONV1D, EMBEDDING, LINEAR

_PREFIX = "base_model.model."
# The end of a name in an adapter's file, after ".lora_" -> the field of Lora that it belongs to.
_PARTS = {"A.weight": "a", "B.weight": "b", "embedding_A": "a", "embedding_B": "b"}
_STRANGE = re.compile(r"(?:^|\.)(?:lora_\w+|modules_to_save|original_module|token_adapter|base_layer)(?:\.|$)")
_LONGEST_NAME = 1000  # patterns are matched against it
_EXPERT = re.compile(r"\bexperts\.\d+\.")
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})

_HEADS = frozenset({"lm_head", "embed_out", "decoder", "output_projection"})
_TASK_HEADS = frozenset({"score", "classifier", "qa_outputs"})
_EMBEDDINGS = frozenset({"wte", "embed_tokens", "embed_in", "word_embeddings", "shared", "tok_embeddings"})

# Families that store the layers of these names transposed, (in, out); the shape of a square one does not say it.
_CONV1D_TYPES = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder"})
_CONV1D_NAMES = frozenset({"c_attn", "q_attn", "c_proj", "c_fc"})


@dataclass(slots=True)
class Lora:
    """The low-rank change of one module: the names of its tensors in the adapter's file, its kind, and its factor."""

    a: str = ""
    b: str = ""
    kind: str = LINEAR
    scale: float = 1.0


@dataclass(slots=True)
class TensorChange:
    """The recipe for one tensor: read `base`, or `stored` from the adapter's file, then apply `add`."""

    shape: tuple[int, ...]
    base: str = ""
    stored: str = ""
    add: Lora | None = None


def leaf(name: str) -> str:
    """Return the name of a tensor's module without its path: `a.b.weight` -> `b`."""
    return name.rpartition(".")[0].rpartition(".")[2]


def is_head(name: str) -> bool:
    return leaf(name) in _HEADS


def is_embedding(name: str) -> bool:
    return leaf(name) in _EMBEDDINGS


def suffix_matches(name: str, names: Collection[str]) -> list[str]:
    """Return `name` if it is in `names`; else the names that differ by a leading part without a layer's number."""
    if name in names:
        return [name]
    matches = []
    for other in names:
        longer, shorter = (other, name) if len(other) > len(name) else (name, other)
        if longer.endswith("." + shorter) and not re.search(r"\d", longer[: -len(shorter)]):
            matches.append(other)
    return matches


@dataclass(slots=True)
class AdapterPlan:
    """The changes that an adapter makes to a base, found by names and shapes.

    `stored`: the tensors of the adapter's file by name. `base`: those of the base.
    """

    config: AdapterConfig
    label: str
    stored: Mapping[str, TensorInfo]
    base: Mapping[str, TensorInfo]
    base_config: Mapping[str, Any]
    changes: dict[str, TensorChange] = field(default_factory=dict)

    def make(self) -> dict[str, TensorChange]:
        """Return the changed tensors by their name in the merged model.

        Raises ModelError, stage merge, if adapter and base do not fit together.
        """
        modules: dict[str, Lora] = {}
        whole: dict[str, str] = {}
        for key in self.stored:
            self._sort(key, modules, whole)
        for name, key in whole.items():
            self._replace(name, key)
        for name, lora in modules.items():
            self._add(name, lora)
        if not self.changes:
            raise self.refuse("its file holds no weights")
        return self.changes

    def refuse(self, reason: str) -> ModelError:
        return ModelError("merge", f"adapter {self.label}: {reason}")

    def _sort(self, key: str, modules: dict[str, Lora], whole: dict[str, str]) -> None:
        """Add a name of the adapter's file to the LoRA of its module, or to the tensors that are stored whole."""
        if len(key) > _LONGEST_NAME or self.stored[key].dtype not in _FLOATS:
            raise self.refuse(f"{key[:200]} in its file ({self.stored[key].dtype}) is no plain LoRA weight")
        name = key.removeprefix(_PREFIX)
        module, _, part = name.rpartition(".lora_")
        if part in _PARTS:
            lora = modules.setdefault(f"{module}.weight", Lora())
            if getattr(lora, _PARTS[part]):
                raise self.refuse(f"{key} is in its file twice")
            setattr(lora, _PARTS[part], key)
            if part.startswith("embedding"):
                lora.kind = EMBEDDING
            return
        name = name.replace(".base_layer.", ".")
        if _STRANGE.search(name):
            raise self.refuse(f"{key} in its file is no plain LoRA weight")
        if whole.setdefault(name, key) != key:
            raise self.refuse(f"{key} is in its file twice")

    def _find(self, name: str, *, may_be_new: bool = False) -> str:
        """Return the tensor of the base that this name means; "" for a new one."""
        matches = suffix_matches(name, self.base)
        if len(matches) > 1:
            few = ", ".join(matches[:3])
            raise self.refuse(f"{name} matches {len(matches)} tensors of the base ({few}); which one is not clear")
        if not matches and not may_be_new:
            raise self.refuse(f"{name} matches no tensor of the base")
        return matches[0] if matches else ""

    def _replace(self, name: str, key: str) -> None:
        shape = self.stored[key].shape
        is_output = is_head(name) or leaf(name) in _TASK_HEADS  # a base may lack it
        theirs = self._find(name, may_be_new=is_output)
        if theirs and shape != self.base[theirs].shape:
            is_resized = is_output or is_embedding(name)  # more or fewer rows
            if not is_resized or shape[1:] != self.base[theirs].shape[1:]:
                raise self.refuse(
                    f"{name} has the shape {shape}, but {theirs} of the base has {self.base[theirs].shape}"
                )
        # A head that was tied until now has the type of the embedding.
        origin = theirs or (next(filter(is_embedding, self.base), "") if is_head(name) else "")
        self.changes[theirs or name] = TensorChange(shape, base=origin, stored=key)

    def _add(self, name: str, lora: Lora) -> None:
        module = name.removesuffix(".weight")
        if not lora.a or not lora.b:
            raise self.refuse(f"{module} lacks a part of its LoRA weights")
        if _EXPERT.search(name):
            raise self.refuse(
                f"{module} is one of several experts; how these are rounded depends on the release of peft"
            )
        theirs = self._find(name)
        info = self.base[theirs]
        if info.dtype not in _FLOATS:
            raise self.refuse(f"{theirs} of the base is {info.dtype}; only plain floating point is merged")
        change = self.changes.setdefault(theirs, TensorChange(info.shape, base=theirs))
        if change.add:
            raise self.refuse(f"{theirs} is changed more than once, in an order that is not known")
        a, b = self.stored[lora.a].shape, self.stored[lora.b].shape
        rank = self.config.rank_of(module)
        if a[:1] != (rank,):
            raise self.refuse(f"{module} has the rank {a[0] if a else 0}, but its settings say {rank}")
        if leaf(name) in _CONV1D_NAMES and lora.kind == LINEAR:
            model_type = self.base_config.get("model_type")
            if not model_type:
                raise self.refuse(f"no model_type in a config.json of the base says which way round {name} is stored")
            lora.kind = CONV1D if model_type in _CONV1D_TYPES else LINEAR
        product = b[:1] + a[1:] if lora.kind == LINEAR else a[1:] + b[:1]
        if len(a) != 2 or b[1:] != a[:1] or product != change.shape:
            raise self.refuse(f"{module}: {a} and {b} do not fit the shape {change.shape} of the base")
        lora.scale = self.config.scale_of(module)
        change.add = lora
