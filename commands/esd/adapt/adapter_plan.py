"""Plan which tensors of the base an adapter changes, and how, from names and shapes. Reads no tensor.

A name that matches no tensor of the base, or two, is an error: the base must never pass for the adapted model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..read.tensors import ModelError, TensorInfo
from .adapter_config import AdapterConfig
from .lora import CONV1D, CONVOLUTION, EMBEDDING, LINEAR
from .tied_weights import is_declared_tied, is_embedding, is_head, leaf, partners, unstored_head

_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<linear>[AB])\.weight|lora_embedding_(?P<embedding>[AB])"
    r"|(?P<magnitude>lora_magnitude_vector)(?:\.weight)?)"
)
_STRANGE = re.compile(r"(?:^|\.)(?:lora_\w+|modules_to_save|original_module|token_adapter|base_layer)(?:\.|$)")
_TASK_HEADS = frozenset({"score", "classifier", "qa_outputs"})  # a base may lack them: they come with the task
_LONGEST_NAME = 1000  # patterns are matched against it
_EXPERT = re.compile(r"\bexperts\.\d+\.")
_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})

# Families that store the layers of these names transposed, (in, out); the shape of a square one does not say it.
_CONV1D_TYPES = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder"})
_CONV1D_NAMES = frozenset({"c_attn", "q_attn", "c_proj", "c_fc"})


@dataclass(frozen=True, slots=True)
class Add:
    """A low-rank change: its kind, the names of its tensors in the adapter's file, and its factor."""

    kind: str
    a: str
    b: str
    scale: float
    magnitude: str = ""


@dataclass(slots=True)
class TensorChange:
    """The recipe for one tensor: read `base`, or `stored` from the adapter's file, then apply `adds` in order.

    A `copy` is a module that was saved whole and shares its weight with no other.
    """

    shape: tuple[int, ...]
    base: str = ""
    stored: str = ""
    copy: bool = False
    adds: list[Add] = field(default_factory=list)


@dataclass(slots=True)
class _Parts:
    """The names of the LoRA tensors of one module."""

    embedding: bool = False
    a: str = ""
    b: str = ""
    magnitude: str = ""


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


class AdapterPlan:
    """The changes that an adapter makes to a base, found by names and shapes."""

    def __init__(
        self,
        config: AdapterConfig,
        label: str,
        stored: Sequence[TensorInfo],
        base: Sequence[TensorInfo],
        base_config: Mapping[str, Any],
    ) -> None:
        """`stored`: the tensors of the adapter's file. `base`: those of the base."""
        self.config = config
        self.label = label
        self.stored = {info.name: info for info in stored}
        self.base = {info.name: info for info in base}
        self.base_config = base_config
        self.changes: dict[str, TensorChange] = {}

    def make(self) -> dict[str, TensorChange]:
        """Return the changed tensors by their name in the merged model.

        Raises ModelError, stage merge, if adapter and base do not fit together.
        """
        modules: dict[str, _Parts] = {}
        whole: dict[str, str] = {}
        for key in self.stored:
            self._sort(key, modules, whole)
        # Embedding before head, as in every model: of a tied pair the last one that is loaded or added counts last.
        for name in sorted(whole, key=is_head):
            self._replace(name, whole[name])
        for name in sorted(modules, key=is_head):
            self._add(name, modules[name])
        if not self.changes:
            raise self.refuse("its file holds no weights")
        self._untie()
        return self.changes

    def refuse(self, reason: str) -> ModelError:
        return ModelError("merge", f"adapter {self.label}: {reason}")

    def _sort(self, key: str, modules: dict[str, _Parts], whole: dict[str, str]) -> None:
        """Add a name of the adapter's file to the LoRA parts of its module, or to the tensors that are stored whole."""
        if len(key) > _LONGEST_NAME:
            raise self.refuse(f"a name in its file has {len(key)} characters")
        if not self.stored[key].dtype.startswith(("float", "bfloat")):
            raise self.refuse(f"{key} in its file is {self.stored[key].dtype}, not floating point")
        name = key.removeprefix(_PREFIX)
        match = _PART.fullmatch(name)
        if match is None:
            name = name.replace(".base_layer.", ".")
            if _STRANGE.search(name):
                raise self.refuse(f"{key} in its file is no plain LoRA weight")
            if whole.setdefault(name, key) != key:
                raise self.refuse(f"{key} is in its file twice")
            return
        parts = modules.setdefault(f"{match['module']}.weight", _Parts())
        slot = "magnitude" if match["magnitude"] else (match["linear"] or match["embedding"]).lower()
        if getattr(parts, slot):
            raise self.refuse(f"{key} is in its file twice")
        setattr(parts, slot, key)
        parts.embedding = parts.embedding or bool(match["embedding"])

    def _find(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the tensor of the base that this name means, itself or a tied partner of it; "" for none."""
        matches = suffix_matches(name, self.base)
        if not matches and is_declared_tied(self.base_config) is not False:
            matches = partners(name, self.base, shape)
        if len(matches) > 1:
            few = ", ".join(matches[:3])
            raise self.refuse(f"{name} matches {len(matches)} tensors of the base ({few}); which one is not clear")
        return matches[0] if matches else ""

    def _replace(self, name: str, key: str) -> None:
        shape = self.stored[key].shape
        copy = self.config.saves(name.rpartition(".")[0])
        target = self._find(name, shape)
        if not target and not (copy and leaf(name) in _TASK_HEADS):
            raise self.refuse(f"{name} matches no tensor of the base")
        if target and not _may_replace(shape, self.base[target].shape, name):
            raise self.refuse(f"{name} has the shape {shape}, but {target} of the base has {self.base[target].shape}")
        theirs = target
        if copy and not suffix_matches(name, [target]):
            target = name  # tied to that until now
        self.changes[target] = TensorChange(shape, base=theirs, stored=key, copy=copy)

    def _add(self, name: str, parts: _Parts) -> None:
        where = name.removesuffix(".weight")
        if not parts.a or not parts.b:
            raise self.refuse(f"{where} has only half of its LoRA weights")
        if bool(parts.magnitude) != self.config.dora:
            raise self.refuse(
                f"use_dora is {self.config.dora}, but {where} has {'a' if parts.magnitude else 'no'} magnitude"
            )
        if _EXPERT.search(name):
            raise self.refuse(
                f"{where} is one of several experts; how these are rounded depends on the release of peft"
            )
        a, b = self.stored[parts.a].shape, self.stored[parts.b].shape
        theirs = self._find(name, a[1:] + b[:1] if parts.embedding else b[:1] + a[1:])
        if not theirs:
            raise self.refuse(f"{where} matches no tensor of the base")
        info = self.base[theirs]
        if info.dtype not in _FLOATS:
            raise self.refuse(f"{theirs} of the base is {info.dtype}; only plain floating point is merged")
        target, own = theirs, bool(suffix_matches(name, [theirs]))
        if theirs in self.changes and self.changes[theirs].copy:
            if own:
                raise self.refuse(f"{where} has LoRA weights and is in modules_to_save as well")
            target = name  # tied to that until now
        change = self.changes.setdefault(target, TensorChange(info.shape, base=theirs))
        embedded = [add.kind for add in change.adds] == [EMBEDDING]
        if change.adds and not (embedded and is_head(name)):
            raise self.refuse(f"{theirs} is changed more than once, in an order that is not known")
        module = name.removesuffix(".weight")
        rank = self.config.rank_of(module)
        if a[:1] != (rank,):
            raise self.refuse(f"{where} has the rank {a[0] if a else 0}, but its settings say {rank}")
        kind = EMBEDDING if parts.embedding else self._kind(name, a, b, change.shape)
        if not _fits(kind, a, b, change.shape):
            what = "stacked experts of the base" if len(change.shape) == 3 and len(a) == 2 else "the base"
            raise self.refuse(f"{where}: {a} and {b} do not fit the shape {change.shape} of {what}")
        change.adds.append(Add(kind, parts.a, parts.b, self.config.scale_of(module), parts.magnitude))

    def _kind(self, name: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> str:
        if len(a) > 2:
            return CONVOLUTION
        model_type = self.base_config.get("model_type")
        if model_type in _CONV1D_TYPES and leaf(name) in _CONV1D_NAMES:
            return CONV1D
        if model_type or not _fits(CONV1D, a, b, shape):
            return LINEAR
        if _fits(LINEAR, a, b, shape):
            raise self.refuse(
                f"{name} is square, and no model_type in a config.json of the base says which way round it is"
            )
        return CONV1D

    def _untie(self) -> None:
        """Keep the base's weight for a head whose tied embedding was saved whole."""
        for name, change in list(self.changes.items()):
            if change.copy and change.base == name:
                head = unstored_head(name, self.base, self.base_config)
                if head:
                    self.changes.setdefault(head, TensorChange(self.base[name].shape, base=name))


def _fits(kind: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if A and B make a change of this shape."""
    if kind == CONVOLUTION:
        unmergeable = len(shape) == 5 and shape[2:4] == (1, 1)  # peft takes it for a 1x1 kernel
        pointwise = b == (shape[0], a[0], *(1,) * (len(a) - 2))
        return 3 <= len(a) <= 5 and shape == b[:1] + a[1:] and pointwise and not unmergeable
    if len(a) != 2 or len(b) != 2 or len(shape) != 2 or a[0] != b[1]:
        return False
    if kind == EMBEDDING:
        return shape == (a[1], b[0])
    return shape == ((b[0], a[1]) if kind == LINEAR else (a[1], b[0]))


def _may_replace(ours: tuple[int, ...], theirs: tuple[int, ...], name: str) -> bool:
    """Return True for equal shapes, or for an embedding or a head with another number of rows."""
    resized = is_head(name) or is_embedding(name) or leaf(name) in _TASK_HEADS
    return ours == theirs or (resized and len(ours) == len(theirs) and ours[1:] == theirs[1:])
