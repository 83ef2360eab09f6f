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

    A stack is computed expert by expert: `compute` then gets a stack of one.
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

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        derived = self._derived.get(name)
        if derived is None:
            return self._source.read(name, rows)
        shape = derived.info.shape
        if rows is None or len(shape) == _MATRIX:
            whole = derived.compute(*map(self._source.read, derived.parts)).reshape(shape)
            return whole if rows is None else whole[rows]
        stacks = (self._read_experts(each, rows, shape[0]) for each in derived.parts)
        return derived.compute(*stacks).reshape(-1, *shape[1:])

    def _read_experts(self, name: str, experts: slice, of: int) -> torch.Tensor:
        """Read the slices of some experts of a part: of a stack, or rows of a matrix that holds all of them."""
        each, rest = divmod(next(iter(self._infos[name].shape), 0), of)
        if rest or not each:
            return self._source.read(name)
        return self._source.read(name, slice(experts.start * each, experts.stop * each))
