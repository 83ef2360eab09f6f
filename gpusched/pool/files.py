"""The files of a pool: its items beside the results, its plan for coordinator and workers beside the queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from gpusched.common.files import write_atomically
from gpusched.host import locks
from gpusched.host.gpus.claims import is_local
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.pool.options import OPTIONS, PoolOptions


def items_path(options: PoolOptions, queue_dir: QueueDir) -> str:
    """Return the path of the items' store: in the output directory, or beside the queue if that is no local disk."""
    return f"{options.output if is_local(options.output) else queue_dir.state}/items.db"


@contextmanager
def writing(path: str) -> Iterator[bool]:
    """Be the one writer of a store of items; False if there is another one: a coordinator, or a start of a pool."""
    lock = locks.take_file(f"{path}.lock", 0o600)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


@dataclass(frozen=True, kw_only=True)
class PoolPlan(PoolOptions):
    """A pool as its coordinator and its workers read it from the local directory of the queue."""

    queue: str  # its directory
    gpus: int  # to use at once; 0: workers on the CPU

    def write(self, directory: str) -> None:
        """Write it where `PoolOptions.read` finds it."""
        write_atomically(f"{directory}/{OPTIONS}", msgspec.json.encode(self), sync=True)
