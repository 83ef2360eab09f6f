"""Decide what an item's failure leads to: another try, where, or its end. Values in, values out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpusched.host.store.pool.items import ItemOutcome, OpenItem
from gpusched.pool.messages import Failure

DEATHS = 2  # workers that may die with an item before it is in quarantine


class NextTry(Enum):
    """The place of the next try of an item."""

    ANYWHERE = "anywhere"
    ALONE = "alone"  # with nothing else running in its worker
    OWN_GPU = "own_gpu"  # with no other worker on its GPU


@dataclass(frozen=True, slots=True)
class ItemVerdict:
    """The effect of a failure: the item as it is now, and its next try; None if it has ended in an error."""

    item: OpenItem
    next_try: NextTry | None


def after_failure(item: OpenItem, failure: Failure, *, retries: int, had_own_gpu: bool) -> ItemVerdict:
    """Decide after a try that ended in an error, or for which there was no memory."""
    if failure.kind == "oom":
        return ItemVerdict(item, None if had_own_gpu else NextTry.OWN_GPU)
    item = item._replace(failures=item.failures + 1)
    return ItemVerdict(item, NextTry.ANYWHERE if item.failures <= retries else None)


def after_death(item: OpenItem) -> ItemVerdict:
    """Decide after a worker has died while it worked on the item."""
    item = item._replace(deaths=item.deaths + 1)
    return ItemVerdict(item, NextTry.ALONE if item.deaths < DEATHS else None)


def error_outcome(item: OpenItem, failure: Failure, *, worker: int, at: float) -> ItemOutcome:
    """Return the error in which an item has ended, as it is written to errors.jsonl."""
    document: dict[str, Any] = {
        "item": json.loads(item.value),
        "kind": failure.kind,
        "error": failure.error,
        "traceback": failure.traceback,
        "worker": worker,
        "at": at,
        "tries": item.failures + item.deaths or 1,
    }
    return ItemOutcome(item.id, "error", json.dumps(document).encode())
