"""NumPy's .npy and .npz: joined on axis 0. Rows of .npy are copied as bytes; of .npz one array is held at a time."""

from __future__ import annotations

import io
import math
import sys
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy

from .objects import total
from .output import Output
from .parts import ItemOrder, Merged, Options, Part
from .rows import Rows, write_rows
from .rules import Rules, name_of_sum, wrapped
from .trouble import PartUnreadable, Refused, Told, clean, reading, too_many_open

_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that zip can say: the same parts make the same bytes
_MOST_AXES = 64  # of NumPy
_DAMAGE = (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, KeyError, RuntimeError)


class Numpy:
    """What NumPy's arrays can do."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def shape(self, value: Any) -> tuple[int, ...]:
        return tuple(value.shape)

    def dtype(self, value: Any) -> str:
        """Of text without its width: the widest holds all, and every part has another one."""
        return {"U": "text", "S": "bytes"}.get(value.dtype.kind) or str(value.dtype)

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        joined = np.concatenate(list(values))
        return joined if places is None else joined[np.asarray(places, dtype=np.int64)]

    def stack(self, values: Sequence[Any]) -> Any:
        return np.stack(list(values))

    def add(self, values: Sequence[Any]) -> Any:
        stacked = np.stack(list(values))
        made = np.asarray(stacked.sum(axis=0, dtype=stacked.dtype))
        if made.dtype.kind in "biu":
            near = stacked.sum(axis=0, dtype=np.float64)
            if wrapped(made.astype(np.float64), near, made.itemsize * 8):
                raise OverflowError
        return made

    def equal(self, one: Any, other: Any) -> bool:
        return bool(np.array_equal(one, other)) or bool(one != one and other != other)


# ---- npy -------------------------------------------------------------------------------------------


def merge_npy(parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told) -> Merged:
    """Arrays of one dtype and row shape, on axis 0."""
    found: list[tuple[Rows, Any, tuple[int, ...]]] = []
    for part in parts:
        with reading(part, told):
            found.append(_npy_rows(part))
    if not found:
        return Merged(None)
    filled = [one for one in found if one[2] != (0,)] or found
    for rows, _, shape in found:
        if shape == (0,) and len(filled) < len(found):
            told.note(f"{clean(rows.part.name)} is empty: it is skipped")
    _, dtype, shape = filled[0]
    for rows, other_dtype, other_shape in filled[1:]:
        if other_dtype != dtype or other_shape[1:] != shape[1:]:
            here, there = f"{other_dtype} {other_shape}", f"{dtype} {shape} in {clean(filled[0][0].part.name)}"
            raise Refused(
                f"is {clean(here)}, and {clean(there)}: not to be joined on axis 0",
                where=rows.part.name,
                hint="make dtype and shape of a row alike, or leave that part out",
            )
    rows_ = [rows for rows, _, _ in filled]
    if order and not order.fits([rows.part for rows in rows_], [rows.count for rows in rows_]):
        told.not_in_order()
        order = None
    out.write(_npy_header(dtype, (sum(rows.count for rows in rows_), *shape[1:])))
    write_rows(rows_, out, order)
    return Merged(total(parts))


def _npy_rows(part: Part) -> tuple[Rows, Any, tuple[int, ...]]:
    if part.size == 0:
        raise PartUnreadable("is empty")
    try:
        with open(part.path, "rb") as file:
            shape, fortran, dtype, offset = _read_header(file)
        if dtype.hasobject:
            raise PartUnreadable("holds Python objects, which are not merged: save a list as .pt or .jsonl")
        if not shape:
            raise PartUnreadable("is a scalar: it has no axis 0")
        each = dtype.itemsize * math.prod(shape[1:])
        if part.size < offset + shape[0] * each:
            raise PartUnreadable(f"is cut: {part.size:,} of {offset + shape[0] * each:,} bytes")
        rows = Rows(part, offset, shape[0], each)
        if fortran and len(shape) > 1:  # stored by columns: turned in memory
            rows = Rows(part, 0, shape[0], each, np.load(part.path).tobytes("C"))
        part.records = shape[0]
        return rows, dtype, shape
    except _DAMAGE as error:
        raise PartUnreadable(f"is no .npy file, or damaged: {clean(error, 120)}") from None


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, Any, int]:
    """(shape, stored by columns, dtype, where the data begins). ValueError where it says no array that can be."""
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version[0]}.{version[1]} of the format")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers by Python 2, and of words that are no Python any more
            shape, fortran, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # the header is Python's text: tokenizer, parser and dtype each have their own
        raise ValueError(f"its header cannot be read: {clean(error, 120)}") from None
    if any(size < 0 for size in shape):
        raise ValueError(f"a negative size in its shape {shape}")
    if len(shape) > _MOST_AXES or math.prod(max(size, 1) for size in shape) * max(dtype.itemsize, 1) > sys.maxsize:
        raise ValueError(f"no array has the shape {clean(shape, 60)}")
    return tuple(shape), bool(fortran), dtype, file.tell()


def _npy_header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    header = io.BytesIO()
    try:
        npy.write_array_header_1_0(header, fields)
    except ValueError:  # longer than the first version can say
        header = io.BytesIO()
        npy.write_array_header_2_0(header, fields)
    return header.getvalue()


# ---- npz -------------------------------------------------------------------------------------------


def merge_npz(parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told) -> Merged:
    """Each array by its name, by the rules for dicts."""
    held: list[tuple[Part, Any]] = []
    compressed = False
    for part in parts:
        with reading(part, told):
            try:
                deflated, records = _check_npz(part, options.sums)
                held.append((part, np.load(part.path, allow_pickle=False)))
                compressed, part.records = compressed or deflated, records
            except (OSError, *_DAMAGE) as error:
                why = "is empty" if part.size == 0 else f"is no .npz file, or cut: {clean(error, 120)}"
                raise too_many_open(error) or PartUnreadable(why) from None
    if not held:
        return Merged(None)
    try:
        rules = Rules(Numpy(), [part for part, _ in held], order, options.sums, told)
        method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        with out.file() as file, zipfile.ZipFile(file, "w", method) as archive:
            for name, array in rules.items("", held):
                member = zipfile.ZipInfo(f"{name}.npy", _FIRST_DATE)
                member.compress_type, member.external_attr = method, 0o600 << 16
                with archive.open(member, "w", force_zip64=True) as into:
                    npy.write_array(into, np.asarray(array), allow_pickle=False)
        rules.tell()
    finally:
        for _, opened in held:
            opened.close()
    return Merged(total(parts), per_item=False)


def _check_npz(part: Part, sums: Sequence[str]) -> tuple[bool, int | None]:
    """Whether it is compressed, and its records; PartUnreadable if a byte of it is wrong."""
    lengths: set[int] = set()
    values: dict[str, Any] = {}
    with zipfile.ZipFile(part.path) as archive:
        if (bad := archive.testzip()) is not None:
            raise PartUnreadable(f"is damaged: the array {clean(bad.removesuffix('.npy'))!r} has a wrong checksum")
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise PartUnreadable(f"holds {clean(name)!r}, which is no array")
            with archive.open(member) as file:
                shape, _, dtype, offset = _read_header(file)
                if dtype.hasobject:
                    raise PartUnreadable(f"array {clean(name)!r} holds Python objects, which are not merged")
                if member.file_size < (whole := offset + dtype.itemsize * math.prod(shape)):
                    raise PartUnreadable(f"array {clean(name)!r} is cut: {member.file_size:,} of {whole:,} bytes")
                if shape:
                    lengths |= {shape[0]} if name_of_sum(name, sums) is None else set()
                elif dtype.kind in "biufU":
                    values[name] = np.frombuffer(file.read(), dtype)[0].item()
        part.values = values
        deflated = any(member.compress_type == zipfile.ZIP_DEFLATED for member in archive.infolist())
        return deflated, lengths.pop() if len(lengths) == 1 else None
