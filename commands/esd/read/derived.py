"""Weights that are computed from several stored tensors when they are read: dequantised, scaled, recombined, split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .tensors import TensorInfo, TensorSource

_MATRIX = 2  # dimensions of what is computed as a whole; a stack is computed expert by expert

Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Derived:
    """A weight that stands for the stored tensors `parts`, and its computation from them in their order.

    A stack is computed expert by expert: `compute` then gets the slices of one expert.
    """

    info: TensorInfo
    parts: tuple[str, ...]
    compute: Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The stored tensors of a model, as those see them who look for derived weights."""

    infos: Mapping[str, TensorInfo]
    config: Mapping[str, Any]
    read: Read

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is none of this name."""
        return self.infos[name].shape if name in self.infos else None

    def ending(self, suffix: str) -> Iterator[tuple[str, TensorInfo]]:
        """Yield the tensors whose name ends like this, each with the rest of its name."""
        for name, info in self.infos.items():
            if name.endswith(suffix):
                yield name.removesuffix(suffix), info


Finder = Callable[[StoredTensors], Iterator[Derived]]


class DerivedSource:
    """A source in which derived weights take the place of their parts."""

    def __init__(self, source: TensorSource, finders: Sequence[Finder]) -> None:
        self.config = source.config
        self.embeddings: Collection[str] = getattr(source, "embeddings", frozenset())
        self.shared: Mapping[str, str] = getattr(source, "shared", {})
        self._source = source
        self._infos = {info.name: info for info in source.infos()}
        stored = StoredTensors(self._infos, source.config, source.read)
        self._derived: dict[str, Derived] = {}
        for find in finders:
            for derived in find(stored):
                self._derived.setdefault(derived.info.name, derived)
        self._first = {derived.parts[0]: derived for derived in self._derived.values()}
        self._parts = {part for derived in self._derived.values() for part in derived.parts}

    @property
    def notes(self) -> Sequence[str]:
        return self._source.notes

    def infos(self) -> Sequence[TensorInfo]:
        return [
            self._first[name].info if name in self._first else info
            for name, info in self._infos.items()
            if name in self._first or name not in self._parts
        ]

    def read(self, name: str, part: int | None = None, parts: int = 0) -> torch.Tensor:
        derived = self._derived.get(name)
        if derived is None:
            return self._source.read(name, part, parts)
        if part is None or parts or len(derived.info.shape) == _MATRIX:
            whole = derived.compute(*map(self._source.read, derived.parts)).reshape(derived.info.shape)
            return whole if part is None else whole.chunk(parts)[part] if parts else whole[part]
        return derived.compute(*(self._read_expert(each, part, derived.info.shape[0]) for each in derived.parts))

    def _read_expert(self, name: str, expert: int, experts: int) -> torch.Tensor:
        """Read the slice of one expert of a part: one of a stack, or some rows of a matrix that holds all of them."""
        shape = self._infos[name].shape
        if not shape or shape[0] % experts:
            return self._source.read(name)
        return self._source.read(name, expert, 0 if shape[0] == experts else experts)

    def close(self) -> None:
        self._source.close()
