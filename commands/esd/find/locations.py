"""Tell a path on this machine from a name on the hub, and list the files of a path."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..read.json_file import read_json
from ..read.tensors import ModelError
from .resolve import ADAPTER_CONFIG, ModelFiles, Ref

_NAME = re.compile(r"(?!.*(?:\.\.|--))\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]*", re.ASCII)
_LONGEST = 200  # characters of a name or a revision


def local_path(ref: Ref) -> Path | None:
    """Return the path that is meant; None for a name on the hub. Raises ModelError for a text that can be neither."""
    path = Path(os.path.expanduser(ref.name))
    if ref.name and not ref.hub_only and os.path.exists(path):
        is_adapter_file = path.is_file() and path.name.startswith("adapter_model.")
        return path.parent if is_adapter_file else path
    if not _NAME.fullmatch(ref.name) or len(ref.name) > _LONGEST:
        raise ModelError("resolve", f"{ref.name!r} is no path on this machine and cannot be a name on the hub")
    if ref.revision and (not _REVISION.fullmatch(ref.revision) or len(ref.revision) > _LONGEST):
        raise ModelError("resolve", f"{ref.revision!r} cannot be a revision of {ref.name}")
    return None


def list_directory(path: Path) -> ModelFiles:
    """List the files of a directory, or a file alone."""
    try:
        entries = list(path.iterdir()) if path.is_dir() else [path]
        files: dict[str, int | None] = {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
    except OSError as error:
        raise ModelError("resolve", f"{path} cannot be read: {error.strerror}") from None
    config = read_json(path / ADAPTER_CONFIG, "resolve") if ADAPTER_CONFIG in files else None
    return ModelFiles(str(path.resolve()), files, config, is_local=True, path=path)
