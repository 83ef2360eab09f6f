"""The files of a sharded run in the directory of its queue: the plan, and the items file of each shard."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError
from gpusched.common.files import open_regular, sync_directory, write_atomically
from gpusched.common.merge_record import PLAN
from gpusched.common.text import clean
from gpusched.shards.plan import ShardPlan, from_document, to_document

if TYPE_CHECKING:
    from gpusched.common.item_files import Items

DIRECTORY = "items"
_TEMPORARY = re.compile(r"\.tmp[0-9]+$")


def write_items(
    items: Items, directory: str, files: Iterable[tuple[str, Sequence[int]]], *, only_missing: bool
) -> None:
    """Write the items file of each shard. `files` are paths and items; if `only_missing`, existing files are kept.

    Call this in one process at a time: it deletes what an earlier one that was killed has left half-written.
    """
    os.makedirs(directory, 0o700, exist_ok=True)
    for entry in [entry for entry in os.scandir(directory) if _TEMPORARY.search(entry.name)]:
        os.unlink(entry.path)
    missing = [(path, of_shard) for path, of_shard in files if not (only_missing and os.path.lexists(path))]
    if missing:
        take = items.open()
        for path, of_shard in missing:
            write_atomically(path, take(of_shard), sync=True)
    sync_directory(directory)


def read_plan(queue: str) -> ShardPlan | None:
    """Read the plan in the directory of a queue; None if there is none. Raises GpuschedError if it cannot be read."""
    path = f"{queue}/{PLAN}"
    try:
        with open(open_regular(path), "rb") as file:
            return from_document(json.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        hint = "nothing was changed; move the file away to make the plan again, or use another --log-dir"
        raise GpuschedError(f"cannot be read: {clean(str(error))}", where=path, hint=hint) from None


def write_plan(queue: str, plan: ShardPlan) -> None:
    """Replace the plan in the directory of a queue."""
    write_atomically(f"{queue}/{PLAN}", json.dumps(to_document(plan), indent=1).encode() + b"\n", sync=True)
    sync_directory(queue)


def remove_plan(queue: str) -> None:
    """Delete the plan durably, before the items files that it names are replaced."""
    if os.path.lexists(f"{queue}/{PLAN}"):
        os.unlink(f"{queue}/{PLAN}")
        sync_directory(queue)
