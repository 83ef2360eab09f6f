"""Read the shapes of a model's tensors from the headers of its safetensors files. Reads no weights.

Directories and files of this machine are read here; `gpusched.common.weights.hub_headers` reads the hub and its cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpusched.common.files import read_json_object
from gpusched.common.weights.safetensors_header import HeaderError, read_header

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


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


def read_local(path: str) -> Shapes:
    """Return the shapes of the model in a directory or in a file; of an adapter, the name of its base."""
    if os.path.isfile(path):
        return _read_files([path])
    names = os.listdir(path) if os.access(path, os.R_OK) else []
    if ADAPTER_CONFIG in names and WEIGHTS not in names and INDEX not in names:
        base = read_json_object(f"{path}/{ADAPTER_CONFIG}").get("base_model_name_or_path")
        return Shapes(base=base if isinstance(base, str) else "", why_not="it is an adapter")
    if INDEX in names:
        places = read_json_object(f"{path}/{INDEX}").get("weight_map")
        files = {os.path.basename(str(name)) for name in places.values()} if isinstance(places, dict) else set()
    else:
        files = {WEIGHTS} if WEIGHTS in names else {name for name in names if name.endswith(".safetensors")}
    return _read_files(f"{path}/{name}" for name in sorted(files))


def _read_files(paths: Iterable[str]) -> Shapes:
    tensors: dict[str, TensorShape] = {}
    for path in paths:
        name = os.path.basename(path)
        try:
            header = read_header(path)
        except OSError as error:
            return Shapes(why_not=f"{name} cannot be read: {error.strerror}")
        except HeaderError as error:
            return Shapes(why_not=f"{name} {error}")
        tensors |= {name: TensorShape(name, entry.shape, entry.dtype) for name, entry in header.tensors.items()}
    return Shapes(tuple(tensors.values()), why_not="" if tensors else "it has no tensors in safetensors files")
