"""The results of older versions: which of them would be others by the rules of today. Analyses nothing."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpusched.esd.model_record import CONVENTION, TABLES

_PACKED = re.compile(r"u?int(8|16|32)|float[468]_\w+")
# Rows of what is no layer today, or is put together from several tensors: factors of adapters, norms, parameters.
_NO_LAYER = re.compile(
    r"[._](lora|lora_linear_layer)[._](A|B|down|up)\b|\blora_(A|B|down|up)\b|base_layer|weight_[vg]$|original[01]$"
    r"|A_log$|rel_pos|freqs|experts\.mlp\.|\.(scales|biases|codebooks|centroids)\b"
)
_EMBEDDING = re.compile(r"emb|wte|wpe|shared|token|relative_", re.IGNORECASE)
_EPS = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_FLAT = 2.0


def follows_old_rules(output: str, stem: str, record: Mapping[str, Any]) -> bool:
    """Return True for a result of an older version that may be another one by today's rules."""
    if record.get("convention") == CONVENTION or not record.get("success"):
        return False
    skipped = [(str(item.get("tensor")), str(item.get("reason"))) for item in record.get("skipped", ())]
    if any(_PACKED.fullmatch(dtype) for dtype in record.get("dtypes", ())):
        return True
    if any(reason.startswith(("quantised", "part of a quantised", "tied")) for _, reason in skipped):
        return True
    if any(reason.startswith("an embedding") and not _EMBEDDING.search(name) for name, reason in skipped):
        return True
    embeddings = any(reason.startswith("an embedding") for _, reason in skipped)
    return any(_is_affected(row, has_embedding=embeddings) for row in _rows(output, stem))


def _is_affected(row: Mapping[str, str], *, has_embedding: bool) -> bool:
    name = row["longname"]
    if _NO_LAYER.search(name) or (has_embedding and name.endswith(("lm_head.weight", "embed_out.weight"))):
        return True
    try:
        start, end = float(row["fit_xmin"]), float(row["xmax"])
    except (KeyError, ValueError):
        return False
    least = max(_FLAT * _EPS.get(row["dtype"], 0.25), 2e-5)
    return start > 0 and math.log(end / start) <= least


def _rows(output: str, stem: str) -> Iterator[Mapping[str, str]]:
    try:
        with open(f"{output}/{TABLES}/{stem}.csv", encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    except (OSError, csv.Error, UnicodeError):
        return
