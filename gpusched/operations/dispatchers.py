"""The dispatcher of a queue, as other processes see it."""

from __future__ import annotations

from dataclasses import dataclass

from gpusched.common.errors import disk_full
from gpusched.core.plan.board import Board
from gpusched.host.gpus import board as boards
from gpusched.host.queue.queue_dirs import QueueDir


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
