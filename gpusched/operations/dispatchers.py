"""A queue that is read, and its dispatcher, as other processes see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpusched.common.errors import disk_full
from gpusched.core.plan.board import Board
from gpusched.host.gpus import board as boards
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store
from gpusched.operations import queues


@dataclass(frozen=True, slots=True)
class DispatcherStatus:
    """The dispatcher of a queue. `pid` is None without one; `board` is what it has published, None if nothing yet.

    `full_disk`: the directory of the queue whose disk has no room, so that nothing new is published or noted.
    """

    pid: int | None
    board: Board | None
    full_disk: str = ""

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def closed(self) -> str:
        """The reason why nothing new starts; empty if jobs may start."""
        published = self.board.closed if self.board is not None else ""
        return published or (disk_full(self.full_disk) if self.full_disk else "")


def read_dispatcher(queue_dir: QueueDir) -> DispatcherStatus:
    pid = queue_dir.dispatcher()
    board = boards.read(queue_dir.board) if pid is not None else None
    if board is not None and pid and board.pid != pid:
        board = None  # left by one that was killed
    return DispatcherStatus(pid, board, queue_dir.full_disk())


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A queue that is being read: its database, and its dispatcher at the moment `now`."""

    queue_dir: QueueDir
    store: Store
    dispatcher: DispatcherStatus
    now: float


@contextmanager
def open_queue(queue_dir: QueueDir) -> Iterator[OpenQueue]:
    """Open a queue to read it."""
    with queues.open_store(queue_dir) as store:
        yield OpenQueue(queue_dir, store, read_dispatcher(queue_dir), queues.now())
