"""Look at repositories of the hub and fetch their weights and configs into its cache, by huggingface_hub.

It fetches no code and no file that is not read. The library's own cache, HF_HOME, login and offline mode hold; its
locks let one of several jobs fetch a file while the others wait for it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..read.json_file import LARGEST_JSON_BYTES, read_json
from ..read.tensors import ModelError
from ..read.weight_files import model_weights
from .hub_errors import as_model_error
from .resolve import ADAPTER_CONFIG, ModelFiles, Ref, adapter_weights, holds_model

CONFIG = "config.json"

_CONNECTIONS = 4
_TIMEOUT_S = 30
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Hub:
    """One process's view of the hub: the commit of a name is settled once, so a repository may change meanwhile."""

    def __init__(
        self, *, cache_dir: str = "", reserve_bytes: int = 0, drop: bool = False, endpoint: str | None = None
    ) -> None:
        """`reserve_bytes` stay free on the disk of the cache. `drop`: `close` deletes the commits fetched here."""
        self._cache_dir = cache_dir
        self._endpoint = endpoint
        self._reserve = reserve_bytes
        self._drop = drop
        self._looked_at: dict[Ref, tuple[ModelFiles, str]] = {}
        self._new: set[tuple[str, str]] = set()  # names and commits that were not in the cache before
        self.notes: list[str] = []

    @cached_property
    def _library(self) -> Any:
        """The library, loaded only for a model that does not lie on this machine."""
        try:
            import huggingface_hub
            import huggingface_hub.constants
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError:
            raise ModelError(
                "download", "the hub needs huggingface_hub, which is not installed: pip install 'gpusched-lab[esd]'"
            ) from None
        if not sys.stderr.isatty():
            huggingface_hub.utils.disable_progress_bars()
        return huggingface_hub

    @cached_property
    def _cache(self) -> Path:
        return Path(self._cache_dir or self._library.constants.HF_HUB_CACHE).expanduser()

    @property
    def _is_offline(self) -> bool:
        return bool(self._library.constants.HF_HUB_OFFLINE)

    # ---- the files of a repository ----

    def look(self, ref: Ref) -> ModelFiles:
        """List the files at the top of a repository, and read its adapter_config.json."""
        return self._look(ref)[0]

    def _look(self, ref: Ref) -> tuple[ModelFiles, str]:
        """Return the files and the commit."""
        if ref not in self._looked_at:
            files, commit = self._list(ref)
            config = None
            if ADAPTER_CONFIG in files:
                config = read_json(self._get(ref, commit, files, [ADAPTER_CONFIG])[0], "resolve")
            self._looked_at[ref] = ModelFiles(f"{ref.name}@{commit[:12]}", files, config), commit
        return self._looked_at[ref]

    def _list(self, ref: Ref) -> tuple[Mapping[str, int | None], str]:
        """Return the sizes of the files in bytes and the commit; of the cached copy if the hub cannot be asked."""
        if self._is_offline:
            snapshot = self._cached(ref.name, ref.revision)
            if snapshot is None:
                at = f" at the revision {ref.revision}" if ref.revision else ""
                raise ModelError(
                    "download", f"{ref.name}{at} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"
                )
            return _files(snapshot), snapshot.name
        try:
            api = self._library.HfApi(endpoint=self._endpoint)
            info = api.model_info(ref.name, revision=ref.revision or None, files_metadata=True, timeout=_TIMEOUT_S)
        except Exception as error:
            failure = as_model_error(error, ref.name)
            snapshot = self._cached(ref.name, ref.revision) if failure.transient else None
            files = _files(snapshot) if snapshot else {}
            if snapshot is None or not (holds_model(files) or adapter_weights(files)):
                raise failure from None
            self.notes.append(
                f"warning: {failure.reason}; its cached commit {snapshot.name[:12]} is used, which may be an old one"
            )
            return files, snapshot.name
        if not isinstance(info.sha, str) or not _COMMIT.fullmatch(info.sha):
            raise ModelError("download", f"{ref.name}: the hub gave no commit id for it")
        return {each.rfilename: each.size for each in info.siblings or () if "/" not in each.rfilename}, info.sha

    def _cached(self, name: str, revision: str) -> Path | None:
        """Return the directory of a revision in the cache; None if nothing of it is there."""
        try:
            snapshot = self._library.snapshot_download(
                name,
                revision=revision or None,
                cache_dir=self._cache,
                local_files_only=True,
                allow_patterns=[],  # a part of the files will do
            )
        except self._library.errors.LocalEntryNotFoundError:
            return None
        return Path(snapshot)

    # ---- downloads ----

    def config(self, ref: Ref) -> Mapping[str, Any]:
        """Return the config.json of a repository; empty if there is none."""
        listing, commit = self._look(ref)
        if CONFIG not in listing.files:
            return {}
        return read_json(self._get(ref, commit, listing.files, [CONFIG])[0], "resolve")

    def fetch(self, ref: Ref) -> tuple[Path, str]:
        """Fetch the weights and configs of `ref`; return their directory in the cache, and the commit."""
        listing, commit = self._look(ref)
        files = listing.files
        wanted = [name for name in (CONFIG, ADAPTER_CONFIG) if name in files]
        weights = model_weights(files) if holds_model(files) else []
        if listing.adapter_config is not None and adapter_weights(files):
            wanted.append(adapter_weights(files))
        if weights and weights[0].endswith(".index.json"):
            index = self._get(ref, commit, files, weights)[0]
            weights = self._shards(ref, files, read_json(index, "download"))
        paths = self._get(ref, commit, files, [*wanted, *weights])
        if not self._is_offline and ref.revision != commit:
            self._note_revision(ref, paths[0].name)
        return paths[0].parent, commit

    def _shards(self, ref: Ref, files: Mapping[str, int | None], index: Mapping[str, Any]) -> list[str]:
        """Return the files that an index names. Raises ModelError if one is not at the top of its repository."""
        names = index.get("weight_map")
        shards = sorted(set(map(str, names.values()))) if isinstance(names, Mapping) else []
        absent = next((shard for shard in shards if shard not in files), None)
        if absent is not None:
            where = "its cached copy, and HF_HUB_OFFLINE forbids to fetch it" if self._is_offline else "it"
            raise ModelError("download", f"the index of {ref.name} names {absent[:120]}, which is not in {where}")
        return shards

    def _get(self, ref: Ref, commit: str, files: Mapping[str, int | None], names: Sequence[str]) -> list[Path]:
        """Fetch the files that are not in the cache yet; return the paths of all."""
        for name in names:
            if name.endswith(".json") and (files[name] or 0) > LARGEST_JSON_BYTES:
                raise ModelError("download", f"{name} of {ref.name} is too large: {files[name]} bytes")
        find = self._library.try_to_load_from_cache
        missing = [n for n in names if not isinstance(find(ref.name, n, cache_dir=self._cache, revision=commit), str)]
        self._check_space(ref, sum(files[name] or 0 for name in missing))
        if missing and self._cached(ref.name, commit) is None:
            self._new.add((ref.name, commit))
        try:
            with ThreadPoolExecutor(_CONNECTIONS) as pool:
                return list(pool.map(lambda name: self._download(ref.name, commit, name), names))
        except Exception as error:
            raise as_model_error(error, ref.name) from None

    def _download(self, model: str, revision: str, name: str) -> Path:
        return Path(
            self._library.hf_hub_download(
                model, name, revision=revision, cache_dir=self._cache, endpoint=self._endpoint
            )
        )

    def _note_revision(self, ref: Ref, name: str) -> None:
        """Let the library note the commit of the revision, so that the cache can be used offline."""
        try:
            self._download(ref.name, ref.revision or "main", name)
        except Exception:  # all that is needed is there
            return

    def _check_space(self, ref: Ref, needed: int) -> None:
        directory = self._cache
        while not directory.exists():
            directory = directory.parent
        free = shutil.disk_usage(directory).free
        if needed and free - needed < self._reserve:
            kept = f", less than the {_size(self._reserve)} that --disk-reserve keeps" if self._reserve else ""
            raise ModelError(
                "download",
                f"{ref.name} has {_size(needed)} to fetch, which would leave {_size(max(0, free - needed))} of the "
                f"disk of {self._cache}{kept}",
            )

    def close(self) -> None:
        """With `drop`, delete the commits that were not in the cache before."""
        for name, commit in self._new if self._drop else ():
            try:
                cache = self._library.scan_cache_dir(self._cache)
                own = frozenset(each for each in cache.repos if (each.repo_type, each.repo_id) == ("model", name))
                replace(cache, repos=own).delete_revisions(commit).execute()
            except (OSError, ValueError, self._library.errors.CacheNotFound):  # the files that are left only take space
                pass
        self._new.clear()


def _files(snapshot: Path) -> dict[str, int | None]:
    return {entry.name: entry.stat().st_size for entry in os.scandir(snapshot) if entry.is_file()}


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
