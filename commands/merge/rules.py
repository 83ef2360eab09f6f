"""The rules by which dicts of the parts become one. Knows arrays only through what it is handed; reads no file.

| of a key, the parts hold | the output holds |
|---|---|
| lists, or tuples that differ | one, joined in the parts' order |
| arrays, tensors | one, concatenated on dimension 0 |
| dicts | one, by the same rules, key by key |
| plain values, or tuples, that are equal | that value |
| numbers, and the key was given to --sum | their sum |
| other plain values | a list with one a part |
| only one part has the key | what it holds |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

from .parts import ItemOrder, Part
from .trouble import Refused, Told, clean

ABSENT_SHOWN = 8
_WIDEST = 2.0**62  # a 64-bit sum that has left its dtype is off by 2**64; its floats by far less


class Arrays(Protocol):
    """What a library's arrays can do."""

    def holds(self, value: Any) -> bool:
        """Whether this is one of its arrays."""
        ...

    def shape(self, value: Any) -> tuple[int, ...]: ...
    def dtype(self, value: Any) -> str: ...
    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        """Concatenated on dimension 0; the rows then in the order of `places`."""
        ...

    def stack(self, values: Sequence[Any]) -> Any:
        """Scalars as one array."""
        ...

    def add(self, values: Sequence[Any]) -> Any:
        """Their sum in their dtype. OverflowError or TypeError where there is none."""
        ...

    def equal(self, one: Any, other: Any) -> bool: ...


def wrapped(made: Any, near: Any, bits: int) -> bool:
    """Whether a sum of integers has left its dtype of so many bits, whose own addition says nothing of it.

    `made` is the sum in that dtype, and `near` the same in 64-bit floats, both as floats and arrays of any library.
    """
    return bool((abs(made - near) > (_WIDEST if bits == 64 else 0.5)).any())


def name_of_sum(key: str, sums: Collection[str]) -> str | None:
    """Which of the names that --sum has been given is this key's: its whole path, or the last name."""
    return next((name for name in (key, key.rpartition(".")[2]) if name in sums), None)


class NoArrays:
    """For formats that have none."""

    def holds(self, value: Any) -> bool:
        return False

    def shape(self, value: Any) -> tuple[int, ...]:
        raise NotImplementedError

    def dtype(self, value: Any) -> str:
        raise NotImplementedError

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        raise NotImplementedError

    def stack(self, values: Sequence[Any]) -> Any:
        raise NotImplementedError

    def add(self, values: Sequence[Any]) -> Any:
        raise NotImplementedError

    def equal(self, one: Any, other: Any) -> bool:
        raise NotImplementedError


class Rules:
    """Merges values of parts. Refused names the key, the parts and what differs."""

    def __init__(
        self, arrays: Arrays, parts: Sequence[Part], order: ItemOrder | None, sums: Sequence[str], told: Told
    ) -> None:
        self.arrays = arrays
        self.order = order if all(part.shard is not None for part in parts) else None
        self.sums = frozenset(sums)
        self.told = told
        self.summed: set[str] = set()
        self._several = len(parts) > 1
        self._places: dict[tuple[int, ...], Sequence[int]] = {}
        self._alone = 0
        self._first_alone = ""

    def merge(self, held: Sequence[tuple[Part, Any]]) -> Any:
        """What these parts hold, as one. What --sum names and nobody has is told."""
        merged = self._merge("", held)
        self.tell()
        return merged

    def tell(self) -> None:
        """What is known once all keys have been seen."""
        if self._alone:
            more = f" (and {self._alone - 1:,} keys like it)" if self._alone > 1 else ""
            self.told.note(f"{self._first_alone}{more}: only one part has it; taken as it is")
        for key in sorted(self.sums - self.summed):
            self.told.note(f"--sum {clean(key)}: no part has a number under such a key")

    def _merge(self, key: str, held: Sequence[tuple[Part, Any]]) -> Any:
        kinds = {self._kind(value) for _, value in held}
        if len(kinds) > 1:
            self._differ(key, held, lambda value: self._kind(value))
        kind = kinds.pop()
        if kind == "dict":
            return dict(self.items(key, held))
        if kind == "array":
            return self._arrays(key, held)
        if kind in ("list", "tuple"):
            return self._lists(key, held)
        return self._plain(key, held)

    def _kind(self, value: Any) -> str:
        if self.arrays.holds(value):
            return "array"
        for kind in (dict, list, tuple):
            if isinstance(value, kind):
                return kind.__name__
        return "plain value"

    def items(self, key: str, held: Sequence[tuple[Part, Mapping[Any, Any]]]) -> Iterator[tuple[Any, Any]]:
        """The keys of these dicts and what each becomes, one by one; a value is asked for when its key comes."""
        filled = [(part, value) for part, value in held if value]
        for part, value in held:
            if not value and filled:
                self.told.note(f"{clean(part.name)}: {self._name(key)} is an empty dict; it is skipped")
        for name in {name: None for _, value in filled for name in value}:
            here = f"{key}.{name}" if key else str(name)
            having = [(part, value[name]) for part, value in filled if name in value]
            joined = self._kind(having[0][1]) not in ("plain value", "dict")
            self.holders(here, [part for part, _ in having], [part for part, _ in filled], joined=joined)
            yield name, self._merge(here, having)

    def holders(self, key: str, having: Sequence[Part], all_: Sequence[Part], *, joined: bool) -> None:
        """Tell of a key that only some have. Refused where its rows would be joined, and several have it."""
        if len(having) == len(all_):
            return
        if len(having) == 1:
            self._alone += 1
            self._first_alone = self._first_alone or f"{clean(having[0].name)}: {self._name(key)}"
            return
        own = set(map(id, having))
        lacking = [part.name for part in all_ if id(part) not in own]
        more = f" and {len(lacking) - ABSENT_SHOWN} more" if len(lacking) > ABSENT_SHOWN else ""
        shown = f"{clean(', '.join(lacking[:ABSENT_SHOWN]))}{more}"
        if not joined:
            self.told.note(f"{self._name(key)} is not in {shown}")
            return
        raise Refused(
            f"{self._name(key)} is in {len(having)} of {len(all_)} parts, and not in {shown}: joined, its rows would "
            "not be those of the other keys"
        )

    def _arrays(self, key: str, held: Sequence[tuple[Part, Any]]) -> Any:
        arrays = self.arrays
        summed = self.summed_up(key)
        if len(held) == 1 and self._several:
            return held[0][1]
        if summed:
            self._alike(key, held, lambda value: f"{arrays.dtype(value)} {arrays.shape(value)}")
            try:
                return arrays.add([value for _, value in held])
            except (OverflowError, TypeError):
                why = f"--sum {clean(key)}: the sum is no {clean(arrays.dtype(held[0][1]))}"
                raise Refused(why, hint="store it in a wider dtype, or merge without --sum") from None
        filled = [(part, value) for part, value in held if arrays.shape(value) != (0,)] or list(held)
        for part, value in held:
            if arrays.shape(value) == (0,) and filled and len(filled) < len(held):
                self.told.note(f"{clean(part.name)}: {self._name(key)} is empty")
        self._alike(key, filled, arrays.dtype)
        self._alike(
            key, filled, lambda value: f"rows of shape {arrays.shape(value)[1:]}" if arrays.shape(value) else "scalar"
        )
        values = [value for _, value in filled]
        if not arrays.shape(values[0]):
            if all(arrays.equal(values[0], value) for value in values):
                return values[0]
            self.told.note(f"{self._name(key)} differs from part to part: one value a part, in one dimension")
            return arrays.stack(values)
        counts = [arrays.shape(value)[0] for value in values]
        return arrays.join(values, self.places(key, [part for part, _ in filled], counts))

    def _lists(self, key: str, held: Sequence[tuple[Part, Any]]) -> Any:
        if len(held) == 1 and self._several:
            return held[0][1]
        first = held[0][1]
        if key and isinstance(first, tuple) and all(_same(first, value) for _, value in held):
            if all(part.records == len(first) for part, _ in held) and self._several:
                self.told.note(f"{self._name(key)} is the same tuple in all parts: it is kept; lists are joined")
            return first
        joined = [item for _, value in held for item in value]
        places = self.places(key, [part for part, _ in held], [len(value) for _, value in held])
        if places is not None:
            joined = [joined[place] for place in places]
        return tuple(joined) if isinstance(first, tuple) else joined

    def _plain(self, key: str, held: Sequence[tuple[Part, Any]]) -> Any:
        values = [value for _, value in held]
        if self.summed_up(key):
            if not all(isinstance(value, int | float) for value in values):
                self._differ(key, held, lambda value: type(value).__name__, "to be added up")
            return sum(values)
        if all(_same(values[0], value) for value in values):
            return values[0]
        self.told.note(f"{self._name(key)} differs from part to part: a list, one a part (--sum adds numbers up)")
        return values

    def places(self, key: str, parts: Sequence[Part], counts: Sequence[int]) -> Sequence[int] | None:
        """In which order joined rows are the items' own; None to leave them as they are."""
        if self.order is None:
            return None
        if not self.order.fits(parts, counts):
            self.told.note(f"{self._name(key)} has not one row an item: its parts stand in the order of their shards")
            return None
        shards = tuple(part.shard for part in parts if part.shard is not None)
        if shards not in self._places:
            self._places[shards] = self.order.places(shards)
        return self._places[shards]

    def summed_up(self, key: str) -> bool:
        """Whether --sum names this key; that somebody has it is remembered."""
        name = name_of_sum(key, self.sums)
        if name is not None:
            self.summed.add(name)
        return name is not None

    def _alike(self, key: str, held: Sequence[tuple[Part, Any]], look: Callable[[Any], str]) -> None:
        if len({look(value) for _, value in held}) > 1:
            self._differ(key, held, look)

    def _differ(
        self, key: str, held: Sequence[tuple[Part, Any]], look: Callable[[Any], str], what: str = "to be joined"
    ) -> None:
        first, found = held[0], look(held[0][1])
        other = next(((part, value) for part, value in held if look(value) != found), held[-1])
        raise Refused(
            f"{self._name(key)} is {clean(look(other[1]))}, and {clean(found)} in {clean(first[0].name)}: not {what}",
            where=other[0].name,
            hint="make them alike, or leave that part out",
        )

    def _name(self, key: str) -> str:
        return repr(clean(key)) if key else "what it holds"


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other) or (one != one and other != other)
    except Exception:  # of a class that was unpickled
        return False
