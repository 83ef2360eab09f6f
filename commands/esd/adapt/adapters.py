"""Merge an adapter into a base, tensor by tensor as they are read, with the bits of peft's merge_and_unload.

A chain of adapters is a source whose base is such a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ..dequantise import METHODS
from ..read.tensors import MERGE_FIRST, ModelError, TensorInfo, TensorSource
from ..weights.packed import quantisation
from ..weights.tied import is_declared_tied
from . import lora, other_adapters
from .adapter_config import AdapterConfig
from .adapter_plan import AdapterPlan, TensorChange
from .tied_weights import is_embedding, partners


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its label for people, its settings, and the tensors of its file."""

    label: str
    config: AdapterConfig
    tensors: TensorSource


class MergedSource:
    """The tensors of `base` with `adapter` merged into them.

    Raises ModelError, stage merge, if the two do not fit together or
    the result could not be exact.
    """

    def __init__(self, base: TensorSource, adapter: Adapter) -> None:
        self.config = base.config
        self._base = base
        self._adapter = adapter
        self._base_infos = {info.name: info for info in base.infos()}
        self._stored_infos = {info.name: info for info in adapter.tensors.infos()}
        plan = AdapterPlan(adapter.config, adapter.label, self._stored_infos, self._base_infos, base.config)
        self.changes = plan.make()
        self._refuse_a_weight_of_two_names()

    @property
    def notes(self) -> Sequence[str]:
        noun = "tensor" if len(self.changes) == 1 else "tensors"
        note = f"adapter {self._adapter.label} merged into {len(self.changes)} {noun}"
        idle = f"warning: adapter {self._adapter.label} changes nothing: the factors of all its changes are zero"
        return [*self._base.notes, note, *([idle] if self._is_idle else [])]

    @cached_property
    def _is_idle(self) -> bool:
        """True for an adapter that was never trained: it has factors alone, and a zero one in each pair."""
        if any(change.stored for change in self.changes.values()):
            return False
        read = self._adapter.tensors.read
        adds = [add for change in self.changes.values() for add in change.adds]
        return all(
            add.parts.keys() == {"a", "b"} and not all(bool(read(key).any()) for key in add.parts.values())
            for add in adds
        )

    def infos(self) -> Sequence[TensorInfo]:
        """List the tensors as in the base, with the shapes of those that are replaced; new tensors come last."""
        infos = [
            replace(info, shape=self.changes[info.name].shape) if info.name in self.changes else info
            for info in self._base_infos.values()
        ]
        for name, change in self.changes.items():
            if name not in self._base_infos:
                origin = self._base_infos[change.base] if change.base else self._stored_infos[change.stored]
                infos.append(replace(origin, name=name, shape=change.shape))
        return infos

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        if name not in self.changes:
            return self._base.read(name, rows)
        merged = self._merge(self.changes[name])
        return merged if rows is None else merged[rows]

    def read_factor(self, key: str) -> torch.Tensor:
        """Read a tensor of the adapter's file."""
        return self._adapter.tensors.read(key)

    def _merge(self, change: TensorChange) -> torch.Tensor:
        read = self._adapter.tensors.read
        weight = read(change.stored) if change.stored else self._base.read(change.base)
        if change.base:
            weight = weight.to(getattr(torch, self._base_infos[change.base].dtype))
        for add in change.adds:
            parts = {part: lora.operand(read(key), weight) for part, key in add.parts.items()}
            if add.method == "LORA":
                weight = lora.merge(weight, add.kind, parts["a"], parts["b"], add.scale, parts.get("magnitude"))
                continue
            weight = other_adapters.merge(weight, add.method, add.kind, parts, add.scale, add.rank)
        return weight

    def _refuse_a_weight_of_two_names(self) -> None:
        """Raise ModelError for a change of a weight that the base stores twice, as its embedding and as its head."""
        tied = is_declared_tied(self._base.config)
        for name, change in self.changes.items():
            if tied is False or change.copy or change.base != name:
                continue
            for other in partners(name, self._base_infos, self._base_infos[name].shape):
                is_pair = is_embedding(other) != is_embedding(name)
                if is_pair and (tied or torch.equal(self._base.read(name), self._base.read(other))):
                    problem = f"the base stores the weight {name} as {other} too, and whether both change is not known"
                    raise ModelError("merge", f"adapter {self._adapter.label}: {problem}; {MERGE_FIRST}")


def refuse_quantised(config: Mapping[str, Any], label: str) -> None:
    """Raise ModelError if a base with this config.json is packed in a way that is not dequantised."""
    settings = quantisation(config)
    method = settings.get("quant_method")
    if settings and method is not None and method not in METHODS:
        remedy = "name the full-precision base in source_model"
        raise ModelError("merge", f"adapter {label}: its base is quantised ({method}); {remedy}")
