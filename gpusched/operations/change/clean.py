"""Removal of finished jobs, their logs, and queues that nobody needs any more; what would go is shown first."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

from gpusched.common.text import ranges
from gpusched.core.model import MIB, JobState
from gpusched.host.queue import job_files, queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, cleaning, job_table, meta_table
from gpusched.operations import queues
from gpusched.views.words import count, fit

SHOWN_IDS = 60  # characters
SETTLE_S = 1.0  # a dispatcher may still report what has just ended


class CleanWishes(NamedTuple):
    """Wishes for a clean: jobs that ended before a moment, the files that they kept, the memory of finished lines."""

    before: float
    with_files: bool = False
    forget: bool = False


def describe_clean(queue_dir: QueueDir, wishes: CleanWishes) -> list[str]:
    """Return in words what `clean` would remove, and what stays; empty if nothing goes. Changes nothing."""
    with queues.open_store(queue_dir) as store:
        wishes = _for_queue(queue_dir, store, wishes)
        ids = cleaning.removable(store, wishes.before)
        is_gone = _make_is_gone(store, ids)
        logs = [path for job_id, path in job_files.logs(queue_dir) if is_gone(job_id)]
        kept = sum(is_gone(job_id) for job_id, _ in job_files.attempt_dirs(queue_dir))
        forgotten = cleaning.count_finished(store) if wishes.forget else 0
        removal = _removal(queue_dir, store, wishes, ids)
        if not (ids or logs or forgotten or removal or (wishes.with_files and kept)):
            return []
        staying = cleaning.count_ended(store, wishes.before) - len(ids)
        lines = []
        if ids:
            states = Counter(job.state.value for job in job_table.standings(store, ids))
            in_words = ", ".join(f"{number} {state}" for state, number in states.items())
            lines.append(f"{count(len(ids), 'job')} ({in_words}): {fit(ranges(ids), SHOWN_IDS)}")
            if cleaning.has_lines(store) and not wishes.forget:
                lines.append("it stays, and knows the lines that have run: they do not run again (--forget: they do)")
    if logs:
        lines.append(f"{count(len(logs), 'log')}, {sum(map(job_files.size_of, logs)) / MIB:.1f} MiB")
    if kept:
        files = f"the files that jobs kept in {count(kept, 'attempt directory')}".replace("rys", "ries")
        lines.append(f"{files}{'' if wishes.with_files else ' stay (--with-files removes them)'}")
    if staying:
        lines.append(f"{count(staying, 'job')} that others depend on stay{'s' * (staying == 1)}")
    if forgotten:
        lines.append(f"{count(forgotten, 'line')} cleaned away before will run again")
    if removal:
        lines.append(f"the queue itself: {removal}")
    head = f"queue {queues.queue_name(queue_dir)} ({queues.shown_path(queue_dir.path)})"
    return [head, *(f"  {text}" for text in lines)]


def clean(queue_dir: QueueDir, wishes: CleanWishes) -> None:
    """Remove what `describe_clean` shows. Broken off at any moment, it can be done again, and finishes then."""
    if queue_dir.dispatcher() is not None:
        time.sleep(SETTLE_S)
    with queues.open_store(queue_dir, read_only=False) as store:
        wishes = _for_queue(queue_dir, store, wishes)
        cleaning.remove(store, wishes.before, forget=wishes.forget)  # first: no job loses a log while it is there
        job_files.remove(queue_dir, _make_is_gone(store), attempts=wishes.with_files)
        if _removal(queue_dir, store, wishes) and (lock := queue_dir.take()) is not None:
            try:
                if cleaning.close(store):
                    store.close()
                    job_files.remove_queue(queue_dir)
            finally:
                os.close(lock)


def _for_queue(queue_dir: QueueDir, store: Store, wishes: CleanWishes) -> CleanWishes:
    """Return the wishes for this queue: all goes where its directory is gone, unless jobs wait or run.

    Where the directory above is gone too, a file system may just not be mounted: then nothing more goes.
    """
    is_lost = not os.path.isdir(queue_dir.path) and os.path.isdir(os.path.dirname(queue_dir.path))
    counts = job_table.counts(store)
    if is_lost and not counts[JobState.QUEUED] + counts[JobState.HELD] + counts[JobState.RUNNING]:
        return CleanWishes(float("inf"), with_files=True, forget=True)
    return wishes


def _make_is_gone(store: Store, going: Collection[int] = ()) -> Callable[[int], bool]:
    """Return a function that tells if a job was here once and is no more, or is going."""
    last, there = job_table.last_id(store), set(job_table.ids(store)).difference(going)
    return lambda job_id: job_id <= last and job_id not in there


def _removal(queue_dir: QueueDir, store: Store, wishes: CleanWishes, going: Collection[int] = ()) -> str:
    """Return why a queue would be removed once these jobs are gone; empty if it stays.

    It stays as long as somebody may miss it: for its jobs, the lines that it knows as finished, its settings, the
    numbers of the default queue, or files that are not its own.
    """
    is_gone = _make_is_gone(store, going)
    if len(going) < len(job_table.ids(store)) or queue_dir.dispatcher() is not None or queue_dirs.is_default(queue_dir):
        return ""
    is_known = not wishes.forget and (cleaning.count_finished(store) or cleaning.has_lines(store))
    if is_known or meta_table.read(store, "set") or job_files.others(queue_dir, is_gone, attempts=wishes.with_files):
        return ""
    return "no job is left in it" if os.path.isdir(queue_dir.path) else "its directory is gone"
