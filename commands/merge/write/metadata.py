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

COUNTS = ("num_questions", "num_samples", "total", "count")  # the weight of an accuracy is the first that is beside it

_LARGEST_BYTES = 1 << 24  # of a script's own metadata
_HUGE = 1e100  # a larger number counts nothing, and the product of two might be no number


def describe(task: MergeTask, records: int | None, out: MergeOutput, digest: str) -> dict[str, Any]:
    """Return the metadata document. Parts in or below the output's directory are named from there."""
    report, rows, owned = task.report, [], []
    for part in task.parts:
        file_name, values = _left_by_script(part)
        owned += [] if part.skipped else [(part, dict(_numbers(values)))]
        row = _head(part) | {"records": part.records, "bytes": part.size, "sha256": part.sha256}
        more = {"left_out": part.skipped, "metadata_file": file_name, "metadata": values}
        rows.append(row | {name: value for name, value in more.items() if value})
    totals, overall = _summed(owned)
    return {
        "tool": {"name": TOOL, "version": __version__},
        "created_at": time.time(),
        "format": suffix_of(task.output),
        "output": {"name": stored_name(out.name), "bytes": out.size, "sha256": digest},
        "records": records,
        "expected": task.options.expect,
        "order": "the parts one after the other, by their shards" if report.is_unordered else task.order_text,
        "missing": [_head(one) | {"why": one.skipped} for one in task.missing],
        "left_out": [one._asdict() for one in report.left_out],
        "left_out_records": sum(report.lost.values()),
        "notes": report.warnings(),
        "totals": totals,
        "overall": overall,
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


def _summed(owned: Sequence[tuple[MergePart, Mapping[str, float]]]) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the sums of the counts, and the accuracies over all parts, each weighted by the count beside it.

    Else the weight is the items of the shard, or the records of the part. None where a part with records lacks it.
    """
    totals, overall = {}, {}
    for path in dict.fromkeys(path for _, numbers in owned for path in numbers):
        room, name = path[: path.rfind(".") + 1], path.rpartition(".")[2]
        if name in (*COUNTS, "correct"):
            totals[path] = sum(numbers.get(path, 0) for _, numbers in owned)
        if name != "accuracy" and not name.endswith("_accuracy"):
            continue
        rows = [(numbers[path], *_weight(part, numbers, room)) for part, numbers in owned if path in numbers]
        weight = sum(weight for _, weight, _ in rows)
        is_everywhere = all(path in numbers or part.records == 0 for part, numbers in owned)
        if is_everywhere and weight and all(weight >= 0 for _, weight, _ in rows):
            value = math.fsum(value * weight for value, weight, _ in rows) / weight
            names = "/".join(dict.fromkeys(name for _, _, name in rows))
            overall[path] = {"value": value, "weight": weight, "weighted_by": names, "parts": len(rows)}
    return totals, overall


def _weight(part: MergePart, numbers: Mapping[str, float], room: str) -> tuple[float, str]:
    """Return the weight of an accuracy and its name; -1 where there is none."""
    for name in COUNTS:
        if f"{room}{name}" in numbers:
            return numbers[f"{room}{name}"], name
    return (part.shard.count, "items") if part.shard else (-1 if part.records is None else part.records, "records")
