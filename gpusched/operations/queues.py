"""The queue and the jobs that a person names, and the dispatcher of a queue as other processes see it."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError, disk_full
from gpusched.core.model import ENDED_STATES, JobState
from gpusched.core.plan.board import Board, paused_text
from gpusched.host.queue import interactive, published
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir as QueueDir
from gpusched.host.store import Store, job_table, meta_table
from gpusched.views.words import short_path

SHOWN_QUEUES = 10
UNFINISHED = [state for state in JobState if state not in ENDED_STATES]

Notify = Callable[[str], None]


def ignore(text: str) -> None:
    """Do nothing with a text."""


def now() -> float:
    return time.time()


# ---- which queue -----------------------------------------------------------------------------------


def known_queues() -> list[QueueDir]:
    """Return all queues of this user on this host, the one that was run last first."""
    return queue_dirs.list_queues()


def find_queue(
    name: str | None = None,
    *,
    state_dir: str | None = None,
    to_change: bool = False,
    for_script: bool = False,
    notify: Notify = ignore,
) -> QueueDir:
    """Return the queue of this name or directory; without a name, the one of the working directory, or the default one.

    `notify` gets a line about the choice where another queue could be meant. A queue that is `to_change` is never
    chosen because it was run last of several in other directories, or while a dispatcher has jobs of the default one;
    `for_script`, where nobody reads the line, never if another could be meant.
    Raises GpuschedError if there is none, or if the name is not unique enough.
    """
    known = queue_dirs.list_queues(state_dir)
    own = [queue for queue in known if _is_here(queue)]
    default = queue_dirs.find_standing(queue_dirs.DEFAULT_NAME, state_dir)
    other = "to choose another, name it with -q"
    if name:
        candidates = _matches(name, known, state_dir)
        if not candidates:
            hint = f"known here: {_names(known, known)}" if known else "start one with `gpusched run FILE`"
            raise GpuschedError(f"there is no queue {name!r}", where="-q", hint=hint)
        is_unclear = len(candidates) > 1
        is_expected = os.sep in name or _is_here(candidates[0]) or queue_dirs.is_standing(candidates[0])
        why = f"{_last_or_only(candidates)} with this name"
    elif default is not None:
        candidates = [*(_live(own) or own), default]
        is_unclear, is_expected = len(candidates) > 1, not own and _live(known) in ([], [default])
        why = f"{_last_or_only(candidates[:-1])} in this directory" if own else "your own"
        why += " with a dispatcher" if len(candidates) <= len(own) else ""
        other = "`-q default` means your own" if own else other
    elif known:
        live = _live(own or known)
        candidates = live or own or known
        is_unclear, is_expected = len(live) > 1 or not (live or own), len(known) == 1 and bool(own)
        why = _last_or_only(candidates)
        why += " in this directory" if own and len(own) < len(known) else ""
        why += " with a dispatcher" if live else ""
    else:
        raise GpuschedError(
            "there is no queue yet",
            hint="start one with `gpusched run FILE`, or name its directory with -q",
            exit_code=EXIT_CANNOT_WORK,
        )
    choice = candidates[0]
    is_idle = default is not None and candidates[1:] == [default] and not _has_work(default)
    if is_unclear and (for_script or (to_change and (name or not is_idle))):
        raise _unclear(candidates, known)
    if is_unclear or not is_expected:
        label = queue_name(choice, known) if _is_here(choice) or queue_dirs.is_standing(choice) else choice.path
        notify(f"queue {label}, {why}; {other}")
    return choice


def _last_or_only(candidates: Sequence[QueueDir]) -> str:
    return "the one run last" if len(candidates) > 1 else "the only one"


def _live(some: Sequence[QueueDir]) -> list[QueueDir]:
    return [queue for queue in some if queue.dispatcher() is not None]


def _has_work(queue: QueueDir) -> bool:
    """Return True if a dispatcher works on this queue and has jobs that have not ended, or if nobody can tell."""
    try:
        with open_store(queue) as store:
            return queue.dispatcher() is not None and bool(job_table.ids(store, UNFINISHED, dispatched=True))
    except GpuschedError:
        return True


def existing_queue(name: str, state_dir: str | None = None) -> QueueDir | None:
    """Return the queue that this name or directory means, if it exists. Raises GpuschedError for one of several."""
    known = queue_dirs.list_queues(state_dir)
    candidates = _matches(name, known, state_dir)
    if len(candidates) > 1:
        raise _unclear(candidates, known)
    return candidates[0] if candidates else None


def is_known(name: str, state_dir: str | None = None) -> bool:
    """Return True if a queue has this name or directory."""
    return bool(_matches(name, queue_dirs.list_queues(state_dir), state_dir))


def _unclear(candidates: Sequence[QueueDir], known: Sequence[QueueDir]) -> GpuschedError:
    hint = f"name one with -q: {_names(candidates, known)}"
    if queue_dirs.is_default(candidates[-1]):
        job = queue_name(candidates[0], known)
        hint += f" (your own); of a job: {job}/JOB, {queue_dirs.DEFAULT_NAME}/JOB"
    return GpuschedError("it is not clear which queue is meant", hint=hint)


def new_queue_path(name: str) -> str:
    """Return the directory of the queue that a start calls so: a path, or a name in gpusched-runs."""
    return name if os.sep in name or name in (".", "..") else f"{queue_dirs.DEFAULT_PARENT}/{name}"


def _names(some: Sequence[QueueDir], known: Sequence[QueueDir]) -> str:
    names = [queue_name(queue, known) for queue in some[:SHOWN_QUEUES]]
    more = f" and {len(some) - SHOWN_QUEUES} more (gpusched status)" if len(some) > SHOWN_QUEUES else ""
    return ", ".join(names) + more


def _matches(word: str, known: Sequence[QueueDir], state_dir: str | None = None) -> list[QueueDir]:
    """Return the queues that a word after -q may mean, newest first; a single one where it is plain.

    That is ./gpusched-runs/WORD, else the directory WORD, else the queues of that name in this directory; and the
    standing queue of that name; else others.
    """
    standing = None if os.sep in word else queue_dirs.find_standing(word, state_dir)
    also = [] if standing is None else [standing]
    paths = [] if os.sep in word else [f"{queue_dirs.DEFAULT_PARENT}/{word}"]
    for path in [*paths, word]:
        queue = queue_dirs.locate(os.path.join(current_directory(), path), state_dir)
        if queue.exists():
            return [queue, *also]
    named = [queue for queue in known if word in (queue.name, queue.path)]
    return [*(queue for queue in named if _is_here(queue)), *also] or named


def _is_here(queue: QueueDir) -> bool:
    """Return True for a queue below the working directory, but not in the gpusched-runs of another directory.

    A standing queue belongs to no directory.
    """
    above = current_directory().rstrip("/") + "/"
    if queue_dirs.is_standing(queue):
        return False
    return queue.path.startswith(above) and queue_dirs.DEFAULT_PARENT not in queue.path[len(above) :].split("/")[1:]


def queue_name(queue_dir: QueueDir, known: Sequence[QueueDir] | None = None) -> str:
    """Return the name for this queue after -q in this directory: its stem if that is unique, else its path."""
    matches = _matches(queue_dir.name, queue_dirs.list_queues() if known is None else known)
    if [queue.path for queue in matches] == [queue_dir.path]:
        return queue_dir.name
    path = shown_path(queue_dir.path)
    return path if os.sep in path else f"./{path}"


def queue_word(queue_dir: QueueDir) -> str:
    """Return the name for this queue as a shell takes it."""
    return shlex.quote(queue_name(queue_dir))


def current_directory() -> str:
    """Return the working directory, to show paths below it in short; the root if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def shown_path(path: str) -> str:
    """Return a path as one would type it here."""
    return short_path(path, current_directory())


def queue_label(queue_dir: QueueDir) -> str:
    """Return a queue in a sentence: the name of a standing one, the path of another as one would type it here."""
    return queue_dir.name if queue_dirs.is_standing(queue_dir) else shown_path(queue_dir.path)


# ---- its jobs --------------------------------------------------------------------------------------


def open_store(queue_dir: QueueDir, *, read_only: bool = True) -> Store:
    return Store(queue_dir.database, read_only=read_only)


class DispatcherStatus(NamedTuple):
    """The dispatcher of a queue. `pid` is None without one; `board` is what it has published, None if nothing yet.

    `full_disk`: the directory of the queue whose disk has no room, so that nothing new is published or noted.
    `paused`: that nothing starts for a person wants it so; empty if that is not so.
    """

    pid: int | None
    board: Board | None
    full_disk: str = ""
    paused: str = ""

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def closed(self) -> str:
        """The reason why nothing new starts; empty if jobs may start."""
        published = self.board.closed if self.board is not None else ""
        return published or self.paused or (disk_full(self.full_disk) if self.full_disk else "")


def read_dispatcher(queue_dir: QueueDir) -> DispatcherStatus:
    pid = queue_dir.dispatcher()
    board = published.read_board(queue_dir) if pid is not None else None
    if board is not None and pid and board.pid != pid:
        board = None  # left by one that was killed
    return DispatcherStatus(pid, board, queue_dir.full_disk())


class OpenQueue(NamedTuple):
    """A queue that is being read: its database, and its dispatcher at the moment `now`."""

    queue_dir: QueueDir
    store: Store
    dispatcher: DispatcherStatus
    now: float


@contextmanager
def open_queue(queue_dir: QueueDir) -> Iterator[OpenQueue]:
    """Open a queue to read it."""
    with open_store(queue_dir) as store:
        yield look(queue_dir, store)


def look(queue_dir: QueueDir, store: Store) -> OpenQueue:
    """Return a queue as it is now, once the interactive attempts that were killed are closed."""
    if interactive.lost_jobs(store):
        with suppress(GpuschedError), open_store(queue_dir, read_only=False) as writable:
            interactive.close_lost(writable)
    paused = paused_text(queue_dir.name) if meta_table.is_paused(store) else ""
    return OpenQueue(queue_dir, store, read_dispatcher(queue_dir)._replace(paused=paused), now())


def job_words(queue_dir: QueueDir, begin: str, limit: int) -> list[tuple[str, str]]:
    """Return names and ids of jobs that begin so, the newest first, each with its state, for a shell to complete."""
    with Store(queue_dir.database, read_only=True, patience_s=0.1) as store:
        return job_table.words(store, begin, limit)
