"""The file in which the head of a cluster publishes its nodes and the reasons of waiting jobs. Decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict

from gpusched.common.files import read_regular, write_atomically
from gpusched.core.plan.board import ClusterView
from gpusched.host.queue.queue_dirs import QueueDir

LIMIT_BYTES = 64 << 20


def _path(queue: QueueDir) -> str:
    return f"{queue.state}/cluster.json"


def write(queue: QueueDir, view: ClusterView) -> None:
    write_atomically(_path(queue), json.dumps(asdict(view)).encode())


def read(queue: QueueDir) -> ClusterView | None:
    """Return what the head has published last; None for a queue without one."""
    import msgspec  # not at the start of every command

    try:
        return msgspec.json.decode(read_regular(_path(queue), LIMIT_BYTES), type=ClusterView)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
