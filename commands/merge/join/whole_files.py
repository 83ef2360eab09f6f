"""Parts that are one object each: read, merged by the rules for dicts, written. Knows no format."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from numbers import Real
from typing import Any

from ..parts.model import MergePart, MergeRefused, MergeTask, reading
from ..write.output import MergeOutput
from .dicts import Arrays, DictMerge, HeldValue, sum_name


class WholeFileFormat:
    """A format whose parts are one object each. A subclass reads one, and writes one."""

    noun = ""  # the name of such a file
    arrays = Arrays()

    def __init__(self, task: MergeTask) -> None:
        self.task = task

    def read(self, part: MergePart) -> Any:
        """Return the object of a part. Any error means that the part is damaged."""
        raise NotImplementedError

    def save(self, merged: Any, out: MergeOutput) -> None:
        """Write the merged object."""
        raise NotImplementedError

    def write(self, out: MergeOutput) -> int | None:
        """Write the one object of all parts that can be read."""
        values: list[HeldValue] = []
        for part in self.task.parts:
            with reading(part, self.task.report, self.noun):
                values.append((part, self.read(part)))
                part.records = self._leading(values[-1][1])
                part.rows = self._rows(values[-1][1]) if isinstance(values[-1][1], Mapping) else {}
                part.values = part.values or plain_values(values[-1][1])
        if not values:
            return None
        part, first = values[0]
        if not self.arrays.holds(first) and not isinstance(first, Mapping | list | tuple):
            raise MergeRefused(f"is one {type(first).__name__}: nothing that can be joined", where=part.name)
        self.save(DictMerge(self.task, self.arrays).merge(values), out)
        counts = [part.records for part, _ in values]
        self.task.counts_items = not isinstance(first, Mapping)
        return None if None in counts else sum(count or 0 for count in counts)

    def _leading(self, value: Any) -> int | None:
        """Return the length of a part, or that of all lists and arrays of its dict, but those that --sum adds up."""
        if not isinstance(value, Mapping):
            return self._length(value)
        lengths = set(self._rows(value).values())
        return 0 if not value else lengths.pop() if len(lengths) == 1 else None

    def _rows(self, value: Mapping[Any, Any]) -> dict[str, int]:
        """Return the lengths of the lists and arrays of a dict, but those that --sum adds up."""
        named = [(str(name), held) for name, held in value.items() if not isinstance(held, tuple)]  # often plain values
        lengths = {name: self._length(held) for name, held in named if sum_name(name, self.task.options.sum) is None}
        return {name: length for name, length in lengths.items() if length is not None}

    def _length(self, value: Any) -> int | None:
        if self.arrays.holds(value):
            return next(iter(value.shape), None)
        return len(value) if isinstance(value, list | tuple) else None


def plain_values(value: Any) -> dict[str, Any]:
    """Return the plain values of nested dicts: the metadata that a part holds beside its data."""
    values: dict[str, Any] = {}
    for name, held in islice(value.items(), 1000) if isinstance(value, Mapping) else ():
        if inner := plain_values(held):
            values[str(name)] = inner
        elif held is None or isinstance(held, str | Real):
            values[str(name)] = getattr(held, "item", lambda held=held: held)()  # a scalar of NumPy becomes Python's
    return values
