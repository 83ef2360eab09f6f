"""Choose the files of a model's weights by their names. Opens no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from .tensors import ModelError

WEIGHTS = ("model.safetensors", "pytorch_model.bin", "diffusion_pytorch_model.safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# Files that training leaves beside the weights, in the same formats.
_BESIDE = re.compile(r"(?:adapter_model|training_args|optimizer|scheduler|scaler|rng_state|random_states|mmproj).*")
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


def choose_weights(
    files: Collection[str], read_index: Callable[[str], Mapping[str, Any]], stage: str
) -> tuple[list[str], dict[str, str] | None]:
    """Return the files to load, and the file of each tensor if there is an index. Raises ModelError with this stage."""
    weights = model_weights(files)
    if len(weights) > 1 and _are_shards(weights):
        return weights, None
    if len(weights) > 1:
        raise ModelError(stage, f"there are {len(weights)} files of weights ({weights[0]} …), and no index")
    if not weights or not weights[0].endswith(".index.json"):
        return weights, None
    fields = read_index(weights[0]).get("weight_map")
    if not isinstance(fields, Mapping) or not fields:
        raise ModelError(stage, f"{weights[0]} is no index of shards")
    index = {str(tensor): str(file) for tensor, file in fields.items()}
    for file in index.values():
        if file not in files:
            raise ModelError(stage, f"{weights[0]} names {file[:200]}, which is missing in its directory")
    return sorted(set(index.values())), index


def _are_shards(files: Sequence[str]) -> bool:
    """Return True for the GGUF files of one model, all of which are there: x-00001-of-00002.gguf …"""
    matches = [_SHARD.fullmatch(file) for file in files]
    names = {match[1] for match in matches if match}
    return len(names) == 1 and all(match and int(match[2]) == len(files) for match in matches)


def files_of_model(path: Path) -> list[Path]:
    """Return the files that decide what a model on this machine is: weights, indexes and settings."""
    if path.is_file():
        return [path]
    suffixes = (".safetensors", ".gguf", ".index.json", *PICKLES)
    files = (file for file in sorted(path.iterdir()) if file.is_file() and not _BESIDE.fullmatch(file.name))
    adapter = (path / name for name in ("adapter_model.safetensors", "adapter_model.bin"))
    settings = ("config.json", "adapter_config.json")
    return [f for f in (*files, *adapter) if f.exists() and (f.name.endswith(suffixes) or f.name in settings)]


def no_weights(name: str, files: Collection[str]) -> str:
    """Return a message for a model without weights."""
    names = ", ".join(each[:40] for each in sorted(files)[:6]) or "nothing"
    return f"{name} has no weights that can be read (safetensors, .bin or .gguf), only {names}"


def model_weights(files: Collection[str]) -> list[str]:
    """Return the files to load; empty if there are none. An index alone stands for the shards that it names."""
    for name in WEIGHTS:
        for usual in (f"{name}.index.json", name):
            if usual in files:
                return [usual]
    for suffixes in ((".safetensors",), PICKLES, (".gguf",)):
        others = sorted(name for name in files if name.endswith(suffixes) and not _BESIDE.fullmatch(name))
        if others:
            return others
    return []
