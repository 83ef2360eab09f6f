"""Open the tensors of a model by its name or path: resolve it, fetch it, and merge its adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from ..adapt.adapter_config import parse_adapter_config
from ..adapt.adapters import Adapter, MergedSource, refuse_quantised
from ..adapt.change import ChangeSource
from ..dequantise.plain_weights import plain_weights
from ..read.json_file import read_config
from ..read.sources import open_local
from ..read.tensors import ModelError, TensorSource
from ..read.weight_files import files_of_model
from .hub import Hub
from .resolve import resolve


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The tensors of a model, its parts, and remarks on how it was resolved and fetched.

    `commits`: the base, then its adapters, each with its commit on the hub, "" for a path of this machine. `files`: of
    those of this machine, what was read.
    """

    source: TensorSource
    commits: Mapping[str, str]
    notes: Sequence[str]
    files: Sequence[str] = ()


@contextmanager
def open_model(
    model: str, hub: Hub, *, source_model: str = "", relation: str = "", revision: str = "", delta: bool = False
) -> Iterator[OpenedModel]:
    """Open the model of one row of a list: a path of this machine, or a name on the hub.

    With `delta`, its tensors are the change against the base of an adapter, or against `source_model`.
    Raises ModelError at one of the stages resolve, download, load (is it complete?) and merge (can it be exact?).
    """
    with ExitStack() as opened:
        plan = resolve(model, hub.look, source=source_model, relation=relation, revision=revision)
        configs = [parse_adapter_config(hub.look(ref).adapter_config or {}, ref.name) for ref in plan.adapters]
        if plan.adapters:
            path = hub.look(plan.base).path
            base_config = read_config(path.parent if path.is_file() else path, "resolve")
            refuse_quantised(base_config, plan.adapters[0].name)
        source = plain_weights(opened.enter_context(closing(open_local(hub.fetch(plan.base)))))
        base, merged = source, []
        for ref, config in zip(plan.adapters, configs, strict=True):
            tensors = opened.enter_context(closing(open_local(hub.fetch_adapter(ref))))
            source = MergedSource(source, Adapter(ref.name, config, tensors))
            merged.append(source)
        listings = [hub.look(ref) for ref in (plan.base, *plan.adapters)]
        files = [str(path) for listing in listings if listing.is_local for path in files_of_model(listing.path)]
        if delta and merged:
            source = ChangeSource(source, base, plan.base.name, merged)
        elif delta:
            if not source_model:
                raise ModelError("resolve", "--delta compares it with its base, and its source_model names none")
            other = opened.enter_context(open_model(source_model, hub))
            source = ChangeSource(source, other.source, source_model)
            files += other.files
        commits = {ref.name: hub.look(ref).commit for ref in (plan.base, *plan.adapters)}
        yield OpenedModel(source, commits, (*plan.notes, *hub.notes), files)
