"""Look at models on this machine or on the hub, and fetch what is read of them, by huggingface_hub.

No code is fetched. The library's cache, HF_HOME, login and offline mode hold; its locks let one of several jobs fetch a
file while the others wait for it.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from gpusched.common.libraries import install_command

from ..read.json_file import read_json
from ..read.tensors import ModelError
from ..read.weight_files import choose_weights
from .hub_errors import as_model_error
from .resolve import ADAPTER_CONFIG, ModelFiles, Ref, adapter_weights, holds_model

_CONNECTIONS = 4
_TIMEOUT_S = 30
_NAME = re.compile(r"(?!.*(?:\.\.|--))\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)  # a folder may follow: acme/sd/unet
_REVISION = re.compile(r"(?!.*\.\.)\w[\w./+-]*", re.ASCII)
_LONGEST = 200  # characters of a name or a revision


class Hub:
    """One process's view of models: the commit of a name is settled once, so a repository may change meanwhile."""

    def __init__(
        self, *, cache_dir: str = "", reserve_bytes: int = 0, drop: bool = False, endpoint: str | None = None
    ) -> None:
        """`reserve_bytes` stay free on the disk of the cache. `drop`: `close` deletes the commits fetched here."""
        self._cache_dir = cache_dir
        self._endpoint = endpoint
        self._reserve = reserve_bytes
        self._drop = drop
        self._models: dict[Ref, ModelFiles] = {}
        self._fetched: set[str] = set()  # commits
        self.notes: list[str] = []

    @cached_property
    def _library(self) -> Any:
        """The library, loaded only for a model that does not lie on this machine."""
        try:
            import huggingface_hub
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError:
            problem = "the hub needs huggingface_hub, which is not installed; to install it"
            raise ModelError("download", f"{problem}: {install_command(['huggingface_hub'])}") from None
        if not sys.stderr.isatty():
            huggingface_hub.utils.disable_progress_bars()
        return huggingface_hub

    def look(self, ref: Ref) -> ModelFiles:
        """List the files at the top of a model, or in its folder, and read its adapter_config.json."""
        if ref not in self._models:
            path = local_path(ref)
            self._models[ref] = self._look(ref) if path is None else list_directory(path)
        return self._models[ref]

    def _look(self, ref: Ref) -> ModelFiles:
        snapshot = self._download(ref.name, ref.revision, ["config.json", ADAPTER_CONFIG])
        files = self._list(ref.name, snapshot)
        path = snapshot / _folder(ref.name)
        config = read_json(path / ADAPTER_CONFIG, "resolve") if ADAPTER_CONFIG in files else None
        return ModelFiles(f"{ref.name}@{snapshot.name[:12]}", files, config, path=path, commit=snapshot.name)

    def _list(self, name: str, snapshot: Path) -> Mapping[str, int | None]:
        """Return the sizes of the files in bytes; of the cached copy if the hub cannot be asked."""
        api = self._library.HfApi(endpoint=self._endpoint)
        try:
            info = api.model_info(_repository(name), revision=snapshot.name, files_metadata=True, timeout=_TIMEOUT_S)
        except Exception as error:
            failure = as_model_error(error, name)
            cached = list_directory(snapshot / _folder(name)).files
            if isinstance(error, self._library.errors.OfflineModeIsEnabled):
                return cached
            if not failure.transient or not (holds_model(cached) or adapter_weights(cached)):
                raise failure from None
            self.notes.append(f"warning: {failure.reason}; its cached commit {snapshot.name[:12]} is used")
            return cached
        sizes = {each.rfilename: each.size for each in info.siblings or ()}
        folder = _folder(name)
        return {os.path.basename(path): size for path, size in sizes.items() if os.path.dirname(path) == folder}

    def fetch(self, ref: Ref) -> Path:
        """Fetch the weights of a whole model; return its path on this machine."""
        model = self.look(ref)
        if not model.is_local:
            weights, _ = choose_weights(model.files, lambda name: self._read_index(ref, model, name), "download")
            self._fetch_files(ref, model, weights)
        return model.path

    def fetch_adapter(self, ref: Ref) -> Path:
        """Fetch the weights of an adapter; return the path of their file on this machine."""
        model = self.look(ref)
        file = adapter_weights(model.files)
        if not model.is_local:
            self._fetch_files(ref, model, [file])
        return model.path / file

    def _read_index(self, ref: Ref, model: ModelFiles, name: str) -> Mapping[str, Any]:
        return read_json(self._download(ref.name, model.commit, [name]) / _folder(ref.name) / name, "download")

    def _fetch_files(self, ref: Ref, model: ModelFiles, names: Sequence[str]) -> None:
        needed = sum(model.files[name] or 0 for name in names if not (model.path / name).exists())
        if needed:
            self._check_space(ref.name, model.path, needed)
            self._fetched.add(model.commit)
        self._download(ref.name, model.commit, names)

    def _download(self, name: str, revision: str, files: Sequence[str]) -> Path:
        """Fetch files of the folder that are not in the cache yet; return the directory of the commit."""
        download = self._library.snapshot_download
        try:
            snapshot = download(
                _repository(name),
                revision=revision or None,
                cache_dir=self._cache_dir or None,
                endpoint=self._endpoint,
                allow_patterns=[glob.escape(os.path.join(_folder(name), file)) for file in files],
                max_workers=_CONNECTIONS,
            )
        except Exception as error:
            raise as_model_error(error, name) from None
        return Path(snapshot)

    def _check_space(self, name: str, snapshot: Path, needed: int) -> None:
        """Raise ModelError if a download would leave less than the reserve on the disk of the cache."""
        left = shutil.disk_usage(snapshot.parents[1]).free - needed
        if left < self._reserve:
            problem = (
                f"{needed >> 20} MiB to fetch, which would leave {max(0, left) >> 20} MiB of the disk of its cache"
            )
            limit = f"{self._reserve >> 20} MiB are to stay free (--disk-reserve)"
            raise ModelError("download", f"{name} has {problem}; {limit}")

    def close(self) -> None:
        """With `drop`, delete the commits of which weights were fetched here."""
        if self._drop and self._fetched:
            with suppress(OSError):  # the files that are left only take space
                cache = self._library.scan_cache_dir(self._cache_dir or None)
                cache.delete_revisions(*self._fetched).execute()


def _repository(name: str) -> str:
    """Return the name of a repository on the hub without the folder in it."""
    return "/".join(name.split("/")[:2])


def _folder(name: str) -> str:
    """Return the folder that a name on the hub means, "" for the top: `acme/sd/unet` -> `unet`."""
    return "/".join(name.split("/")[2:])


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
