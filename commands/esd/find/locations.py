"""Tell a path on this machine from a name on the hub, and list the files of either."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..read.json_file import read_config, read_json
from ..read.tensors import ModelError
from .hub import Hub
from .resolve import ADAPTER_CONFIG, ModelFiles, Ref

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[\w][\w./+-]*", re.ASCII)
_LONGEST = 200  # characters of a name or a revision


class Locations:
    """The paths of this machine first, then the hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def look(self, ref: Ref) -> ModelFiles:
        path = local_path(ref)
        return self._hub.look(ref) if path is None else list_directory(path)

    def config(self, ref: Ref) -> Mapping[str, Any]:
        """Return the config.json of a model before its weights are fetched; empty if there is none."""
        path = local_path(ref)
        if path is None:
            return self._hub.config(ref)
        return read_config(path if path.is_dir() else path.parent, "resolve")

    def fetch(self, ref: Ref) -> tuple[Path, str]:
        """Return the path of a model on this machine, and its commit on the hub ("" if it is from no hub)."""
        path = local_path(ref)
        return self._hub.fetch(ref) if path is None else (path, "")


def local_path(ref: Ref) -> Path | None:
    """Return the path that is meant; None for a name on the hub. Raises ModelError for a text that can be neither."""
    path = Path(ref.name).expanduser() if ref.name.startswith("~") else Path(ref.name)
    if ref.name and not ref.hub_only and os.path.exists(path):
        is_adapter_file = path.is_file() and path.name.startswith("adapter_model.")
        return path.parent if is_adapter_file else path
    if not _NAME.fullmatch(ref.name) or len(ref.name) > _LONGEST or ".." in ref.name or "--" in ref.name:
        raise ModelError("resolve", f"{ref.name!r} is no path on this machine and cannot be a name on the hub")
    if ref.revision and (not _REVISION.fullmatch(ref.revision) or ".." in ref.revision or len(ref.revision) > _LONGEST):
        raise ModelError("resolve", f"{ref.revision!r} cannot be a revision of {ref.name}")
    return None


def list_directory(path: Path) -> ModelFiles:
    """List the files of a directory, or a file alone."""
    try:
        if path.is_file():
            return ModelFiles(str(path.resolve()), {path.name: path.stat().st_size}, is_local=True)
        with os.scandir(path) as entries:
            files: dict[str, int | None] = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except OSError as error:
        raise ModelError("resolve", f"{path} cannot be read: {error.strerror}") from None
    config = read_json(path / ADAPTER_CONFIG, "resolve") if ADAPTER_CONFIG in files else None
    return ModelFiles(str(path.resolve()), files, config, is_local=True)
