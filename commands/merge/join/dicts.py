"""The rules by which dicts of several parts become one: docs/merge.md, "One object a part". Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from gpusched.common.text import first_few

from ..parts.model import MergePart, MergeRefused, MergeTask, count_of, shown

HeldValue = tuple[MergePart, Any]
_KINDS = (("dict", Mapping), ("list", list), ("tuple", tuple))


class Arrays:
    """The array type of a format. This one is for formats that have none; a subclass has the operations."""

    def holds(self, value: Any) -> bool:
        """Return True if `value` is such an array."""
        return False


def sum_name(key: str, sums: Sequence[str]) -> str | None:
    """Return the name for --sum that means this key: its whole path, or its last word."""
    return next((name for name in (key, key.rpartition(".")[2]) if name in sums), None)


class DictMerge:
    """Merges the values of parts. Its refusals name the key, the parts and the difference."""

    def __init__(self, task: MergeTask, arrays: Arrays) -> None:
        self._task, self._note = task, task.report.note
        self._arrays: Any = arrays  # dtype (in words), join (on dimension 0, rows then by places), stack, add, equal
        self._summed: set[str] = set()
        self._parts: list[MergePart] = []
        self._count = 0  # of those that are no empty dict
        self._alone: list[str] = []

    def merge(self, values: Sequence[HeldValue]) -> Any:
        """Return the one value of all parts."""
        self._parts = [part for part, _ in values]
        self._count = sum(not (isinstance(value, Mapping) and not value) for _, value in values)
        merged = self._merge("", values)
        if self._alone:
            more = f" (and {count_of(len(self._alone) - 1, 'other key')})" if len(self._alone) > 1 else ""
            self._note(f"{self._alone[0]}{more}: only one part has it; taken as it is")
        for key in sorted({*self._task.options.sum} - self._summed):
            self._note(f"--sum {shown(key)}: no part has a number under this key")
        return merged

    def _items(self, key: str, values: Sequence[HeldValue]) -> dict[Any, Any]:
        """Return the keys of these dicts with their merged values."""
        filled = [(part, value) for part, value in values if value]
        whole = {part.path for part, value in filled if not self._is_rowless(value)}
        for part, value in values:
            if not value and filled:
                self._note(f"{shown(part.name)}: {_label(key)} is an empty dict; it is skipped")
        merged = {}
        for name in {name: None for _, value in filled for name in value}:
            path = f"{key}.{name}" if key else str(name)
            having = [(part, value[name]) for part, value in filled if name in value]
            if whole - {part.path for part, _ in having}:
                self._check_lacking(path, having, [part for part, _ in filled])
            merged[name] = self._merge(path, having)
        return merged

    def _check_lacking(self, key: str, having: Sequence[HeldValue], parts: Sequence[MergePart]) -> None:
        """Report a key that only some parts have. Refused where its rows would be joined, and several have it."""
        own = {part.path for part, _ in having}
        lacking = shown(", ".join(first_few([part.name for part in parts if part.path not in own])))
        if len(having) == 1:
            self._alone.append(f"{shown(having[0][0].name)}: {_label(key)}")
        elif self._kind(having[0][1]) in ("plain value", "dict"):
            self._note(f"{_label(key)} is not in {lacking}")
        else:
            why = f"{_label(key)} is in {len(having)} of {len(parts)} parts, and not in {lacking}"
            raise MergeRefused(f"{why}: joined, its rows would not be those of the other keys")

    def _merge(self, key: str, values: Sequence[HeldValue]) -> Any:
        filled = [(part, value) for part, value in values if not self._is_rowless(value)] or values[:1]
        self._check_alike(key, filled, self._kind, "to be joined")
        kind, name = self._kind(filled[0][1]), sum_name(key, self._task.options.sum)
        if kind == "dict":
            return self._items(key, [held for held in values if self._kind(held[1]) == "dict"])
        self._summed |= {name} if name is not None else set()
        if kind == "plain value":
            return self._join_plain(key, values, is_summed=name is not None)
        if kind != "array":
            return self._join_lists(key, filled, values)
        for part in [part for part, _ in values if all(part is not other for other, _ in filled)]:
            self._note(f"{shown(part.name)}: {_label(key)} is empty")
        return self._join_arrays(key, filled, values) if name is None else self._add_arrays(key, filled)

    def _kind(self, value: Any) -> str:
        if self._arrays.holds(value):
            return "array"
        return next((name for name, kind in _KINDS if isinstance(value, kind)), "plain value")

    def _is_rowless(self, value: Any) -> bool:
        """Return True for what has no rows, and so takes no part in a decision about types and shapes."""
        if self._arrays.holds(value):
            return bool(len(value.shape)) and value.shape[0] == 0
        if isinstance(value, Mapping):
            joined = [held for held in value.values() if self._kind(held) != "plain value"]
            return not value or (bool(joined) and all(map(self._is_rowless, joined)))
        return isinstance(value, list | tuple) and not value

    def _rows(self, array: Any) -> str:
        return f"{self._arrays.dtype(array)}, rows of {tuple(array.shape[1:]) if len(array.shape) else 'no dimension'}"

    def _add_arrays(self, key: str, values: Sequence[HeldValue]) -> Any:
        dtype = self._arrays.dtype
        self._check_alike(key, values, lambda value: f"{dtype(value)} {tuple(value.shape)}", "to be added up")
        try:
            return self._arrays.add([value for _, value in values])
        except (OverflowError, TypeError):
            why = f"--sum {shown(key)}: the sum is no {shown(dtype(values[0][1]))}"
            raise MergeRefused(why, hint="store it in a wider dtype, or merge without --sum") from None

    def _join_arrays(self, key: str, filled: Sequence[HeldValue], values: Sequence[HeldValue]) -> Any:
        self._check_alike(key, filled, self._rows, "to be joined")
        several = [value for _, value in filled]
        if len(several[0].shape):
            return self._arrays.join(several, self._places_of(key, values))
        if all(self._arrays.equal(several[0], value) for value in several):
            return several[0]
        self._note(f"{_label(key)} differs from part to part: one value for each part, in one dimension")
        return self._arrays.stack(several)

    def _join_lists(self, key: str, filled: Sequence[HeldValue], values: Sequence[HeldValue]) -> Any:
        first = filled[0][1]
        if key and isinstance(first, tuple) and all(_same(first, value) for _, value in values):
            return first
        joined = [item for _, value in filled for item in value]
        places = self._places_of(key, values)
        joined = joined if places is None else [joined[place] for place in places]
        return tuple(joined) if isinstance(first, tuple) else joined

    def _join_plain(self, key: str, values: Sequence[HeldValue], *, is_summed: bool) -> Any:
        several = [value for _, value in values]
        if is_summed and not all(isinstance(value, Real) for value in several):
            raise MergeRefused(f"--sum {shown(key)}: it is no number in all parts")
        if is_summed:
            return sum(several)
        if all(_same(several[0], value) for value in several):
            return several[0]
        self._note(f"{_label(key)} differs from part to part: a list, one for each part (--sum adds numbers up)")
        return several

    def _places_of(self, key: str, values: Sequence[HeldValue]) -> Sequence[int] | None:
        """Return the order in which joined rows are the items' own; None to leave them as they are.

        A part that lacks the key has no row of it, unless it is the key of one part alone.
        """
        if len(values) == 1 < self._count:
            return None
        rows = {part.path: value.shape[0] if self._arrays.holds(value) else len(value) for part, value in values}
        return self._task.places(key, self._parts, [rows.get(part.path, 0) for part in self._parts])

    def _check_alike(self, key: str, values: Sequence[HeldValue], trait: Callable[[Any], str], purpose: str) -> None:
        first, own = values[0][0], trait(values[0][1])
        for part, value in values:
            if trait(value) != own:
                why = f"{_label(key)} is {shown(trait(value))}, and {shown(own)} in {shown(first.name)}: not {purpose}"
                raise MergeRefused(why, where=part.name, hint="make them alike, or leave that part out")


def _label(key: str) -> str:
    return repr(shown(key)) if key else "its content"


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:  # of a class that was unpickled
        return False
