"""Decide what to load for a row of a list: a base, and the adapters to merge into it.

It loads nothing: a function `look` lists the files that lie under a name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.esd.model_record import ADAPTER_RELATIONS

from ..read.tensors import ModelError
from ..read.weight_files import WEIGHTS, model_weights, no_weights

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

_PATH = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|.*/.*/|.*\\", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ref:
    """A model by its name on the hub or by its path, at a revision. `hub_only`: the name is not a path."""

    name: str
    revision: str = ""
    hub_only: bool = False


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model by name, with their sizes in bytes where these are known, and its adapter_config.json.

    Two names of the same place have the same `identity`. `path`: where its files lie or are fetched to, at `commit`.
    """

    identity: str
    files: Mapping[str, int | None]
    adapter_config: Mapping[str, Any] | None = None
    is_local: bool = False
    path: Path = Path()
    commit: str = ""

    @property
    def holds_only_an_adapter(self) -> bool:
        return self.adapter_config is not None and not holds_model(self.files)


Look = Callable[[Ref], ModelFiles]  # raises ModelError for a model that does not exist, or may not be read


@dataclass(frozen=True, slots=True)
class Resolution:
    """The base to load, then the adapters in the order in which they are merged."""

    base: Ref
    adapters: tuple[Ref, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(model: str, look: Look, *, source: str = "", relation: str = "", revision: str = "") -> Resolution:
    """Return what to load for one row of a list.

    `source` and `relation` are the row's base and its relation to it: only an adapter (also: lora, peft) is merged,
    any other model is loaded as it is. Raises ModelError, stage resolve, if the model has no weights, or if the base
    of an adapter is unknown or disputed.
    """
    ref = Ref(model, revision)
    listing = look(ref)
    labelled = relation.strip().lower() in ADAPTER_RELATIONS
    is_whole = holds_model(listing.files)
    if listing.adapter_config is not None and (not is_whole or (labelled and adapter_weights(listing.files))):
        listed = source.strip() if source.strip() != model else ""
        return _follow(ref, listing, look, listed=listed, trusted=labelled)
    if not is_whole:
        raise ModelError("resolve", no_weights(model, listing.files))
    notes = []
    if labelled:
        notes.append(f"{model} is listed as {relation} but is a whole model: loaded as it is")
    if revision and listing.is_local:
        notes.append(f"{model} is a path: its revision {revision} is ignored")
    return Resolution(ref, notes=tuple(notes))


def _follow(ref: Ref, adapter: ModelFiles, look: Look, *, listed: str, trusted: bool) -> Resolution:
    """Return the chain from an adapter to its base. `listed` is its base in the list.

    With `trusted` the list has precedence over the adapter's own config, without it the config.
    """
    adapters: list[Ref] = []
    seen: list[str] = []
    notes: list[str] = []
    base, there = ref, adapter
    while there.holds_only_an_adapter or not adapters:
        adapters.insert(0, base)
        seen.append(there.identity)
        own = _own_base(base, there, look, needed=not listed)
        if listed and (trusted or own is None):
            base = _choose(ref, Ref(listed), own, look, notes)
        elif own is not None:
            base = own
        listed = ""
        there = look(base)
        if there.identity in seen:
            loop = " on ".join([*seen[seen.index(there.identity) :], there.identity])
            raise ModelError("resolve", f"the bases of {ref.name} form a loop: {loop}")
    if not holds_model(there.files):
        raise ModelError("resolve", f"base of {ref.name}: {no_weights(base.name, there.files)}")
    for each in adapters:
        if not adapter_weights(look(each).files):
            raise ModelError("resolve", f"{each.name} has no {' or '.join(ADAPTER_WEIGHTS)}")
    return Resolution(base, tuple(adapters), tuple(notes))


def _own_base(ref: Ref, adapter: ModelFiles, look: Look, *, needed: bool) -> Ref | None:
    """Return the base that an adapter's own config names. Raises ModelError if it is `needed` and cannot be used."""
    config = adapter.adapter_config or {}
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    problem = ""
    if not isinstance(name, str) or not name.strip():
        problem = "names none"
    elif _PATH.match(name) and not (adapter.is_local and os.path.exists(os.path.expanduser(name))):
        problem = f"names {name[:200]}, a path on another machine"
    else:
        return Ref(name, revision if isinstance(revision, str) else "", hub_only=not adapter.is_local)
    if needed:
        reason = f"base unresolved: the config of {ref.name} {problem}; name the base in source_model"
        raise ModelError("resolve", reason)
    return None


def _choose(ref: Ref, listed: Ref, own: Ref | None, look: Look, notes: list[str]) -> Ref:
    """Return the list's base. Raises ModelError if the config names an adapter instead."""
    if own is None:
        return listed
    if own.name == listed.name:
        return Ref(listed.name, own.revision)
    try:
        is_chain = own.name != ref.name and look(own).holds_only_an_adapter
    except ModelError as error:
        if error.transient:
            raise
        is_chain = False
    if is_chain:
        problem = f"the list says {listed.name}, its config the adapter {own.name}"
        raise ModelError("resolve", f"the base of {ref.name} is disputed: {problem}; leave source_model empty")
    notes.append(
        f"warning: the list says that {ref.name} is on {listed.name}, its config says {own.name}; merged into "
        f"{listed.name}, as the list says"
    )
    return listed


# ---- the kinds of files ----------------------------------------------------------------------------


def holds_model(files: Collection[str]) -> bool:
    """Return True if there are weights of a whole model. Beside an adapter only files with the usual names count."""
    if any(name.removesuffix(".index.json") in WEIGHTS for name in files):
        return True
    return ADAPTER_CONFIG not in files and bool(model_weights(files))


def adapter_weights(files: Collection[str]) -> str:
    """Return the file with an adapter's tensors; an empty string if there is none."""
    return next((name for name in ADAPTER_WEIGHTS if name in files), "")
