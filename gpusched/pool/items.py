"""The items of a pool, from a file, a pattern of files, or Python: each as JSON, with its identity and rank."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from gpusched.common.errors import GpuschedError
from gpusched.common.libraries import refuse_missing
from gpusched.common.text import clean, natural_key
from gpusched.common.text_input import check_text, map_file, read_rows, split_lines
from gpusched.host.store.pool.items import NewItem
from gpusched.pool.options import PoolOptions


def read_items(options: PoolOptions, values: Iterable[Any] | None = None) -> Iterator[NewItem]:
    """Yield the items, in their order; those of Python in the place of a file. Raises GpuschedError for wrong ones."""
    keys: set[bytes] = set()
    for number, value in enumerate(_texts(options.items) if values is None else map(_as_json, values), 1):
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


def _as_json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except TypeError as error:
        raise GpuschedError(
            f"an item cannot be written as JSON: {error}", hint="use paths, numbers, lists or dicts"
        ) from None


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


def _texts(name: str) -> Iterator[bytes]:
    """Yield the items of a file, or the paths that match a pattern, as JSON."""
    path = os.path.abspath(os.path.expanduser(name))
    if not os.path.exists(path) and glob.has_magic(name):
        files = [file for file in glob.iglob(path, recursive=True) if os.path.isfile(file)]
        if not files:
            raise GpuschedError("no file matches this", where=f"--items {clean(name)}")
        return map(_as_json, sorted(files, key=natural_key))
    try:
        if path.endswith(".parquet"):
            return _parquet_rows(path)
        data = map_file(path)
        start = check_text(data)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise GpuschedError(f"cannot be read: {problem}", where=f"--items {clean(path)}") from None
    lines = (line[0] for line in split_lines(data, start))
    if path.endswith((".csv", ".tsv")):
        return _table_rows(lines, "\t" if path.endswith(".tsv") else "")
    if path.endswith(".jsonl"):
        return _json_lines(lines)
    return (_as_json(line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")) for line in lines if line.strip())


def _json_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                json.loads(line)
            except ValueError as error:
                raise GpuschedError(f"line {number} is no JSON: {error}", where="--items") from None
            yield line.strip()


def _table_rows(lines: Iterable[bytes], delimiter: str) -> Iterator[bytes]:
    try:
        rows = read_rows((line.decode("utf-8", "surrogateescape") for line in lines), [], delimiter)
        names = next(rows).cells
        for row in rows:
            yield _as_json(dict(zip(names, row.cells, strict=False)))
    except StopIteration:
        return
    except ValueError as error:
        raise GpuschedError(str(error), where="--items") from None


def _parquet_rows(path: str) -> Iterator[bytes]:
    refuse_missing("--items FILE.parquet", ["pyarrow"])
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1000):
            yield from map(_as_json, batch.to_pylist())
