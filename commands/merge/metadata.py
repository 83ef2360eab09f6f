"""What a merge says of itself beside its output: parts, counts, sums, what their scripts left. Merges nothing."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched import __version__

from .existing import TOOL, stored_name
from .parts import Missing, Part
from .trouble import Short, Told

WRITTEN_MOST = 1000  # of what was left out

_LARGEST = 1 << 24  # bytes of a script's own metadata
_HUGE = 1e100  # a number beyond this counts nothing, and the product of two might be no number
_COUNTS = ("count", "total", "n", "num_samples", "num_examples", "num_items", "samples", "examples")
_COUNT_WORDS = re.compile(
    r"(?:num|n|total|correct)_\w+|\w+_(?:count|total|correct)|correct|tokens|\w+_tokens", re.ASCII
)
_RATES = re.compile(r"(?:\w+_)?(?:accuracy|acc)", re.ASCII)
_SECRET = re.compile(r"token$|secret|passw|api_?key|credential", re.IGNORECASE)


def left_by_script(part: Part) -> tuple[str, Any] | None:
    """Name and content of the JSON document that a script left beside a part; None where there is none."""
    for path in names_beside(part.path, part.suffix):
        if path == part.path:
            continue
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= _LARGEST:
                return os.path.basename(path), _plain(json.loads(Path(path).read_text("utf-8")))
        except (OSError, ValueError, RecursionError):
            continue
    return None


def names_beside(path: str, suffix: str) -> list[str]:
    """Where a script may have left the metadata of this part: `x_gpu_0.json`, `x_gpu_0_metadata.json`, …"""
    directory, name = os.path.split(path)
    stem = os.path.splitext(name)[0]
    found = [f"{stem}.json", f"{stem}_metadata.json", f"{stem}_meta.json"]
    if suffix and stem.endswith(suffix):
        base = stem.removesuffix(suffix)
        found += [f"{base}metadata_{suffix}.json", f"metadata_{suffix}.json"]
    return [os.path.join(directory, word) for word in found]


def document(
    *,
    form: str,
    output: Mapping[str, Any],
    parts: Sequence[Part],
    missing: Sequence[Missing],
    told: Told,
    records: int | None,
    expected: int | None,
    order: str,
    complete: bool,
    removed: bool,
    replaces: Mapping[str, Any],
) -> dict[str, Any]:
    """The metadata document. Parts in or below the output's directory are named from there; no command is in it."""
    beside = [left_by_script(part) for part in parts]
    own = [found[1] if found else _plain(part.values) for found, part in zip(beside, parts, strict=True)]
    totals, overall = _summed(
        [(values, part.records) for values, part in zip(own, parts, strict=True) if not part.skipped]
    )
    rows = []
    for part, found, values in zip(parts, beside, own, strict=True):
        row: dict[str, Any] = {"name": stored_name(part.name)}
        given = {"shard": part.shard, "suffix": part.suffix or None, "start": part.start, "end": part.end}
        given |= {"items": part.items, "seed": part.seed}
        row |= {key: value for key, value in given.items() if value is not None}
        row |= {"records": part.records, "bytes": part.size, "sha256": part.sha256}
        if part.skipped:
            row["left_out"] = part.skipped
        if found:
            row["metadata_file"] = found[0]
        if values:
            row["metadata"] = values
        rows.append(row)
    return {
        "tool": {"name": TOOL, "version": __version__},
        "created_at": time.time(),
        "format": form,
        "output": dict(output),
        "replaces": dict(replaces) or None,
        "complete": complete,
        "records": records,
        "expected": expected,
        "order": order,
        "missing": [{k: v for k, v in _fields(m).items() if v is not None} for m in missing],
        "short": [_fields(one) | {"lacks": one.items - one.records} for one in told.short],
        "left_out": [{"part": x.part, "line": x.line, "why": x.why} for x in told.left_out[:WRITTEN_MOST]],
        "left_out_records": sum(told.lost.values()),
        "wrong": told.wrong,
        "notes": told.warnings(),
        "totals": totals,
        "overall": overall,
        "remove_parts": removed,
        "parts": rows,
    }


def text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _fields(told: Missing | Short) -> dict[str, Any]:
    return {name: getattr(told, name) for name in told.__slots__}


def _plain(value: Any) -> Any:
    """A JSON value without what JSON has no word for; values under a name that says secret are masked."""
    if isinstance(value, Mapping):
        return {str(k): "***" if isinstance(v, str) and _SECRET.search(str(k)) else _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---- totals ----------------------------------------------------------------------------------------


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, str, float]]:
    """(dotted path, last name, value) of all numbers in nested objects; of numbers that can be added up."""
    if not isinstance(value, Mapping):
        return
    for name, found in value.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(found, Mapping):
            yield from _numbers(found, here)
        elif isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < _HUGE:
            yield here, str(name), found


def is_count(name: str) -> bool:
    return name in _COUNTS or _COUNT_WORDS.fullmatch(name) is not None


def _summed(merged: Sequence[tuple[Any, int | None]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Counts added up, and rates (accuracy, acc, *_accuracy, *_acc) weighted by the count beside them.

    Of each part that is in the output: what it says, and its records. A rate has to be in all that have any.
    """
    totals: dict[str, float] = {}
    weighted: dict[str, list[tuple[float, float]]] = {}
    filled: dict[str, int] = {}  # path -> parts with a rate there, of those with records
    for values, count in merged:
        found = {path: value for path, _, value in _numbers(values)}
        for path, name, value in _numbers(values):
            if is_count(name):
                totals[path] = totals.get(path, 0) + value
            elif _RATES.fullmatch(name):
                weight = _weight(found, path, name, count)
                if weight is not None and weight >= 0:
                    weighted.setdefault(path, []).append((value, weight))
                    filled[path] = filled.get(path, 0) + (count != 0)
    overall: dict[str, Any] = {}
    for path, pairs in weighted.items():
        total = sum(weight for _, weight in pairs)
        if filled[path] < sum(count != 0 for _, count in merged) or not total:
            continue  # an average over some of the parts would look like one over all
        overall[path] = {"value": math.fsum(v * w for v, w in pairs) / total, "weight": total, "parts": len(pairs)}
    return totals, overall


def _weight(found: Mapping[str, float], path: str, name: str, records: int | None) -> float | None:
    """The count that an accuracy is of: `x_count` or `x_total` for `x_accuracy`, else the one beside it."""
    room = path.removesuffix(name)
    stem = re.sub(r"_?(?:accuracy|acc)$", "", name)
    own = [f"{room}{stem}_{word}" for word in ("count", "total", "n")] if stem else []
    for candidate in (*own, *(f"{room}{word}" for word in _COUNTS), *_COUNTS):
        if candidate in found:
            return found[candidate]
    return records
