"""Parts that are one object each: read whole and merged by the rules; what each counts, and says of itself.

Knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from .parts import ItemOrder, Merged, Part
from .rules import Arrays, Rules, name_of_sum
from .trouble import Refused, Told, reading


def merge_whole(
    parts: Sequence[Part],
    read: Callable[[Part], Any],
    arrays: Arrays,
    order: ItemOrder | None,
    sums: Sequence[str],
    told: Told,
) -> tuple[Any, Merged]:
    """The one object of all parts that can be read, and what it counts; None where there is none."""
    held: list[tuple[Part, Any]] = []
    for part in parts:
        with reading(part, told):
            held.append((part, read(part)))
    for part, value in held:
        part.records = leading(value, arrays, sums)
        part.values = plain_values(value)
    if not held:
        return None, Merged(None)
    if not (arrays.holds(held[0][1]) or isinstance(held[0][1], dict | list | tuple)):
        raise Refused(f"is one {type(held[0][1]).__name__}: nothing that can be joined", where=held[0][0].name)
    merged = Rules(arrays, [part for part, _ in held], order, sums, told).merge(held)
    return merged, Merged(total(parts), per_item=not isinstance(merged, dict))


def plain_values(value: Any, depth: int = 20) -> dict[str, Any]:
    """The plain values of nested dicts, as a nested dict: what a part says of itself beside its data."""
    found: dict[str, Any] = {}
    for name, held in _named(value):
        if isinstance(held, Mapping):
            if depth and (inner := plain_values(held, depth - 1)):
                found[name] = inner
        elif held is None or isinstance(held, bool | int | float | str):
            found[name] = held
    return found


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, held in list(value.items())[:1000]:
            yield str(name), held


def leading(value: Any, arrays: Arrays, sums: Collection[str]) -> int | None:
    """How many records a part has: its length, or the one that all lists and arrays of its dict have in common.

    Of a dict's, those that --sum adds up have no records, and tuples may be plain values.
    """
    if arrays.holds(value):
        shape = arrays.shape(value)
        return shape[0] if shape else None
    if isinstance(value, list | tuple):
        return len(value)
    if isinstance(value, dict):
        lengths = {
            len(held) if isinstance(held, list) else arrays.shape(held)[0]
            for name, held in value.items()
            if isinstance(held, list) or (arrays.holds(held) and arrays.shape(held))
            if name_of_sum(str(name), sums) is None
        }
        return lengths.pop() if len(lengths) == 1 else None
    return None


def total(parts: Sequence[Part]) -> int | None:
    """The records of all parts that are in the output; None if one has no count."""
    counts = [part.records for part in parts if not part.skipped]
    return None if None in counts else sum(count or 0 for count in counts)
