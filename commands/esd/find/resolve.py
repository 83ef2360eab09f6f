"""The name of a model and what a list says of it -> what is to be loaded: a base, and the adapters to merge into it.

Decides only: what lies where is asked of a `Repository`. Nothing is loaded here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpusched.esd.model_record import ADAPTER_RELATIONS

from ..read.tensors import ModelError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_LONGEST_CHAIN = 8
_SHARD = re.compile(r".+-\d{5}-of-\d{5}\.(?:safetensors|bin)")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# What training leaves beside the weights, in the same formats.
_BESIDE = re.compile(r"(?:adapter_model|training_args|optimizer|scheduler|scaler|rng_state|random_states).*")
_PATH = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|.*/.*/|.*\\", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ref:
    """A model by its name on the hub, or by its path, at a revision. `hub_only`: no path is meant."""

    name: str
    revision: str = ""
    hub_only: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies under a name: its files at the top, by size where that is known, and its adapter_config.json.

    `identity` is the same for all names of the same place.
    """

    identity: str
    files: Mapping[str, int | None]
    adapter_config: Mapping[str, Any] | None = None
    local: bool = False


class Repository(Protocol):
    """Where models lie."""

    def look(self, ref: Ref) -> Listing:
        """ModelError if there is no such model, or none that may be looked at."""
        ...


@dataclass(frozen=True, slots=True)
class Resolution:
    """What to load: the base, then the adapters in the order in which they are merged."""

    base: Ref
    adapters: tuple[Ref, ...] = ()
    notes: tuple[str, ...] = ()


def resolve(model: str, *, source: str = "", relation: str = "", revision: str = "", at: Repository) -> Resolution:
    """What to load for a row of a list.

    `relation` says what the model is to `source`: only an adapter (also: lora, peft) is merged, all else is loaded as
    it is. Raises ModelError, stage resolve, for what is no model, or an adapter whose base is not known.
    """
    ref = Ref(model, revision)
    listing = at.look(ref)
    labelled = relation.strip().lower() in ADAPTER_RELATIONS
    whole, adapter = holds_model(listing.files), listing.adapter_config is not None
    if adapter and (not whole or (labelled and adapter_weights(listing.files))):
        given = source.strip() if source.strip() != model else ""
        return _Chain(at).of_adapter(ref, listing, given, trusted=labelled)
    if not whole:
        raise ModelError("resolve", _nothing(model, listing.files))
    notes = []
    if labelled:
        notes.append(f"{model} is listed as {relation} but is a whole model: loaded as it is")
    if revision and listing.local:
        notes.append(f"{model} is a path: its revision {revision} is not looked for")
    return Resolution(ref, notes=tuple(notes))


class _Chain:
    """Follows an adapter to its base, through the adapters between."""

    def __init__(self, at: Repository) -> None:
        self.at = at
        self.seen: list[str] = []
        self.notes: list[str] = []

    def of_adapter(self, ref: Ref, listing: Listing, given: str = "", *, trusted: bool = True) -> Resolution:
        """`given` is the base that the list names; where it is not `trusted`, the adapter's own word goes first."""
        found = [ref]
        base, there = self._base_of(ref, listing, given, trusted=trusted)
        while _only_adapter(there):
            if len(found) == _LONGEST_CHAIN:
                raise ModelError("resolve", f"{ref.name}: more than {_LONGEST_CHAIN} adapters on each other")
            found.append(base)
            base, there = self._base_of(base, there)
        if not holds_model(there.files):
            raise ModelError("resolve", f"base of {ref.name}: {_nothing(base.name, there.files)}")
        if not all(adapter_weights(self.at.look(each).files) for each in found):
            raise ModelError("resolve", f"{ref.name} has no {' or '.join(ADAPTER_WEIGHTS)}")
        return Resolution(base, tuple(reversed(found)), tuple(self.notes))

    def _base_of(self, ref: Ref, listing: Listing, given: str = "", *, trusted: bool = True) -> tuple[Ref, Listing]:
        if listing.identity in self.seen:
            raise ModelError("resolve", f"the bases of {ref.name} form a loop: {self._story(listing.identity)}")
        self.seen.append(listing.identity)
        told, why_not = self._told(ref, listing)
        if given and (trusted or told is None):
            if told is None:
                base = Ref(given)
            elif told.name == given:
                base = Ref(given, told.revision)
            else:
                return self._disputed(ref, Ref(given), told)
        elif told:
            base = told
        else:
            raise ModelError("resolve", f"base unresolved: {why_not}; name the base in source_model")
        there = self.at.look(base)
        if there.identity in self.seen:
            raise ModelError("resolve", f"the bases of {ref.name} form a loop: {self._story(there.identity)}")
        return base, there

    def _told(self, ref: Ref, listing: Listing) -> tuple[Ref | None, str]:
        """The base that an adapter's own config names, or why that is none."""
        config = listing.adapter_config or {}
        name, revision = config.get("base_model_name_or_path"), config.get("revision")
        if not isinstance(name, str) or not name.strip():
            return None, f"the config of {ref.name} names none"
        if _PATH.match(name) and not listing.local:
            return None, f"the config of {ref.name} names {name}, a path on another machine"
        told = Ref(name, revision if isinstance(revision, str) else "", hub_only=not listing.local)
        if _PATH.match(name):
            try:
                self.at.look(told)
            except ModelError:
                return None, f"the config of {ref.name} names {name}, which is not here"
        return told, ""

    def _disputed(self, ref: Ref, given: Ref, told: Ref) -> tuple[Ref, Listing]:
        """List and config name different bases. The list counts, unless it means the end of a chain."""
        there = self.at.look(given)
        try:
            between = self.at.look(told)
        except ModelError as error:
            if getattr(error, "transient", False) and not there.local:
                raise
            between = None
        if between is not None and between.identity == there.identity:
            return Ref(given.name, told.revision), there
        if between is not None and between.identity not in self.seen and _only_adapter(between):
            end = _Chain(self.at).of_adapter(told, between).base
            if self.at.look(end).identity == there.identity:
                return told, between
            raise ModelError(
                "resolve",
                f"the list says that {ref.name} is on {given.name}, its config that it is on "
                f"{told.name}, an adapter on {end.name}; which is meant is not clear",
            )
        self.notes.append(
            f"warning: the list says that {ref.name} is on {given.name}, its config says "
            f"{told.name}; merged into {given.name}, as the list says"
        )
        return given, there

    def _story(self, last: str) -> str:
        return " on ".join(each for each in [*self.seen[self.seen.index(last) :], last])


# ---- what files are --------------------------------------------------------------------------------


def holds_model(files: Collection[str]) -> bool:
    """Are there weights of a whole model? Beside an adapter's, only those with the usual names count."""
    usual = [name for name in files if name in WEIGHTS or name.removesuffix(".index.json") in WEIGHTS]
    if usual or any(_SHARD.fullmatch(name) for name in files):
        return True
    return ADAPTER_CONFIG not in files and bool(model_weights(files))


def _only_adapter(listing: Listing) -> bool:
    return listing.adapter_config is not None and not holds_model(listing.files)


def model_weights(files: Collection[str]) -> list[str]:
    """The files to load: an index alone stands for the shards that it names. Empty if there are none."""
    for name in WEIGHTS:
        for found in (f"{name}.index.json", name):
            if found in files:
                return [found]
    for suffixes in ((".safetensors",), _PICKLES):
        others = sorted(name for name in files if name.endswith(suffixes) and not _BESIDE.fullmatch(name))
        if others:
            return others
    return []


def adapter_weights(files: Collection[str]) -> str:
    """The file with an adapter's tensors; "" if there is none."""
    return next((name for name in ADAPTER_WEIGHTS if name in files), "")


def _nothing(name: str, files: Collection[str]) -> str:
    held = ", ".join(each for each in sorted(files)[:6]) or "nothing"
    return f"{name} has no weights that can be read (safetensors or .bin), only {held}"
