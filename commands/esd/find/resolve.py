"""Decide what to load for a row of a list: a base, and the adapters to merge into it.

It loads nothing: a `Repository` answers what lies under a name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpusched.esd.model_record import ADAPTER_RELATIONS

from ..read.tensors import ModelError
from ..read.weight_files import WEIGHTS, model_weights

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

_LONGEST_CHAIN = 8
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.(?:safetensors|bin)")
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

    Two names of the same place have the same `identity`.
    """

    identity: str
    files: Mapping[str, int | None]
    adapter_config: Mapping[str, Any] | None = None
    is_local: bool = False

    @property
    def holds_only_an_adapter(self) -> bool:
        return self.adapter_config is not None and not holds_model(self.files)


class Repository(Protocol):
    """The places where models lie."""

    def look(self, ref: Ref) -> ModelFiles:
        """List the files of a model. Raises ModelError if it does not exist or may not be read."""
        ...


@dataclass(frozen=True, slots=True)
class Resolution:
    """The base to load, then the adapters in the order in which they are merged."""

    base: Ref
    adapters: tuple[Ref, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(
    model: str, repository: Repository, *, source: str = "", relation: str = "", revision: str = ""
) -> Resolution:
    """Return what to load for one row of a list.

    `source` and `relation` are the row's base and its relation to it: only an adapter (also: lora, peft) is merged,
    any other model is loaded as it is. Raises ModelError, stage resolve, if the model has no weights, or if the base
    of an adapter is unknown or disputed.
    """
    ref = Ref(model, revision)
    listing = repository.look(ref)
    labelled = relation.strip().lower() in ADAPTER_RELATIONS
    is_whole = holds_model(listing.files)
    if listing.adapter_config is not None and (not is_whole or (labelled and adapter_weights(listing.files))):
        listed = source.strip() if source.strip() != model else ""
        return _AdapterChain(repository).follow(ref, listing, listed, trusted=labelled)
    if not is_whole:
        raise ModelError("resolve", _no_weights(model, listing.files))
    notes = []
    if labelled:
        notes.append(f"{model} is listed as {relation} but is a whole model: loaded as it is")
    if revision and listing.is_local:
        notes.append(f"{model} is a path: its revision {revision} is ignored")
    return Resolution(ref, notes=tuple(notes))


class _AdapterChain:
    """The way from an adapter to its base, through the adapters between."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.seen: list[str] = []  # the identities of the adapters
        self.notes: list[str] = []
        self.end = ""  # the identity of the base that the list names, if the chain has to lead to it

    def follow(self, ref: Ref, listing: ModelFiles, listed: str, *, trusted: bool) -> Resolution:
        """Return the chain of an adapter. `listed` is its base in the list.

        With `trusted` the list has precedence over the adapter's own config, without it the config.
        """
        adapters = [ref]
        self.seen.append(listing.identity)
        base = self._choose(ref, listing, listed, trusted=trusted)
        while True:
            there = self.repository.look(base)
            if there.identity in self.seen:
                loop = " on ".join([*self.seen[self.seen.index(there.identity) :], there.identity])
                raise ModelError("resolve", f"the bases of {ref.name} form a loop: {loop}")
            if not there.holds_only_an_adapter:
                break
            if len(adapters) == _LONGEST_CHAIN:
                raise ModelError("resolve", f"{ref.name}: more than {_LONGEST_CHAIN} adapters on each other")
            adapters.append(base)
            self.seen.append(there.identity)
            base = self._choose(base, there, "", trusted=False)
        if not holds_model(there.files):
            raise ModelError("resolve", f"base of {ref.name}: {_no_weights(base.name, there.files)}")
        if self.end and there.identity != self.end:
            raise ModelError(
                "resolve",
                f"the base of {ref.name} is disputed: the list says {listed}, its config {adapters[1].name}, an "
                f"adapter on {base.name}",
            )
        if not all(adapter_weights(self.repository.look(each).files) for each in adapters):
            raise ModelError("resolve", f"{ref.name} has no {' or '.join(ADAPTER_WEIGHTS)}")
        return Resolution(base, tuple(reversed(adapters)), tuple(self.notes))

    def _choose(self, ref: Ref, listing: ModelFiles, listed: str, *, trusted: bool) -> Ref:
        """Return the base of one adapter, by the list or by the adapter's config."""
        own, problem = self._own_base(ref, listing)
        if own is None and not listed:
            raise ModelError("resolve", f"base unresolved: {problem}; name the base in source_model")
        if own is None:
            return Ref(listed)
        if not listed or not trusted:
            return own
        if own.name == listed:
            return Ref(listed, own.revision)
        return self._choose_between(ref, Ref(listed), own)

    def _own_base(self, ref: Ref, listing: ModelFiles) -> tuple[Ref | None, str]:
        """Return the base that an adapter's own config names, or why it names none that can be used."""
        config = listing.adapter_config or {}
        name, revision = config.get("base_model_name_or_path"), config.get("revision")
        if not isinstance(name, str) or not name.strip():
            return None, f"the config of {ref.name} names none"
        if _PATH.match(name) and not listing.is_local:
            return None, f"the config of {ref.name} names {name[:200]}, a path on another machine"
        base = Ref(name, revision if isinstance(revision, str) else "", hub_only=not listing.is_local)
        if _PATH.match(name):
            try:
                self.repository.look(base)
            except ModelError:
                return None, f"the config of {ref.name} names {name[:200]}, which is not here"
        return base, ""

    def _choose_between(self, ref: Ref, listed: Ref, own: Ref) -> Ref:
        """Return the list's base, unless the config names an adapter: its chain has to lead to the list's base."""
        wanted = self.repository.look(listed)
        try:
            between = self.repository.look(own)
        except ModelError as error:
            if error.transient and not wanted.is_local:
                raise
            between = None
        if between is not None and between.identity == wanted.identity:
            return Ref(listed.name, own.revision)
        if between is not None and between.holds_only_an_adapter and between.identity not in self.seen:
            self.end = wanted.identity
            return own
        self.notes.append(
            f"warning: the list says that {ref.name} is on {listed.name}, its config says {own.name}; merged into "
            f"{listed.name}, as the list says"
        )
        return listed


# ---- the kinds of files ----------------------------------------------------------------------------


def holds_model(files: Collection[str]) -> bool:
    """Return True if there are weights of a whole model. Beside an adapter only files with the usual names count."""
    usual = [name for name in files if name in WEIGHTS or name.removesuffix(".index.json") in WEIGHTS]
    if usual or any(_SHARD.fullmatch(name) for name in files):
        return True
    return ADAPTER_CONFIG not in files and bool(model_weights(files))


def adapter_weights(files: Collection[str]) -> str:
    """Return the file with an adapter's tensors; an empty string if there is none."""
    return next((name for name in ADAPTER_WEIGHTS if name in files), "")


def _no_weights(name: str, files: Collection[str]) -> str:
    names = ", ".join(each[:40] for each in sorted(files)[:6]) or "nothing"
    return f"{name} has no weights that can be read (safetensors or .bin), only {names}"
