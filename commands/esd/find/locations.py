"""Where models lie: on this box under a path, or on the hub under a name. Decides only which of the two is meant."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ..read.tensors import ModelError
from .resolve import ADAPTER_CONFIG, Listing, Ref

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[\w][\w./+-]*", re.ASCII)
CONFIG = "config.json"

_LONGEST_NAME = 200
_LARGEST_CONFIG = 16 << 20  # bytes


class Store(Protocol):
    """The hub, as far as it is needed here."""

    def look(self, ref: Ref) -> Listing: ...

    def config(self, ref: Ref) -> Mapping[str, Any]: ...

    def fetch(self, ref: Ref) -> tuple[Path, str]:
        """Its weights and configs on this box: the directory, and the commit."""
        ...


class Places:
    """Paths of this box first, then the hub."""

    def __init__(self, hub: Store) -> None:
        self._hub = hub

    def look(self, ref: Ref) -> Listing:
        path = local_path(ref)
        return self._hub.look(ref) if path is None else look_at(path)

    def config(self, ref: Ref) -> Mapping[str, Any]:
        """Its config.json, before its weights are fetched; empty where there is none."""
        path = local_path(ref)
        if path is None:
            return self._hub.config(ref)
        config = (path if path.is_dir() else path.parent) / CONFIG
        return read_json(config) if config.exists() else {}

    def fetch(self, ref: Ref) -> tuple[Path, str]:
        """Where it lies now, and its commit on the hub; "" for what came from no hub."""
        path = local_path(ref)
        return self._hub.fetch(ref) if path is None else (path, "")


def local_path(ref: Ref) -> Path | None:
    """The path that is meant; None for a name on the hub. ModelError for what can be neither."""
    path = Path(ref.name).expanduser() if ref.name.startswith("~") else Path(ref.name)
    if ref.name and not ref.hub_only and os.path.exists(path):
        beside = path.is_file() and path.name.startswith("adapter_model.")
        return path.parent if beside else path
    if not _NAME.fullmatch(ref.name) or len(ref.name) > _LONGEST_NAME or ".." in ref.name or "--" in ref.name:
        raise ModelError("resolve", f"{ref.name!r} is no path on this machine and cannot be a name on the hub")
    if ref.revision and (not _REVISION.fullmatch(ref.revision) or ".." in ref.revision or len(ref.revision) > 200):
        raise ModelError("resolve", f"{ref.revision!r} cannot be a revision of {ref.name}")
    return None


def look_at(path: Path) -> Listing:
    """What a directory of this box holds; a file stands for itself."""
    try:
        if path.is_file():
            return Listing(str(path.resolve()), {path.name: path.stat().st_size}, local=True)
        with os.scandir(path) as entries:
            files: dict[str, int | None] = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        config = read_json(path / ADAPTER_CONFIG) if ADAPTER_CONFIG in files else None
    except OSError as error:
        raise ModelError("resolve", f"{path} cannot be read: {error.strerror}") from None
    return Listing(str(path.resolve()), files, config, local=True)


def read_json(path: Path, stage: str = "resolve") -> Mapping[str, Any]:
    """A JSON object in a file from others. ModelError for one that is none, or is far too large."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_CONFIG + 1)
        if len(data) > _LARGEST_CONFIG:
            raise ModelError(stage, f"{path.name} has more than {_LARGEST_CONFIG >> 20} MiB")
        found = json.loads(data)
    except (ValueError, RecursionError):
        what = "a Git LFS pointer" if data.startswith(b"version https://git-lfs") else "no JSON"
        raise ModelError(stage, f"{path.name} is {what}") from None
    except OSError as error:
        raise ModelError(stage, f"{path.name} cannot be read: {error.strerror}") from None
    if not isinstance(found, dict):
        raise ModelError(stage, f"{path.name} holds no JSON object")
    return found
