"""The hub, through huggingface_hub: looks at repositories and fetches weights and configs into its cache.

Fetches no code, no file that is not read, and deletes nothing that it did not fetch itself. The library's own cache,
HF_HOME, login and offline mode hold; its locks let one of several jobs fetch a file while the others wait for it.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from ..read.tensors import ModelError
from .hub_errors import TransientError, as_model_error
from .hubuse import Use
from .locations import CONFIG, read_json
from .resolve import ADAPTER_CONFIG, Listing, Ref, adapter_weights, holds_model, model_weights

_CONNECTIONS = 4
_TIMEOUT_S = 30
_LARGEST_JSON = 64 << 20  # bytes of a config or an index
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?)?", re.IGNORECASE)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Hub:
    """One process's view of the hub. What a name means is settled once: a repository that moves on does not matter."""

    def __init__(
        self, *, cache_dir: str = "", reserve_bytes: int = 0, drop: bool = False, endpoint: str | None = None
    ) -> None:
        """`reserve_bytes` stay free on the disk of the cache. `drop`: at the end, delete what was fetched here."""
        self._given_cache = cache_dir
        self._endpoint = endpoint
        self._reserve = reserve_bytes
        self._drop = drop
        self._known: dict[tuple[str, str], tuple[Listing, str]] = {}
        self._uses: dict[str, Use] = {}
        self.notes: list[str] = []

    @cached_property
    def _library(self) -> Any:
        """Not loaded for a model that lies on this box."""
        try:
            import huggingface_hub
            import huggingface_hub.constants
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
        return Path(self._given_cache or self._library.constants.HF_HUB_CACHE).expanduser()

    @property
    def _offline(self) -> bool:
        return bool(self._library.constants.HF_HUB_OFFLINE)

    # ---- what there is ----

    def look(self, ref: Ref) -> Listing:
        return self._look(ref)[0]

    def _look(self, ref: Ref) -> tuple[Listing, str]:
        """What a repository holds, and its commit."""
        key = (ref.name, ref.revision)
        if key not in self._known:
            files, commit = self._ask(ref)
            config = None
            if ADAPTER_CONFIG in files:
                config = read_json(self._get(ref, commit, files, [ADAPTER_CONFIG])[0])
            self._known[key] = (Listing(f"{ref.name}@{commit[:12]}", files, config), commit)
        return self._known[key]

    def _ask(self, ref: Ref) -> tuple[dict[str, int | None], str]:
        """The files at the top of a repository, by size, and the commit; of the cache, where nobody may be asked."""
        if self._offline:
            found = self._cached(ref)
            if found is None:
                at = f" at the revision {ref.revision}" if ref.revision else ""
                raise ModelError(
                    "download", f"{ref.name}{at} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"
                )
            return found
        try:
            api = self._library.HfApi(endpoint=self._endpoint)
            told = api.model_info(ref.name, revision=ref.revision or None, files_metadata=True, timeout=_TIMEOUT_S)
        except Exception as error:
            failure = as_model_error(error, ref.name)
            found = self._cached(ref) if isinstance(failure, TransientError) else None
            if found is None or not _is_whole(found[0]):
                raise failure from None
            self.notes.append(
                f"warning: {failure.reason}; its cached commit {found[1][:12]} is used, which may be an old one"
            )
            return found
        files = {sibling.rfilename: sibling.size for sibling in told.siblings or () if "/" not in sibling.rfilename}
        if not isinstance(told.sha, str) or not _COMMIT.fullmatch(told.sha):
            raise ModelError("download", f"{ref.name}: the hub tells no commit of it")
        return files, told.sha

    def _folder(self, ref: Ref) -> Path:
        return self._cache / f"models--{ref.name.replace('/', '--')}"

    def _cached(self, ref: Ref) -> tuple[dict[str, int | None], str] | None:
        """What of a repository lies in the cache, and of which commit; None for nothing."""
        commit = self._noted(ref)
        if not _COMMIT.fullmatch(commit):
            return None
        try:
            entries = list(os.scandir(self._folder(ref) / "snapshots" / commit))
        except OSError:
            return None
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}, commit

    def _noted(self, ref: Ref) -> str:
        """The commit that a revision stands for, as the cache has it; "" where it has none."""
        revision = ref.revision or "main"
        if _COMMIT.fullmatch(revision):
            return revision
        try:
            return (self._folder(ref) / "refs" / revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return ""

    # ---- fetching ----

    def config(self, ref: Ref) -> Mapping[str, Any]:
        """Its config.json; empty where there is none."""
        listing, commit = self._look(ref)
        return read_json(self._get(ref, commit, listing.files, [CONFIG])[0]) if CONFIG in listing.files else {}

    def fetch(self, ref: Ref) -> tuple[Path, str]:
        """The directory of the cache that now holds what is to be read of `ref`, and its commit."""
        listing, commit = self._look(ref)
        files = listing.files
        wanted = [name for name in (CONFIG, ADAPTER_CONFIG) if name in files]
        weights = model_weights(files) if holds_model(files) else []
        if listing.adapter_config is not None and adapter_weights(files):
            wanted.append(adapter_weights(files))
        if [name for name in weights if name.endswith(".index.json")]:
            index = self._get(ref, commit, files, weights)[0]
            wanted += self._shards(ref, files, read_json(index, "download"))
        else:
            wanted += weights
        found = self._get(ref, commit, files, wanted)
        self._remember(ref, commit, wanted[0])
        return found[0].parent, commit

    def _shards(self, ref: Ref, files: Mapping[str, int | None], index: Mapping[str, Any]) -> list[str]:
        """The files that an index names, of those at the top of its repository."""
        names = index.get("weight_map")
        shards = sorted(set(map(str, names.values()))) if isinstance(names, Mapping) else []
        absent = next((shard for shard in shards if shard not in files), None)
        if absent is not None:
            where = "its cached copy, and HF_HUB_OFFLINE forbids to fetch it" if self._offline else "it"
            raise ModelError("download", f"the index of {ref.name} names {absent}, which is not in {where}")
        return shards

    def _get(self, ref: Ref, commit: str, files: Mapping[str, int | None], names: Sequence[str]) -> list[Path]:
        """These files in the cache, fetched where they are not yet there."""
        for name in names:
            if name.endswith(".json") and (files[name] or 0) > _LARGEST_JSON:
                raise ModelError("download", f"{name} of {ref.name} has {files[name]} bytes")
        use = self._use(ref)
        snapshot = self._folder(ref) / "snapshots" / commit
        missing = [name for name in names if not (snapshot / name).exists()]
        self._check_space(ref, sum(files[name] or 0 for name in missing))
        for name in missing:
            use.creates(snapshot / name)
        try:
            with ThreadPoolExecutor(_CONNECTIONS) as pool:
                return [Path(found) for found in pool.map(lambda name: self._download(ref, commit, name), names)]
        except ModelError:
            raise
        except Exception as error:
            raise as_model_error(error, ref.name) from None

    def _download(self, ref: Ref, revision: str, name: str) -> str:
        found: str = self._library.hf_hub_download(
            ref.name, name, revision=revision, cache_dir=self._cache, endpoint=self._endpoint
        )
        return found

    def _remember(self, ref: Ref, commit: str, name: str) -> None:
        """Let the library note which commit the revision stands for, so that the cache serves it offline too."""
        revision = ref.revision or "main"
        if self._offline or revision == commit or self._noted(ref) == commit:
            return
        try:
            self._download(ref, revision, name)
        except Exception:  # all that is needed is there
            return

    def _check_space(self, ref: Ref, needed: int) -> None:
        place = self._cache
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if needed and free - needed < self._reserve:
            kept = f", less than the {_size(self._reserve)} that --disk-reserve keeps" if self._reserve else ""
            raise ModelError(
                "download",
                f"{ref.name} has {_size(needed)} to fetch, which would leave {_size(max(0, free - needed))} of "
                f"the disk of {self._cache}{kept}",
            )

    # ---- afterwards ----

    def _use(self, ref: Ref) -> Use:
        folder = self._folder(ref)
        if folder.name not in self._uses:
            self._uses[folder.name] = Use(self._cache, folder)
        return self._uses[folder.name]

    def close(self) -> None:
        """Let go of what was used; with `drop`, delete what was fetched here and nobody else uses."""
        for use in self._uses.values():
            if self._drop:
                use.drop()
            use.close()
        self._uses.clear()


def _is_whole(files: Mapping[str, int | None]) -> bool:
    return holds_model(files) or bool(adapter_weights(files))


def parse_size(text: str) -> int:
    """`20G`, `1.5GiB`, `500M`, and MiB without a unit -> bytes. ValueError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text} is no size, such as 500M or 20G")
    return math.ceil(float(match[1]) * (1 << "kmgt".index((match[2] or "m").lower()) * 10 + 10))


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
