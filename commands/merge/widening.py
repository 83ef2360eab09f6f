"""Two Arrow types -> one that holds every value of both exactly, if there is one. Reads no data."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types

_EXACT_BITS = {16: 11, 32: 24, 64: 53}  # whole numbers that a float of so many bits holds


def widened(one: Any, other: Any) -> Any:
    """None where no type holds both exactly: text and numbers, 64-bit integers and floats, times of other zones."""
    if one == other:
        return one
    if types.is_null(one) or types.is_null(other):
        return other if types.is_null(one) else one
    for rule in (_numbers, _texts, _dictionaries, _times, _decimals, _nested):
        if (found := rule(one, other)) is not None:
            return found
    return None


def _numbers(one: Any, other: Any) -> Any:
    if types.is_integer(one) and types.is_integer(other):
        return _integers(one, other)
    if types.is_floating(one) and types.is_floating(other):
        return max(one, other, key=lambda kind: int(kind.bit_width))
    if types.is_floating(one) and types.is_integer(other):
        one, other = other, one
    if types.is_integer(one) and types.is_floating(other):
        bits = one.bit_width - types.is_signed_integer(one)
        floats = ((16, pa.float16()), (32, pa.float32()), (64, pa.float64()))
        return next((kind for size, kind in floats if size >= other.bit_width and _EXACT_BITS[size] >= bits), None)
    return None


def _integers(one: Any, other: Any) -> Any:
    if types.is_signed_integer(one) == types.is_signed_integer(other):
        return max(one, other, key=lambda kind: int(kind.bit_width))
    signed, unsigned = (one, other) if types.is_signed_integer(one) else (other, one)
    bits = max(signed.bit_width, unsigned.bit_width * 2)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)


def _texts(one: Any, other: Any) -> Any:
    text = (types.is_string, types.is_large_string)
    data = (types.is_binary, types.is_large_binary)
    for kinds, made in ((text, pa.large_string()), (data, pa.large_binary())):
        if all(any(is_kind(kind) for is_kind in kinds) for kind in (one, other)):
            return made
    return None


def _dictionaries(one: Any, other: Any) -> Any:
    if not (types.is_dictionary(one) or types.is_dictionary(other)):
        return None
    plain = [kind.value_type if types.is_dictionary(kind) else kind for kind in (one, other)]
    return widened(*plain)


def _times(one: Any, other: Any) -> Any:
    """The finer unit; a value that does not fit into it is refused when it is read."""
    units = ("s", "ms", "us", "ns")
    if types.is_timestamp(one) and types.is_timestamp(other) and one.tz == other.tz:
        return max(one, other, key=lambda kind: units.index(kind.unit))
    if types.is_duration(one) and types.is_duration(other):
        return max(one, other, key=lambda kind: units.index(kind.unit))
    return None


def _decimals(one: Any, other: Any) -> Any:
    if types.is_decimal128(one) and types.is_decimal128(other) and one.scale == other.scale:
        return max(one, other, key=lambda kind: int(kind.precision))
    return None


def _nested(one: Any, other: Any) -> Any:
    for is_kind, make in ((types.is_list, pa.list_), (types.is_large_list, pa.large_list)):
        if is_kind(one) and is_kind(other):
            inner = widened(one.value_type, other.value_type)
            return None if inner is None else make(one.value_field.with_type(inner).with_nullable(True))
    if types.is_struct(one) and types.is_struct(other):
        names = [one.field(k).name for k in range(one.num_fields)]
        if names != [other.field(k).name for k in range(other.num_fields)]:
            return None
        inner = [widened(one.field(k).type, other.field(k).type) for k in range(one.num_fields)]
        fields = (pa.field(name, kind) for name, kind in zip(names, inner, strict=True))
        return None if None in inner else pa.struct(list(fields))
    return None
