"""Parts that are one object each, read whole and merged by the rules. Knows no format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .parts import ItemOrder, Merged, Part
from .rules import Arrays, Rules, leading, plain_values, total
from .trouble import PartUnreadable, Refused, Told, clean


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
        try:
            value = read(part)
        except PartUnreadable as error:
            part.skipped = error.why
            told.leave_out(part.name, error.line, error.why)
            continue
        except OSError as error:
            part.skipped = f"cannot be read: {error.strerror or clean(error)}"
            told.leave_out(part.name, None, part.skipped)
            continue
        part.records = leading(value, arrays)
        part.values = plain_values(value)
        held.append((part, value))
    if not held:
        return None, Merged(None)
    if not (arrays.holds(held[0][1]) or isinstance(held[0][1], dict | list | tuple)):
        raise Refused(f"is one {type(held[0][1]).__name__}: nothing that can be joined", where=held[0][0].name)
    merged = Rules(arrays, [part for part, _ in held], order, sums, told).merge(held)
    return merged, Merged(total(parts), per_item=not isinstance(merged, dict))
