"""The files in which a dispatcher, or the head of a cluster, publishes what it knows. Decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TypeVar

from gpusched.common.files import read_regular, write_atomically
from gpusched.core.plan.board import Board, ClusterView
from gpusched.host.queue.queue_dirs import QueueDir

SCHEMA_VERSION = 1
LIMIT_BYTES = 64 << 20
P = TypeVar("P", Board, ClusterView)


def write(path: str, value: Board | ClusterView) -> None:
    write_atomically(path, json.dumps({"schema_version": SCHEMA_VERSION, **asdict(value)}).encode())


def read_board(queue: QueueDir) -> Board | None:
    """Return what the dispatcher of a queue has published last; None where nothing can be read."""
    return _read(queue.board, Board)


def read_cluster(queue: QueueDir) -> ClusterView | None:
    """Return what the head of a cluster has published last; None for a queue without one."""
    return _read(queue.cluster, ClusterView)


def _read(path: str, kind: type[P]) -> P | None:
    """Return a value; a field that is not known is passed over."""
    import msgspec  # not at the start of every command

    try:
        data = read_regular(path, LIMIT_BYTES)
        if json.loads(data)["schema_version"] != SCHEMA_VERSION:
            return None
        return msgspec.json.decode(data, type=kind)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
