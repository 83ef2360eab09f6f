"""Plan which tensors of the base an adapter changes, and how, from names and shapes. Reads no tensor.

A name that matches no tensor of the base, or two, is an error: the base must never pass for the adapted model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..read.tensors import ModelError, TensorInfo
from ..weights.layers import FLOATS
from ..weights.tied import is_declared_tied
from .adapter_config import AdapterConfig
from .lora import CONV1D, CONVOLUTION, EMBEDDING, LINEAR
from .other_adapters import problem
from .tied_weights import is_embedding, is_head, leaf, partners, unstored_head

_PREFIX = "base_model.model."
# The end of a name in an adapter's file -> the part of a change that it is, by the method of the adapter.
_PARTS = {
    "LORA": {
        **{"lora_A.weight": "a", "lora_B.weight": "b", "lora_embedding_A": "a", "lora_embedding_B": "b"},
        **{"lora_magnitude_vector": "magnitude", "lora_magnitude_vector.weight": "magnitude"},
    },
    "ADALORA": {name: name for name in ("lora_A", "lora_B", "lora_E")},
    "LOHA": {f"hada_{name}": f"hada_{name}" for name in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")},
    "LOKR": {f"lokr_{name}": f"lokr_{name}" for name in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")},
    "IA3": {"ia3_l": "ia3_l"},
}
_STRANGE = re.compile(
    r"(?:^|\.)(?:(?:lora|hada|lokr|ia3|oft|vera|boft)_\w+|modules_to_save|original_module|token_adapter|base_layer)(?:\.|$)"
)
_END = re.compile(r"\.((?:lora|hada|lokr|ia3)_[A-Za-z0-9_]+(?:\.weight)?)$")
# With bias="all", peft stores the bias of a module that is saved whole under its own name and under these too.
_SECOND_BIAS = re.compile(r"\.(modules_to_save|original_module)\.bias$")
_TASK_HEADS = frozenset({"score", "classifier", "qa_outputs"})  # a base may lack them: they come with the task
_LONGEST_NAME = 1000  # patterns are matched against it
_EXPERT = re.compile(r"\bexperts\.\d+\.")

# Families that store the layers of these names transposed, (in, out); the shape of a square one does not say it.
_CONV1D_TYPES = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder"})
_CONV1D_NAMES = frozenset({"c_attn", "q_attn", "c_proj", "c_fc"})


@dataclass(slots=True)
class ModuleChange:
    """The change of one module: the names of its tensors in the adapter's file by their parts, its kind, its factor."""

    method: str
    parts: dict[str, str] = field(default_factory=dict)
    kind: str = LINEAR
    scale: float = 1.0
    rank: int = 0


@dataclass(slots=True)
class TensorChange:
    """The recipe for one tensor: read `base`, or `stored` from the adapter's file, then apply `adds` in order.

    A `copy` is a module that was saved whole and shares its weight with no other.
    """

    shape: tuple[int, ...]
    base: str = ""
    stored: str = ""
    copy: bool = False
    adds: list[ModuleChange] = field(default_factory=list)


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


@dataclass
class AdapterPlan:
    """The changes that an adapter makes to a base, found by names and shapes."""

    config: AdapterConfig
    label: str
    stored: Mapping[str, TensorInfo]  # the tensors of the adapter's file by name
    base: Mapping[str, TensorInfo]
    base_config: Mapping[str, Any]
    changes: dict[str, TensorChange] = field(default_factory=dict)

    def make(self) -> dict[str, TensorChange]:
        """Return the changed tensors by their name in the merged model.

        Raises ModelError, stage merge, if adapter and base do not fit together.
        """
        modules: dict[str, ModuleChange] = {}
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

    def _sort(self, key: str, modules: dict[str, ModuleChange], whole: dict[str, str]) -> None:
        """Add a name of the adapter's file to the change of its module, or to the tensors that are stored whole."""
        if len(key) > _LONGEST_NAME or self.stored[key].dtype not in FLOATS:
            raise self.refuse(f"{key[:200]} in its file ({self.stored[key].dtype}) is no plain LoRA weight")
        name = key.removeprefix(_PREFIX)
        method = self.config.peft_type
        end = _END.search(name)
        if end and end[1] in _PARTS[method]:
            change = modules.setdefault(f"{name[: end.start()]}.weight", ModuleChange(method))
            if change.parts.setdefault(_PARTS[method][end[1]], key) != key:
                raise self.refuse(f"{key} is in its file twice")
            if end[1].startswith("lora_embedding"):
                change.kind = EMBEDDING
            return
        if _SECOND_BIAS.search(name):
            return
        name = name.replace(".base_layer.", ".")
        if _STRANGE.search(name):
            raise self.refuse(f"{key} in its file is no plain LoRA weight")
        if whole.setdefault(name, key) != key:
            raise self.refuse(f"{key} is in its file twice")

    def _find(self, name: str, shape: tuple[int, ...], *, may_be_new: bool = False) -> str:
        """Return the tensor of the base that this name means, itself or a tied partner of it; "" for a new one."""
        matches = suffix_matches(name, self.base)
        if not matches and is_declared_tied(self.base_config) is not False:
            matches = partners(name, self.base, shape)
        if len(matches) > 1:
            few = ", ".join(matches[:3])
            raise self.refuse(f"{name} matches {len(matches)} tensors of the base ({few}); which one is not clear")
        if not matches and not may_be_new:
            raise self.refuse(f"{name} matches no tensor of the base")
        return matches[0] if matches else ""

    def _replace(self, name: str, key: str) -> None:
        shape = self.stored[key].shape
        copy = self.config.saves(name.rpartition(".")[0])
        theirs = self._find(name, shape, may_be_new=copy and leaf(name) in _TASK_HEADS)
        if theirs and not _may_replace(shape, self.base[theirs].shape, name):
            raise self.refuse(f"{name} has the shape {shape}, but {theirs} of the base has {self.base[theirs].shape}")
        # A copy whose tensor is that of a tied partner was tied to it until now.
        target = name if copy and not suffix_matches(name, [theirs]) else theirs
        self.changes[target] = TensorChange(shape, base=theirs, stored=key, copy=copy)

    def _add(self, name: str, lora: ModuleChange) -> None:
        module = name.removesuffix(".weight")
        shapes = {part: self.stored[key].shape for part, key in lora.parts.items()}
        if lora.method == "LORA" and shapes.keys() != {"a", "b", *(["magnitude"] if self.config.use_dora else [])}:
            raise self.refuse(f"{module} lacks a part of its LoRA weights, or has a magnitude against use_dora")
        if _EXPERT.search(name):
            raise self.refuse(
                f"{module} is one of several experts; how these are rounded depends on the release of peft"
            )
        change = self._change_of(name, lora, _shape_of(lora.kind, shapes))
        rank = lora.rank = self.config.rank_of(module)
        lora.scale = self.config.scale_of(module)
        if lora.method != "LORA":
            self._check_other(name, lora, shapes, change.shape)
            change.adds.append(lora)
            return
        a, b = shapes["a"], shapes["b"]
        if a[:1] != (rank,):
            raise self.refuse(f"{module} has the rank {a[0] if a else 0}, but its settings say {rank}")
        if lora.kind != EMBEDDING:
            lora.kind = self._kind(name, a, b, change.shape)
        if not _fits(lora.kind, a, b, change.shape):
            raise self.refuse(f"{module}: {a} and {b} do not fit the shape {change.shape} of the base")
        change.adds.append(lora)

    def _change_of(self, name: str, lora: ModuleChange, shape: tuple[int, ...]) -> TensorChange:
        """Return the recipe for the tensor of the base that a module means; `shape` is that of a tied partner."""
        theirs = self._find(name, shape)
        info = self.base[theirs]
        if info.dtype not in FLOATS:
            raise self.refuse(f"{theirs} of the base is {info.dtype}; only plain floating point is merged")
        is_saved = theirs in self.changes and self.changes[theirs].copy
        target = name if is_saved else theirs  # tied to the saved one until now
        change = self.changes.setdefault(target, TensorChange(info.shape, base=theirs))
        is_embedded = [add.kind for add in change.adds] == [EMBEDDING]
        if (is_saved and suffix_matches(name, [theirs])) or (change.adds and not (is_embedded and is_head(name))):
            raise self.refuse(f"{theirs} is changed more than once, in an order that is not known")
        return change

    def _check_other(
        self, name: str, change: ModuleChange, shapes: Mapping[str, tuple[int, ...]], weight: tuple[int, ...]
    ) -> None:
        """Note the kind of a change that is no LoRA, and that of its bias. Raises ModelError if it does not fit."""
        change.kind = CONV1D if self._is_conv1d(name) else LINEAR
        if change.kind == CONV1D and change.method in ("LOHA", "LOKR"):
            raise self.refuse(f"{name} is transposed, and peft has no {change.method} for that")
        if why := problem(change.method, change.kind, shapes, weight, change.rank):
            raise self.refuse(f"{name}: {why}")
        bias = f"{name.removesuffix('.weight')}.bias"
        if change.method == "IA3" and shapes["ia3_l"][0] != 1 and (found := suffix_matches(bias, self.base)):
            scaled = TensorChange(self.base[found[0]].shape, base=found[0], adds=[change])
            self.changes[found[0]] = scaled

    def _kind(self, name: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> str:
        if len(a) > 2:
            return CONVOLUTION
        if self._is_conv1d(name):
            return CONV1D
        if self.base_config.get("model_type") or not _fits(CONV1D, a, b, shape):
            return LINEAR
        if _fits(LINEAR, a, b, shape):
            raise self.refuse(
                f"{name} is square, and no model_type in a config.json of the base says which way round it is"
            )
        return CONV1D

    def _is_conv1d(self, name: str) -> bool:
        return self.base_config.get("model_type") in _CONV1D_TYPES and leaf(name) in _CONV1D_NAMES

    def _untie(self) -> None:
        """Keep the base's weight for a head whose tied embedding was saved whole."""
        for name, change in list(self.changes.items()):
            head = unstored_head(name, self.base, self.base_config) if change.copy and change.base == name else ""
            if head:
                self.changes.setdefault(head, TensorChange(self.base[name].shape, base=name))


def _shape_of(kind: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of a weight that two factors change; () for other changes."""
    a, b = shapes.get("a", ()), shapes.get("b", ())
    return a[1:] + b[:1] if kind == EMBEDDING else b[:1] + a[1:]


def _fits(kind: str, a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return True if A and B make a change of this shape."""
    if kind == CONVOLUTION:
        unmergeable = len(shape) == 5 and shape[2:4] == (1, 1)  # peft takes it for a 1x1 kernel
        pointwise = b == (shape[0], a[0], *(1,) * (len(a) - 2))
        return 3 <= len(a) <= 5 and shape == b[:1] + a[1:] and pointwise and not unmergeable
    is_product = len(a) == len(b) == 2 and a[0] == b[1]
    return is_product and shape == (b[:1] + a[1:] if kind == LINEAR else a[1:] + b[:1])


def _may_replace(ours: tuple[int, ...], theirs: tuple[int, ...], name: str) -> bool:
    """Return True for equal shapes, or for an embedding or a head with another number of rows."""
    resized = is_head(name) or is_embedding(name) or leaf(name) in _TASK_HEADS
    return ours == theirs or (resized and len(ours) == len(theirs) and ours[1:] == theirs[1:])
