"""The pause of a queue: nothing new starts in it until a person lets it go on."""

from __future__ import annotations

import shlex

from gpusched.core.model import JobState
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import job_table, meta_table
from gpusched.operations import queues
from gpusched.operations.change.requests import ChangeReport, have_them_run
from gpusched.views.words import count


def set_paused(queue_dir: QueueDir, *, paused: bool) -> ChangeReport:
    """Let nothing new start in this queue, or let it go on; running jobs are left alone."""
    queue, name = f"the queue {queues.queue_label(queue_dir)}", shlex.quote(queues.queue_name(queue_dir))
    with queues.open_store(queue_dir, read_only=False) as store:
        with store.transaction():
            was_paused = meta_table.is_paused(store)
            meta_table.write(store, "paused", str(queues.now()) if paused else "")
        queue_dir.ring()
        if not paused:
            notes = [f"{queue} goes on" if was_paused else f"{queue} is not paused", *have_them_run(queue_dir, store)]
        else:
            running = count(job_table.counts(store)[JobState.RUNNING], "job")
            state = "was paused before" if was_paused else "is paused"
            notes = [
                f"{queue} {state}: nothing new starts, what runs goes on ({running})",
                f"to go on: gpusched resume -q {name}",
            ]
    return ChangeReport(queue_dir.path, notes=notes, facts={"paused": paused, "changed": paused is not was_paused})
