"""Open the tensors of a model by its name or path: resolve it, fetch it, and merge its adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..adapt.adapter_config import parse_adapter_config
from ..adapt.adapters import Adapter, MergedSource, refuse_quantised
from ..read.sources import open_local
from ..read.tensors import ModelError, TensorSource
from .hub import Hub
from .locations import Locations
from .resolve import adapter_weights, resolve


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """A base or an adapter that was loaded. `commit` is its commit on the hub, "" for a path of this machine."""

    name: str
    commit: str = ""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The tensors of a model, its parts (the base first), and remarks on how it was resolved and fetched."""

    source: TensorSource
    parts: Sequence[LoadedPart]
    notes: Sequence[str]


@contextmanager
def open_model(
    model: str, hub: Hub, *, source_model: str = "", relation: str = "", revision: str = ""
) -> Iterator[OpenedModel]:
    """Open the model of one row of a list: a path of this machine, or a name on the hub.

    Raises ModelError at one of the stages resolve, download, load (is it complete?) and merge (can it be exact?).
    """
    with ExitStack() as opened:
        locations = Locations(hub)
        plan = resolve(model, locations, source=source_model, relation=relation, revision=revision)
        configs = [parse_adapter_config(locations.look(ref).adapter_config or {}, ref.name) for ref in plan.adapters]
        if plan.adapters:
            refuse_quantised(locations.config(plan.base), plan.adapters[0].name)
        path, commit = locations.fetch(plan.base)
        source = opened.enter_context(closing(_open(path, plan.base.name, commit)))
        parts = [LoadedPart(plan.base.name, commit)]
        for ref, config in zip(plan.adapters, configs, strict=True):
            path, commit = locations.fetch(ref)
            weights = path / adapter_weights(locations.look(ref).files)
            tensors = opened.enter_context(closing(_open(weights, ref.name, commit)))
            source = MergedSource(source, Adapter(ref.name, config, tensors))
            parts.append(LoadedPart(ref.name, commit))
        yield OpenedModel(source, parts, (*plan.notes, *hub.notes))


def _open(path: Path, name: str, commit: str) -> TensorSource:
    try:
        return open_local(path)
    except ModelError:
        if commit and not path.exists():  # --drop-downloads of another job
            problem = f"{name} was removed from the cache of the hub while it was opened"
            raise ModelError("download", problem, transient=True) from None
        raise
