"""The results of a pool in the order of its items, and the errors: files of the output directory, written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from gpusched.common.files import private_name
from gpusched.host.store.pool.items import ItemStore, ListedOutcome
from gpusched.pool.options import PoolOptions

RESULTS, JOINED, ERRORS = "results.jsonl", "results.json", "errors.jsonl"


def write_results(store: ItemStore, options: PoolOptions) -> list[str]:
    """Write the results and the errors that there are, and return the paths of the files."""
    errors = f"{options.error_log_dir or options.output}/{ERRORS}"
    with suppress(FileNotFoundError):
        os.unlink(errors)
    if options.collect:
        path = f"{options.output}/{JOINED}"
        _write(path, [msgspec.json.encode(join_lists(result for _, result in results(store)))])
    else:
        path = f"{options.output}/{RESULTS}"
        _write(path, map(line_of, store.listed("result")))
    paths = [path]
    if options.log_errors and store.counts().errors:
        os.makedirs(os.path.dirname(errors), exist_ok=True)
        _write(errors, (bytes(row.document or b"") for row in store.listed("error")))
        paths.append(errors)
    return paths


def line_of(row: ListedOutcome) -> bytes:
    """Return an item and its result as a line of JSON."""
    return b'{"item":%b,"result":%b}' % (row.value, row.document or b"null")


def results(store: ItemStore) -> Iterator[tuple[int, Any]]:
    """Yield the position of each item that has a result, and the result."""
    return ((row.position, json.loads(row.document or b"null")) for row in store.listed("result"))


def join_lists(parts: Iterable[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return one dict whose lists are those of all parts, joined in their order."""
    joined: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part.items():
            joined.setdefault(name, []).extend(values if isinstance(values, list) else [values])
    return joined


def _write(path: str, lines: Iterable[bytes]) -> None:
    temporary = private_name(path)
    try:
        with open(temporary, "xb") as file:
            for line in lines:
                file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
