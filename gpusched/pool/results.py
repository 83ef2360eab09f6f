"""The results of a pool in the order of its items, and the errors: files of the output directory, written whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from gpusched.common.errors import EXIT_SOME_FAILED, GpuschedError
from gpusched.common.files import replacing
from gpusched.common.text import one_line
from gpusched.host.store.pool.items import ItemStore, ListedOutcome
from gpusched.pool.options import PoolOptions
from gpusched.pool.publication import FORMATS, JSON_LINES

RESULTS, JOINED, ERRORS = "results.jsonl", "results.json", "errors.jsonl"


def write_results(store: ItemStore, options: PoolOptions) -> list[str]:
    """Write the results and the errors that there are, and return the paths of the files."""
    errors = f"{options.error_log_dir or options.output}/{ERRORS}"
    with suppress(FileNotFoundError):
        os.unlink(errors)
    if options.collect != "none":
        path = f"{options.output}/{JOINED}"
        _write(path, [msgspec.json.encode(join_lists(result for _, result in results(store)))])
    else:
        path = f"{options.output}/{RESULTS}"
        _write(path, map(line_of, store.listed("result")))
    paths = [_converted(path, FORMATS[options.sink].suffix)]
    if options.log_errors and store.counts().errors:
        os.makedirs(os.path.dirname(errors), exist_ok=True)
        _write(errors, (bytes(row.document or b"") for row in store.listed("error")))
        paths.append(errors)
    return paths


def _converted(path: str, suffix: str) -> str:
    """Put a file of another format in the place of JSON, by a process that may load what that needs."""
    if suffix == JSON_LINES:
        return path
    target = f"{os.path.splitext(path)[0]}.{suffix}"
    command = [sys.executable, "-m", "gpusched.commands.publish", path, target]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if ended.returncode:
        problem = f"cannot be written: {one_line((ended.stderr.splitlines() or ['killed'])[-1])}"
        raise GpuschedError(problem, where=target, hint=f"the results are in {path}", exit_code=EXIT_SOME_FAILED)
    os.unlink(path)
    return target


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
    with replacing(path) as temporary, open(temporary, "xb") as file:
        for line in lines:
            file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
