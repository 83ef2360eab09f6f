"""The results of a pool in the order of its items, and the errors: files of the output directory, written whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from gpusched.common.errors import EXIT_SOME_FAILED, GpuschedError
from gpusched.common.files import replacing
from gpusched.common.text import one_line
from gpusched.host.store.pool.items import ItemStore, ListedOutcome
from gpusched.pool.messages import json_bytes
from gpusched.pool.options import PoolOptions
from gpusched.pool.publication import FORMATS, JSON_LINES

RESULTS, JOINED, ERRORS = "results.jsonl", "results.json", "errors.jsonl"


def write_results(store: ItemStore, options: PoolOptions) -> list[str]:
    """Write the results and the errors that there are, and return the paths of the files."""
    errors = f"{options.error_log_dir or options.output}/{ERRORS}"
    with suppress(FileNotFoundError):
        os.unlink(errors)
    name = RESULTS
    lines: Iterable[bytes] = map(line_of, store.listed("result"))
    if options.collect != "none":
        name, lines = JOINED, [json_bytes(join_lists(result for _, result in results(store)))]
    paths = [_write_as(FORMATS[options.sink].suffix, f"{options.output}/{name}", lines)]
    if options.log_errors and store.counts().errors:
        os.makedirs(os.path.dirname(errors), exist_ok=True)
        _write(errors, (bytes(row.document or b"") for row in store.listed("error")))
        paths.append(errors)
    return paths


def _write_as(suffix: str, path: str, lines: Iterable[bytes]) -> str:
    """Write JSON, and make another format of it by a process that may load what that needs. Return the file's path."""
    if suffix == JSON_LINES:
        _write(path, lines)
        return path
    target = f"{os.path.splitext(path)[0]}.{suffix}"
    source = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")
    _write(source, lines)
    command = [sys.executable, "-m", "gpusched.commands.publish", source, target]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    os.unlink(source)
    if ended.returncode:
        problem = f"cannot be written: {one_line((ended.stderr.splitlines() or ['killed'])[-1])}"
        hint = "the results are kept: write them with `gpusched pool export --sink jsonl`"
        raise GpuschedError(problem, where=target, hint=hint, exit_code=EXIT_SOME_FAILED)
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
