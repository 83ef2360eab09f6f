"""The items of a pool, from a file, a pattern of files, or Python: each as JSON, with its identity and rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from gpusched.common.errors import GpuschedError
from gpusched.common.item_files import open_items
from gpusched.common.text import clean
from gpusched.host.store.pool.items import NewItem
from gpusched.pool.options import PoolOptions


def read_items(options: PoolOptions, values: Iterable[Any] | None = None) -> Iterator[NewItem]:
    """Yield the items, in their order; those of Python in the place of a file. Raises GpuschedError for wrong ones."""
    keys: set[bytes] = set()
    for number, each in enumerate(open_items(options.items).values() if values is None else values, 1):
        value = each if values is None and isinstance(each, bytes) else _as_json(each, number)
        fields = _fields(value, number) if options.key or options.size_key else {}
        content = value
        if options.key:
            content = msgspec.json.encode(_field(fields, options.key, number))
            if content in keys:
                raise _wrong(number, f"its {options.key} is {content.decode()}, which another item has")
            keys.add(content)
        rank = float(number)
        if options.size_key:
            with suppress(ValueError, TypeError):
                rank = -float(_field(fields, options.size_key, number))
        yield NewItem(hashlib.blake2b(content, digest_size=16).digest(), rank, value)


def _as_json(value: Any, number: int) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeError:
        raise _wrong(number, "it is no text in UTF-8") from None
    except (TypeError, ValueError) as error:
        raise _wrong(number, f"it is nothing that JSON has: {error}") from None


def _fields(value: bytes, number: int) -> dict[str, Any]:
    fields = msgspec.json.decode(value)
    if not isinstance(fields, dict):
        raise _wrong(number, "it has no fields, so --key and --size-key find nothing")
    return fields


def _field(fields: dict[str, Any], name: str, number: int) -> Any:
    if name not in fields:
        raise _wrong(number, f"it has no field {name!r}")
    return fields[name]


def _wrong(number: int, problem: str) -> GpuschedError:
    return GpuschedError(f"item {number}: {clean(problem)}", where="--items")
