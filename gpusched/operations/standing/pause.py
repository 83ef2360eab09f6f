"""The pause of a queue: nothing new starts in it until a person lets it go on."""

from __future__ import annotations

from dataclasses import dataclass

from gpusched.core.model import JobState
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import job_table, meta_table
from gpusched.operations import queues
from gpusched.operations.change import have_them_run


@dataclass(frozen=True, slots=True)
class PauseReport:
    """A queue that was paused, or goes on. `changed`: it was not so before. `notes`: texts beside."""

    queue: str  # its path
    paused: bool
    changed: bool
    running: int
    notes: list[str]


def set_paused(queue_dir: QueueDir, *, paused: bool) -> PauseReport:
    """Let nothing new start in this queue, or let it go on; running jobs are left alone."""
    with queues.open_store(queue_dir, read_only=False) as store:
        with store.transaction():
            changed = meta_table.is_paused(store) is not paused
            meta_table.write(store, "paused", str(queues.now()) if paused else "")
        queue_dir.ring()
        running = job_table.counts(store)[JobState.RUNNING]
        notes = [] if paused else have_them_run(queue_dir, store)
        return PauseReport(queue_dir.path, paused, changed, running, notes)
