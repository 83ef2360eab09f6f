"""The shapes of a model's tensors, read from the headers of its safetensors files. Reads no weights, imports no torch.

A header is eight bytes with its length and then JSON (the format page in the manual of safetensors). What lies on
this machine is read here, from a directory or from the hub's cache; `gpusched.common.hub_headers` asks the hub.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpusched.common.safetensors_header import HeaderError, read_header

CONFIG_LIMIT_BYTES = 64 << 20
MOST_FILES = 2000

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

_REPOSITORY = re.compile(r"[\w.-]+(?:/[\w.-]+)?", re.ASCII)


class TensorShape(NamedTuple):
    """A tensor as a safetensors header tells of it; `dtype` in its words: BF16, F32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"


@dataclass(frozen=True, slots=True)
class Shapes:
    """The tensors of a model, or why they are not known. `base`: of an adapter, the model that it says it changes."""

    tensors: tuple[TensorShape, ...] = ()
    why_not: str = ""
    base: str = ""


def read(model: str, revision: str = "") -> Shapes | None:
    """The shapes of what lies on this machine; None for a model that does not, and may be on the hub."""
    if os.path.isdir(model):
        return read_directory(model)
    if os.path.isfile(model):
        return _attempt(lambda: dict(_file(model)))
    if not is_repository(model):
        return Shapes(why_not="there is no such directory")
    snapshot = cached(model, revision)
    return read_directory(snapshot) if snapshot else None


def read_directory(path: str) -> Shapes:
    """The shapes of the model in a directory. Of an adapter, the name of its base."""
    names = _names(path)
    if ADAPTER_CONFIG in names and WEIGHTS not in names and INDEX not in names:
        try:
            base = _json(f"{path}/{ADAPTER_CONFIG}", CONFIG_LIMIT_BYTES).get("base_model_name_or_path")
        except (OSError, ValueError) as error:
            return Shapes(why_not=_words(error))
        return Shapes(base=base if isinstance(base, str) else "", why_not="it is an adapter")
    return _attempt(lambda: _tensors(path, names))


def is_repository(model: str) -> bool:
    """Could this be the name of a model on the hub?"""
    return _REPOSITORY.fullmatch(model) is not None and ".." not in model


def cached(model: str, revision: str = "", environ: Mapping[str, str] | None = None) -> str:
    """The directory of this model's revision in the hub's cache; empty where it is not there."""
    environ = os.environ if environ is None else environ
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    place = os.path.join(os.path.expanduser(cache), "models--" + model.replace("/", "--"))
    commit = revision or "main"
    if ".." in commit.split("/") or commit.startswith("/"):
        return ""
    try:
        with open(f"{place}/refs/{commit}", "rb") as file:
            commit = file.read(200).decode("ascii", "replace").strip()
    except OSError:
        pass
    found = f"{place}/snapshots/{commit}"
    return found if "/" not in commit and os.path.isdir(found) else ""


def _attempt(get: Any) -> Shapes:
    try:
        found = get()
    except (OSError, ValueError, RecursionError) as error:
        return Shapes(why_not=_words(error))
    return Shapes(tuple(found.values()), why_not="" if found else "it has no tensors")


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{os.path.basename(str(error.filename or 'a file'))} cannot be read: {error.strerror}"
    return str(error) or type(error).__name__


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _tensors(path: str, names: list[str]) -> dict[str, TensorShape]:
    if INDEX in names:
        weights = _json(f"{path}/{INDEX}", CONFIG_LIMIT_BYTES).get("weight_map")
        values = list(weights.values()) if isinstance(weights, dict) else []
        files = sorted({name for name in values if isinstance(name, str)})
        if not files or len(files) != len(set(map(str, values))) or any(os.path.basename(f) != f for f in files):
            raise ValueError(f"{INDEX} names no files beside it")
    elif WEIGHTS in names:
        files = [WEIGHTS]
    else:
        files = [n for n in names if n.endswith(".safetensors") and not n.startswith("adapter_")]
    if not files:
        raise ValueError("its weights are not in safetensors files")
    if len(files) > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES} files")
    found: dict[str, TensorShape] = {}
    for name in files:
        found.update(_file(f"{path}/{name}"))
    return found


def _file(path: str) -> Iterator[tuple[str, TensorShape]]:
    """The tensors of one file."""
    try:
        tensors = read_header(path).tensors
    except HeaderError as error:
        raise ValueError(f"{os.path.basename(path)} {error}") from None
    for name, entry in tensors.items():
        yield name, TensorShape(name, entry.shape, entry.dtype)


def parse(data: bytes, name: str) -> dict[str, Any]:
    """The bytes of a JSON object. ValueError for anything else."""
    try:
        found = json.loads(data)
    except ValueError:
        raise ValueError(f"{name} holds no JSON where it should") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds no JSON object where it should")
    return found


def tensor(key: str, entry: Any, name: str) -> TensorShape:
    """One entry of a header."""
    shape, dtype = (entry.get("shape"), entry.get("dtype")) if isinstance(entry, dict) else (None, None)
    if not isinstance(shape, list) or not isinstance(dtype, str) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name} says nothing sensible of a tensor")
    return TensorShape(key, tuple(shape), dtype)


def _json(path: str, limit: int) -> dict[str, Any]:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{os.path.basename(path)} is too large")
    return parse(data, os.path.basename(path))
