"""A model by its name -> the source of its tensors: resolved, fetched, and its adapters merged. Analyses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..adapt.adapter_config import parse_adapter_config
from ..adapt.adapters import Adapter, MergedSource, refuse_quantised
from ..read.sources import open_local
from ..read.tensors import TensorInfo, TensorSource
from .hub import Hub
from .locations import Places
from .resolve import adapter_weights, resolve


@dataclass(frozen=True, slots=True)
class Part:
    """A base or an adapter as it was loaded. `commit` is that of the hub, "" for what lies on this box anyway."""

    name: str
    path: Path
    commit: str = ""


class OpenedModel:
    """The tensors of a model, and what it was put together of: the base first. Close it to let go of its files."""

    def __init__(self, source: TensorSource, parts: Sequence[Part], notes: Sequence[str], hub: Hub) -> None:
        self._source = source
        self._hub = hub
        self.parts = tuple(parts)
        self.notes = (*notes, *source.notes)

    @property
    def config(self) -> Mapping[str, Any]:
        return self._source.config

    def infos(self) -> Sequence[TensorInfo]:
        return self._source.infos()

    def read(self, name: str) -> torch.Tensor:
        return self._source.read(name)

    def read_part(self, name: str, part: int) -> torch.Tensor:
        """One part of a tensor along its first dimension: an expert of a stack."""
        read = getattr(self._source, "read_part", None)
        found: torch.Tensor = self.read(name)[part] if read is None else read(name, part)
        return found

    def touched(self) -> set[str]:
        """The names of the tensors that an adapter changed; all others have the bits of the base."""
        return self._source.touched() if isinstance(self._source, MergedSource) else set()

    def close(self) -> None:
        self._source.close()
        self._hub.close()


def open_model(
    model: str,
    *,
    source_model: str = "",
    relation: str = "",
    revision: str = "",
    cache_dir: str = "",
    reserve_bytes: int = 0,
    drop_downloads: bool = False,
    endpoint: str | None = None,
) -> OpenedModel:
    """The model of one row of a list: a path on this box, or a name on the hub.

    Raises ModelError with the stage: resolve (what is it?), download, load (is it whole?), merge (can it be exact?).
    One with a true attribute `transient` may be over in a while.
    """
    hub = Hub(cache_dir=cache_dir, reserve_bytes=reserve_bytes, drop=drop_downloads, endpoint=endpoint)
    source: TensorSource | None = None
    try:
        places = Places(hub)
        plan = resolve(model, source=source_model, relation=relation, revision=revision, at=places)
        settings = [parse_adapter_config(places.look(ref).adapter_config or {}, ref.name) for ref in plan.adapters]
        for ref in plan.adapters[:1]:
            refuse_quantised(places.config(plan.base), ref.name)
        path, commit = places.fetch(plan.base)
        source = open_local(path)
        parts = [Part(plan.base.name, path, commit)]
        for ref, config in zip(plan.adapters, settings, strict=True):
            path, commit = places.fetch(ref)
            parts.append(Part(ref.name, path, commit))
            adapter = Adapter(ref.name, config, open_local(path / adapter_weights(places.look(ref).files)))
            try:
                source = MergedSource(source, adapter)
            except BaseException:
                adapter.tensors.close()
                raise
        return OpenedModel(source, parts, (*plan.notes, *hub.notes), hub)
    except BaseException:
        if source is not None:
            source.close()
        hub.close()
        raise
