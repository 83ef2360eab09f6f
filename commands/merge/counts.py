"""What a merge counts beside what its shards were given: parts that are short, or have more. Reads no part."""

from __future__ import annotations

from collections.abc import Sequence

from .parts import Merged, Options, Part
from .trouble import Short, Told, number


def judge_counts(parts: Sequence[Part], merged: Merged, options: Options, told: Told) -> None:
    """Compare the counts of the parts with what their shards were given, and the total with --expect.

    Counts that may be of something else than records are taken for counts of items once one of them is exactly that;
    a shard without items says nothing of that.
    """
    counted = [part for part in parts if part.items is not None and part.records is not None and not part.skipped]
    given = [(part, part.records or 0, part.items or 0) for part in counted]
    by_item = merged.per_item or any(records == items > 0 for _, records, items in given)
    for part, records, items in given:
        if records < items and by_item and part.name not in told.lost:
            told.short.append(Short(part.name, part.shard, part.suffix, records, items))
    more = [(records, items) for _, records, items in given if records > items]
    if more and merged.per_item:
        ratios = {records / items for _, records, items in given if items}
        if len(ratios) == 1 and len(more) == len(given) and (ratio := next(iter(ratios))).is_integer():
            told.note(f"{ratio:.0f} records an item in each part")
        else:
            told.note(f"{number(len(more), 'part')} with more records than items")
    if options.expect is not None and merged.records != options.expect:
        found = "no count" if merged.records is None else number(merged.records, "record")
        told.wrong.append(f"{found}, and --expect {options.expect:,}")
