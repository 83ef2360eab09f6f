"""Merge a LoRA adapter into a base, tensor by tensor as they are read, with the bits of peft's merge_and_unload.

A chain of adapters is a source whose base is such a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..read.tensors import ModelError, TensorInfo, TensorSource
from . import lora
from .adapter_config import AdapterConfig
from .adapter_plan import AdapterPlan, Add, TensorChange
from .tied_weights import is_declared_tied, is_embedding, is_head, partners


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: its label for people, its settings, and the tensors of its file."""

    label: str
    config: AdapterConfig
    tensors: TensorSource


class MergedSource:
    """The tensors of `base` with `adapter` merged into them.

    Raises ModelError, stage merge, if the two do not fit together or the result could not be exact.
    """

    def __init__(self, base: TensorSource, adapter: Adapter) -> None:
        self.config = base.config
        self._base = base
        self._adapter = adapter
        refuse_quantised(base.config, adapter.label)
        infos = list(base.infos())
        stored = adapter.tensors.infos()
        self._changes = AdapterPlan(adapter.config, adapter.label, stored, infos, base.config).make()
        self._base_infos = {info.name: info for info in infos}
        self._stored_infos = {info.name: info for info in stored}
        self._follow_ties()

    @property
    def notes(self) -> Sequence[str]:
        added = sum(bool(change.adds) for change in self._changes.values())
        stored = sum(bool(change.stored) for change in self._changes.values())
        replaced = f", {_tensors(stored)} replaced" if stored else ""
        return [*self._base.notes, f"adapter {self._adapter.label} merged into {_tensors(added)}{replaced}"]

    def touched(self) -> set[str]:
        """Return the names of the tensors that an adapter changed; the others have the bits of the first base."""
        before = self._base.touched() if isinstance(self._base, MergedSource) else set()
        return before | set(self._changes)

    def infos(self) -> Sequence[TensorInfo]:
        """List the tensors as in the base, with the shapes of those that are replaced; new tensors come last."""
        infos = [
            replace(info, shape=self._changes[info.name].shape) if info.name in self._changes else info
            for info in self._base_infos.values()
        ]
        for name, change in self._changes.items():
            if name not in self._base_infos:
                origin = self._base_infos[change.base] if change.base else self._stored_infos[change.stored]
                infos.append(replace(origin, name=name, shape=change.shape))
        return infos

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        change = self._changes.get(name)
        if change is None:
            return self._base.read(name, part)
        merged = self._merge(change)
        return merged if part is None else merged[part]

    def close(self) -> None:
        self._adapter.tensors.close()
        self._base.close()

    def _merge(self, change: TensorChange) -> torch.Tensor:
        if not change.stored:
            weight = self._base.read(change.base)
        else:
            weight = self._adapter.tensors.read(change.stored)
            if change.base:
                weight = weight.to(getattr(torch, self._base_infos[change.base].dtype))
        for add in change.adds:
            weight = self._add(weight, add)
        return weight

    def _add(self, weight: torch.Tensor, add: Add) -> torch.Tensor:
        read = self._adapter.tensors.read
        magnitude = read(add.magnitude) if add.magnitude else None
        return lora.merge(weight, add.kind, read(add.a), read(add.b), add.scale, magnitude)

    def _follow_ties(self) -> None:
        """Apply a change to both embedding and head if the base stores one weight under both names."""
        if is_declared_tied(self._base.config) is False:
            return
        for name in sorted(self._changes, key=is_head):
            change = self._changes[name]
            if change.copy or change.base != name or name not in self._base_infos:
                continue
            for other in partners(name, self._base_infos, self._base_infos[name].shape):
                if is_embedding(other) == is_embedding(name):
                    continue
                if torch.equal(self._base.read(name), self._base.read(other)):
                    self._share(name, other)
                elif is_declared_tied(self._base.config):
                    raise ModelError(
                        "merge",
                        f"adapter {self._adapter.label}: the base's config says that {name} and {other} are one "
                        "weight, but they are stored with different values",
                    )

    def _share(self, name: str, other: str) -> None:
        change, theirs = self._changes[name], self._changes.get(other)
        if theirs is change or (theirs is not None and theirs.copy):
            return
        if theirs is not None:  # the embedding's come first, and what the head's name stores is loaded last
            change.adds += theirs.adds
            if theirs.stored:
                change.stored, change.shape = theirs.stored, theirs.shape
        self._changes[other] = change


def refuse_quantised(config: Mapping[str, Any], label: str) -> None:
    """Raise ModelError if a base with this config.json has no plain weights that an adapter could be added to."""
    settings = config.get("quantization_config")
    if settings:
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        raise ModelError(
            "merge",
            f"adapter {label}: its base is quantised ({method}); name the full-precision base in source_model",
        )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
