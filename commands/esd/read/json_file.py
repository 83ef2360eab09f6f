"""Read a JSON object from a file of a model repository, with a size limit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tensors import ModelError

LARGEST_JSON_BYTES = 64 << 20


def read_json(path: Path, stage: str) -> Mapping[str, Any]:
    """Return the object. Raises ModelError with this stage for any other content, or more than 64 MiB."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_JSON_BYTES + 1)
        fields = json.loads(data) if len(data) <= LARGEST_JSON_BYTES else None
    except OSError as error:
        raise ModelError(stage, f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(stage, f"{path.name} is not JSON") from None
    if not isinstance(fields, dict):
        raise ModelError(stage, f"{path.name} holds no JSON object, or more than {LARGEST_JSON_BYTES >> 20} MiB")
    return fields


def read_config(directory: Path, stage: str = "load") -> Mapping[str, Any]:
    """Return the config.json of a directory; empty if there is none."""
    path = directory / "config.json"
    return read_json(path, stage) if path.exists() else {}
