"""Choose the files of a model's weights by their names. Opens no file."""

from __future__ import annotations

import re
from collections.abc import Collection

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# Files that training leaves beside the weights, in the same formats.
_BESIDE = re.compile(r"(?:adapter_model|training_args|optimizer|scheduler|scaler|rng_state|random_states).*")


def model_weights(files: Collection[str]) -> list[str]:
    """Return the files to load; empty if there are none. An index alone stands for the shards that it names."""
    for name in WEIGHTS:
        for usual in (f"{name}.index.json", name):
            if usual in files:
                return [usual]
    for suffixes in ((".safetensors",), PICKLES):
        others = sorted(name for name in files if name.endswith(suffixes) and not _BESIDE.fullmatch(name))
        if others:
            return others
    return []
