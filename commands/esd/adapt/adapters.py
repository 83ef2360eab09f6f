"""A base with a LoRA adapter merged, tensor by tensor as they are read. Decides nothing of which base it is.

What is read equals what peft's merge_and_unload leaves, bit for bit. A chain is a source of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..read.tensors import ModelError, TensorInfo, TensorSource
from . import lora
from .adapter_config import AdapterConfig
from .adapter_plan import Add, Change, make_plan
from .tied_weights import is_embedding, is_head, partners, says_tied


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter: what people call it, its settings, and the tensors of its file."""

    label: str
    config: AdapterConfig
    tensors: TensorSource


class MergedSource:
    """The tensors of `base` with `adapter` in them.

    Raises ModelError, stage merge, where the two do not fit together or the result could not be exact.
    """

    def __init__(self, base: TensorSource, adapter: Adapter) -> None:
        self._base = base
        self._adapter = adapter
        refuse_quantised(base.config, adapter.label)
        infos = list(base.infos())
        stored = adapter.tensors.infos()
        self._changes = make_plan(adapter.config, adapter.label, stored, infos, base.config)
        self._known = {info.name: info for info in infos}
        self._stored = {info.name: info for info in stored}
        self._follow_ties()

    @property
    def config(self) -> Mapping[str, Any]:
        return self._base.config

    @property
    def notes(self) -> Sequence[str]:
        added = sum(bool(change.adds) for change in self._changes.values())
        stored = sum(bool(change.stored) for change in self._changes.values())
        whole = f", {_tensors(stored)} replaced" if stored else ""
        return [*self._base.notes, f"adapter {self._adapter.label} merged into {_tensors(added)}{whole}"]

    def touched(self) -> set[str]:
        """The names of the tensors that no longer have the bits of the first base."""
        before = self._base.touched() if isinstance(self._base, MergedSource) else set()
        return before | set(self._changes)

    def infos(self) -> Sequence[TensorInfo]:
        """As in the base, with the adapter's shape where it replaces a tensor; what only the adapter has, last."""
        infos = [
            replace(info, shape=self._changes[info.name].shape) if info.name in self._changes else info
            for info in self._known.values()
        ]
        for name, change in self._changes.items():
            if name not in self._known:
                source = self._known[change.base] if change.base else self._stored[change.stored]
                infos.append(replace(source, name=name, shape=change.shape))
        return infos

    def read(self, name: str) -> torch.Tensor:
        change = self._changes.get(name)
        if change is None:
            return self._base.read(name)
        return self._merged(change)

    def read_part(self, name: str, part: int) -> torch.Tensor:
        """One part of a tensor along its first dimension; of what no adapter changed, as the base gives it."""
        read = getattr(self._base, "read_part", None)
        found: torch.Tensor = self.read(name)[part] if read is None or name in self._changes else read(name, part)
        return found

    def close(self) -> None:
        self._adapter.tensors.close()
        self._base.close()

    def _merged(self, change: Change) -> torch.Tensor:
        if not change.stored:
            weight = self._base.read(change.base)
        else:
            weight = self._adapter.tensors.read(change.stored)
            if change.base:
                weight = weight.to(getattr(torch, self._known[change.base].dtype))
        for add in change.adds:
            weight = self._with(weight, add)
        return weight

    def _with(self, weight: torch.Tensor, add: Add) -> torch.Tensor:
        read = self._adapter.tensors.read
        magnitude = read(add.magnitude) if add.magnitude else None
        return lora.merge(weight, add.kind, read(add.a), read(add.b), add.scale, magnitude)

    def _follow_ties(self) -> None:
        """Where the base stores embedding and head both though they are one, what changes one changes both."""
        if says_tied(self._base.config) is False:
            return
        for name in sorted(self._changes, key=is_head):
            change = self._changes[name]
            if change.copy or change.base != name or name not in self._known:
                continue
            for other in partners(name, self._known, self._known[name].shape):
                if is_embedding(other) == is_embedding(name):
                    continue
                if torch.equal(self._base.read(name), self._base.read(other)):
                    self._share(name, other)
                elif says_tied(self._base.config):
                    raise ModelError(
                        "merge",
                        f"adapter {self._adapter.label}: the base's config says that {name} and "
                        f"{other} are one weight, but they are stored with different values",
                    )

    def _share(self, name: str, other: str) -> None:
        change, theirs = self._changes[name], self._changes.get(other)
        if theirs is change or (theirs is not None and theirs.copy):
            return
        if theirs is not None:  # the embedding's come first, and what the head's name stores is loaded last
            change.adds += theirs.adds
            change.stored, change.shape = (
                (theirs.stored, theirs.shape) if theirs.stored else (change.stored, change.shape)
            )
        self._changes[other] = change


def refuse_quantised(config: Mapping[str, Any], label: str) -> None:
    """ModelError if a base with this config.json has no plain weights to which an adapter could be added."""
    settings = config.get("quantization_config")
    if settings:
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        raise ModelError(
            "merge",
            f"adapter {label}: its base is quantised ({method!s}); name the full-precision base in source_model",
        )


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"
