"""The files of a sharded run in its queue's directory: the plan, and the items file of each shard. Knows no format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gpusched.common.errors import GpuschedError
from gpusched.common.files import sync_directory, write_atomically
from gpusched.common.text import clean

PLAN = "shard_plan.json"
DIRECTORY = "items"
PLAN_LIMIT_BYTES = 1 << 30
_HALF = re.compile(r"\.tmp[0-9]+$")


class Writer(Protocol):
    """Items that can be written into a file of their format."""

    def write(self, path: str, items: Sequence[int]) -> None: ...
    def release(self) -> None: ...


def write_items(items: Writer, directory: str, wanted: Iterable[tuple[str, Sequence[int]]], *, missing: bool) -> None:
    """An items file for each shard: path and items. `missing`: those that are there are right already.

    To be called by one at a time: what an earlier one that was killed has left half written is taken away.
    """
    os.makedirs(directory, 0o700, exist_ok=True)
    halves = {entry.path for entry in os.scandir(directory) if _HALF.search(entry.name)}
    for path, own in wanted:
        halves.discard(path)
        if not (missing and os.path.lexists(path)):
            items.write(path, own)
    for path in halves:
        os.unlink(path)
    sync_directory(directory)
    items.release()


def read_plan(queue: str) -> Any:
    """The document of a queue's plan; None where there is none. Raises GpuschedError for one that cannot be read."""
    path = f"{queue}/{PLAN}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise GpuschedError(f"cannot be read: {error.strerror}", where=path) from None
    try:
        with os.fdopen(fd, "rb") as file:
            return json.loads(file.read(PLAN_LIMIT_BYTES))
    except (ValueError, RecursionError, OSError) as error:
        hint = "it is left as it is: move it away to make the plan anew, or use another --log-dir"
        raise GpuschedError(f"cannot be read: {clean(str(error))}", where=path, hint=hint) from None


def write_plan(queue: str, document: Any) -> None:
    """Replace the queue's plan."""
    write_atomically(f"{queue}/{PLAN}", json.dumps(document, indent=1).encode() + b"\n", sync=True)
    sync_directory(queue)


def remove_plan(queue: str) -> None:
    """Take the queue's plan away for good, before what it says of items files is true no more."""
    try:
        os.unlink(f"{queue}/{PLAN}")
    except FileNotFoundError:
        return
    sync_directory(queue)
