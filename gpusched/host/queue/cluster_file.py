"""The file in which the head of a cluster publishes its nodes and the reasons of waiting jobs. Decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from gpusched.common.files import read_regular, write_atomically
from gpusched.core.plan.board import Board
from gpusched.host.queue.queue_dirs import QueueDir

LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it. `closed`: why it is given nothing more."""

    name: str
    heard_at: float
    closed: str = ""
    tags: tuple[str, ...] = ()
    board: Board | None = None
    running: int = 0
    reserved: int = 0
    clock_error_s: float = 0.0
    is_told: bool = False  # that the cluster ends


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster of a queue at one moment. `reasons` are those of the first waiting jobs, by id."""

    at: float
    nodes: tuple[NodeView, ...] = ()
    reasons: dict[int, str] = field(default_factory=dict)


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
