"""The metadata beside an output: parts, counts, totals, and what the scripts left. Merges nothing."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpusched import __version__
from gpusched.common.text import MASK, mask_secrets

from ..parts.groups import script_metadata_names
from ..parts.model import MergePart, MergeTask, suffix_of
from .output import MergeOutput
from .replace import TOOL, stored_name

COUNTS = ("num_questions", "num_samples", "total", "count")  # the first beside an accuracy is its weight

ACCURACIES = ("accuracy", "overall_accuracy")

PartNumbers = Sequence[tuple[MergePart, Mapping[str, float]]]

_LARGEST_BYTES = 1 << 24  # of a script's own metadata
_HUGE = 1e100  # a larger number counts nothing


def describe(task: MergeTask, records: int | None, out: MergeOutput, digest: str) -> dict[str, Any]:
    """Return the metadata document. Parts in or below the output's directory are named from there."""
    report, rows = task.report, []
    numbers: list[tuple[MergePart, dict[str, float]]] = []
    for part in task.parts:
        file_name, values = _left_by_script(part)
        numbers += [] if part.skipped else [(part, dict(_numbers(values)))]
        row = _head(part) | {"records": part.records, "bytes": part.size, "sha256": part.sha256}
        more = {"left_out": part.skipped, "metadata_file": file_name, "metadata": values}
        rows.append(row | {name: value for name, value in more.items() if value})
    return {
        "tool": {"name": TOOL, "version": __version__},
        "created_at": time.time(),
        "format": suffix_of(task.output),
        "output": {"name": stored_name(out.name), "bytes": out.size, "sha256": digest},
        "records": records,
        "expected": task.options.expect,
        "order": task.order_in_words,
        "missing": [_head(one) | {"why": one.skipped} for one in task.missing],
        "left_out": [one._asdict() for one in report.left_out],
        "left_out_records": sum(report.lost.values()),
        "notes": report.warnings(),
        "totals": _totals(numbers),
        "overall": _accuracies(numbers),
        "parts": rows,
    }


def _head(part: MergePart) -> dict[str, Any]:
    head: dict[str, Any] = {"name": stored_name(part.name)}
    if shard := part.shard:
        head |= {"shard": shard.shard, "suffix": shard.suffix, "start": shard.start, "end": shard.end}
        head |= {"items": shard.count, "seed": shard.seed}
    return head


def _left_by_script(part: MergePart) -> tuple[str, Any]:
    """Return the name and the content of the JSON that a script left beside a part, or else the part's own values."""
    for path in script_metadata_names(part.path, part.shard.suffix if part.shard else ""):
        try:
            if os.path.isfile(path) and os.path.getsize(path) <= _LARGEST_BYTES:
                with open(path, encoding="utf-8") as file:
                    return os.path.basename(path), _plain(json.load(file))
        except (OSError, ValueError, RecursionError):
            continue
    return "", _plain(part.values)


def _plain(value: Any, key: str = "") -> Any:
    """Return a value that JSON has, with secrets masked."""
    if isinstance(value, Mapping):
        return {str(name): _plain(held, str(name)) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, key) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    named = f'"{key}": {json.dumps(str(value))}'
    return str(value) if mask_secrets(named) == named else MASK


def _numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield (dotted path, value) of all numbers in nested dicts that can be added up."""
    for name, held in value.items() if isinstance(value, Mapping) else ():
        if isinstance(held, int | float) and not isinstance(held, bool) and abs(held) < _HUGE:
            yield f"{path}{name}", held
        yield from _numbers(held, f"{path}{name}.")


def _totals(numbers: PartNumbers) -> dict[str, float]:
    """Return the sums of the counts of all parts."""
    totals: dict[str, float] = {}
    for _, values in numbers:
        for path, value in values.items():
            if path.rpartition(".")[2] in (*COUNTS, "correct"):
                totals[path] = totals.get(path, 0) + value
    return totals


def _accuracies(numbers: PartNumbers) -> dict[str, Any]:
    """Return the accuracies over all parts, each weighted by the count beside it, else by the items of the shard.

    None where a part lacks the accuracy or its weight.
    """
    overall: dict[str, Any] = {}
    for path in {path: None for _, values in numbers for path in values if path.rpartition(".")[2] in ACCURACIES}:
        having = [
            (values, *_weight(part, values, path)) for part, values in numbers if part.records != 0 or path in values
        ]
        total = sum(weight for _, weight, _ in having)
        if total > 0 and all(path in values and weight >= 0 for values, weight, _ in having):
            value = math.fsum(values[path] * weight for values, weight, _ in having) / total
            names = "/".join(dict.fromkeys(name for _, _, name in having))
            overall[path] = {"value": value, "weight": total, "weighted_by": names}
    return overall


def _weight(part: MergePart, values: Mapping[str, float], path: str) -> tuple[float, str]:
    """Return the weight of an accuracy and its name; -1 where there is none."""
    beside = path[: path.rfind(".") + 1]
    name = next((name for name in COUNTS if f"{beside}{name}" in values), "")
    if name:
        return values[f"{beside}{name}"], name
    return (part.shard.count, "items") if part.shard else (-1, "")
