"""safetensors: each tensor by its name, joined on dimension 0. Copies bytes, so every dtype will do; needs no library.

The format: eight bytes with the length of a JSON header, the header (name -> dtype, shape, place), the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .objects import total
from .output import Output
from .parts import ItemOrder, Merged, Options, Part
from .rows import Rows, write_rows
from .rules import NoArrays, Rules, name_of_sum
from .trouble import EXIT_CANNOT_WORK, PartUnreadable, Refused, Told, clean, reading

LARGEST_HEADER = 100_000_000
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32}
_BITS |= {"U64": 64, "I64": 64, "F64": 64, "C64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_ADDED = {"U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
_ADDED |= {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a part."""

    part: Part
    dtype: str
    shape: tuple[int, ...]
    begin: int  # in the file
    size: int

    def read(self) -> bytes:
        with open(self.part.path, "rb") as file:
            file.seek(self.begin)
            return file.read(self.size)

    def rows(self) -> Rows:
        count = self.shape[0]
        return Rows(self.part, self.begin, count, self.size // count if count else 0)


@dataclass(frozen=True, slots=True)
class Made:
    """One tensor of the output: from rows of parts, or from bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rows: Sequence[Rows]
    order: ItemOrder | None
    data: bytes = b""

    @property
    def size(self) -> int:
        return sum(one.count * one.row_bytes for one in self.rows) + len(self.data)


def merge_safetensors(
    parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told
) -> Merged:
    held: list[tuple[Part, dict[str, Stored], Mapping[str, str]]] = []
    for part in parts:
        with reading(part, told):
            held.append((part, *_header(part, options.sums)))
    if not held:
        return Merged(None)
    able = [part for part, _, _ in held]
    rules = Rules(NoArrays(), able, order, options.sums, told)
    made = []
    for name in dict.fromkeys(name for _, tensors, _ in held for name in tensors):
        having = [tensors[name] for _, tensors, _ in held if name in tensors]
        rules.holders(name, [one.part for one in having], able, joined=bool(having[0].shape))
        made.append(_join(name, having, rules, several=len(held) > 1))
    rules.tell()
    made.sort(key=lambda one: (-_BITS.get(one.dtype, 8), one.name))  # wide ones first: each is then aligned
    _write(made, _texts(held, told), out)
    return Merged(total(parts), per_item=False)


def _header(part: Part, sums: Sequence[str]) -> tuple[dict[str, Stored], Mapping[str, str]]:
    """The tensors and the texts of a part. PartUnreadable where they do not fit the file."""
    with open(part.path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if part.size < 8 or length > LARGEST_HEADER:
            raise PartUnreadable("is empty" if part.size == 0 else "is no safetensors file")
        try:
            fields = json.loads(file.read(length))
            texts = fields.pop("__metadata__", None)
            texts = {} if texts is None else {key: str(text) for key, text in texts.items()}
            tensors = {
                name: Stored(
                    part,
                    str(found["dtype"]),
                    tuple(int(size) for size in found["shape"]),
                    8 + length + int(found["data_offsets"][0]),
                    int(found["data_offsets"][1]) - int(found["data_offsets"][0]),
                )
                for name, found in fields.items()
            }
        except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError, OverflowError):
            raise PartUnreadable("is cut in its header, or no safetensors file") from None
    for name, one in tensors.items():
        elements = 1
        for size in one.shape:
            elements *= size
        if any(size < 0 for size in one.shape):
            raise PartUnreadable(f"is no safetensors file: the tensor {clean(name)!r} has a negative size")
        if one.begin < 8 + length or one.size < 0 or one.begin + one.size > part.size:
            raise PartUnreadable(f"is cut: the tensor {clean(name)!r} goes beyond its end")
        if one.dtype in _BITS and elements * _BITS[one.dtype] != one.size * 8:
            raise PartUnreadable(f"the tensor {clean(name)!r} has {one.size:,} bytes, which its shape does not say")
    lengths = {one.shape[0] for name, one in tensors.items() if one.shape and name_of_sum(name, sums) is None}
    part.records = lengths.pop() if len(lengths) == 1 else None
    part.values = texts
    return tensors, texts


def _join(name: str, having: Sequence[Stored], rules: Rules, *, several: bool) -> Made:
    first, order, told = having[0], rules.order, rules.told
    if rules.summed_up(name):
        return Made(name, first.dtype, first.shape, (), None, _sum(name, having))
    filled = [one for one in having if one.shape != (0,)] or list(having)
    first = filled[0]
    for one in filled[1:]:
        if (one.dtype, one.shape[1:], len(one.shape)) != (first.dtype, first.shape[1:], len(first.shape)):
            raise Refused(
                f"{clean(name)!r} is {clean(one.dtype)} {one.shape}, and {clean(first.dtype)} {first.shape} in "
                f"{clean(first.part.name)}: not to be joined on dimension 0",
                where=one.part.name,
                hint="make them alike, or leave that part out",
            )
    if not first.shape:
        datas = [one.read() for one in filled]
        if len(set(datas)) == 1:
            return Made(name, first.dtype, (), (), None, datas[0])
        told.note(f"{clean(name)!r} differs from part to part: one value a part, in one dimension")
        return Made(name, first.dtype, (len(datas),), (), None, b"".join(datas))
    for one in filled:
        if one.shape[0] and one.size % one.shape[0]:
            raise Refused(
                f"{clean(name)!r} is {clean(one.dtype)} {one.shape}: its rows are no whole bytes, and cannot be joined",
                where=one.part.name,
                hint="store it in a wider dtype, or leave that part out",
            )
    rows = [one.rows() for one in filled]
    if order is not None and not order.fits([one.part for one in rows], [one.count for one in rows]):
        if not (len(having) == 1 and several):
            told.note(f"{clean(name)!r} has not one row an item: its parts stand in the order of their shards")
        order = None
    return Made(name, first.dtype, (sum(one.count for one in rows), *first.shape[1:]), rows, order)


def _sum(name: str, having: Sequence[Stored]) -> bytes:
    first = having[0]
    if first.dtype not in _ADDED or any((one.dtype, one.shape) != (first.dtype, first.shape) for one in having):
        why = "not of one dtype and shape" if first.dtype in _ADDED else f"{first.dtype} is not added up"
        raise Refused(f"--sum {clean(name)}: {why}")
    try:
        import numpy as np

        from .arrays import Numpy
    except ImportError:
        remedy = "pip install 'gpusched-lab[merge]'"
        raise Refused("--sum of .safetensors needs numpy", hint=remedy, exit_code=EXIT_CANNOT_WORK) from None
    try:
        made = Numpy().add([np.frombuffer(one.read(), _ADDED[first.dtype]) for one in having])
    except OverflowError:
        raise Refused(f"--sum {clean(name)}: the sum is no {first.dtype}", hint="store it in a wider dtype") from None
    return bytes(made.tobytes())


def _texts(held: Sequence[tuple[Part, Any, Mapping[str, str]]], told: Told) -> dict[str, str]:
    """`__metadata__`: equal texts stay, others become a JSON list with one a part."""
    made: dict[str, str] = {}
    for key in dict.fromkeys(key for _, _, texts in held for key in texts):
        values = [texts[key] for _, _, texts in held if key in texts]
        made[key] = values[0] if len(set(values)) == 1 else json.dumps(values)
        if len(set(values)) > 1:
            told.note(f"the metadata {clean(key)!r} differs from part to part: a JSON list, one a part")
    return made


def _write(made: Sequence[Made], texts: Mapping[str, str], out: Output) -> None:
    fields: dict[str, Any] = {"__metadata__": dict(texts)} if texts else {}
    at = 0
    for one in made:
        fields[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, at + one.size]}
        at += one.size
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    out.write(len(header).to_bytes(8, "little") + header)
    for one in made:
        if one.data:
            out.write(one.data)
        else:
            write_rows(one.rows, out, one.order)
