"""Read the shapes of a model's tensors from the headers of its safetensors files. Reads no weights.

Directories and files of this machine are read here; `gpusched.common.hub_headers` reads the hub and its cache.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
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
    """The name and shape of a tensor. `dtype` is the format's name of its type, such as BF16 or F32."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"


@dataclass(frozen=True, slots=True)
class Shapes:
    """The tensors of a model, or why they are unknown. `base`: the model that an adapter says it changes."""

    tensors: tuple[TensorShape, ...] = ()
    why_not: str = ""
    base: str = ""


def read(model: str) -> Shapes | None:
    """Return the shapes of a path of this machine; None for a model that may be on the hub."""
    if os.path.isdir(model):
        return read_directory(model)
    if os.path.isfile(model):
        return _read_files([model])
    is_name = _REPOSITORY.fullmatch(model) is not None and ".." not in model
    return None if is_name else Shapes(why_not="there is no such directory")


def read_directory(path: str) -> Shapes:
    """Return the shapes of the model in a directory; of an adapter, the name of its base."""
    try:
        names = sorted(os.listdir(path))
        if ADAPTER_CONFIG in names and WEIGHTS not in names and INDEX not in names:
            base = _read_json(f"{path}/{ADAPTER_CONFIG}").get("base_model_name_or_path")
            return Shapes(base=base if isinstance(base, str) else "", why_not="it is an adapter")
        files = _weight_files(path, names)
    except OSError as error:
        return Shapes(why_not=_in_words(error))
    except (ValueError, RecursionError) as error:
        return Shapes(why_not=str(error) or "its settings cannot be read")
    return _read_files(f"{path}/{name}" for name in files)


def _weight_files(path: str, names: list[str]) -> list[str]:
    if INDEX in names:
        weights = _read_json(f"{path}/{INDEX}").get("weight_map")
        files = sorted(set(map(str, weights.values()))) if isinstance(weights, dict) else []
        if not files or any(os.path.basename(name) != name for name in files):
            raise ValueError(f"{INDEX} names no files beside it")
    elif WEIGHTS in names:
        files = [WEIGHTS]
    else:
        files = [name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")]
    if not files:
        raise ValueError("its weights are not in safetensors files")
    if len(files) > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES} files")
    return files


def _read_files(paths: Iterable[str]) -> Shapes:
    tensors: dict[str, TensorShape] = {}
    for path in paths:
        try:
            header = read_header(path)
        except OSError as error:
            return Shapes(why_not=_in_words(error))
        except HeaderError as error:
            return Shapes(why_not=f"{os.path.basename(path)} {error}")
        tensors |= {name: TensorShape(name, entry.shape, entry.dtype) for name, entry in header.tensors.items()}
    return Shapes(tuple(tensors.values()), why_not="" if tensors else "it has no tensors")


def _in_words(error: OSError) -> str:
    return f"{os.path.basename(str(error.filename or 'a file'))} cannot be read: {error.strerror}"


def _read_json(path: str) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError for any other content, or for too much of it."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        data = file.read(CONFIG_LIMIT_BYTES + 1)
    name = os.path.basename(path)
    if len(data) > CONFIG_LIMIT_BYTES:
        raise ValueError(f"{name} is too large")
    try:
        fields = json.loads(data)
    except ValueError:
        raise ValueError(f"{name} is not JSON") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{name} holds no JSON object")
    return fields
