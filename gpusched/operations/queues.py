"""The queue and the jobs that a person names, and the dispatcher of a queue as other processes see it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError, disk_full
from gpusched.core.plan.board import Board
from gpusched.host.gpus import board as boards
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir as QueueDir
from gpusched.host.store import Store, job_table
from gpusched.views.words import short_path

SHOWN_QUEUES = 10

Notify = Callable[[str], None]


def ignore(text: str) -> None:
    """Do nothing with a text."""


def now() -> float:
    return time.time()


# ---- which queue -----------------------------------------------------------------------------------


def known_queues() -> list[QueueDir]:
    """Return all queues of this user on this host, the newest first."""
    return queue_dirs.list_queues()


def find_queue(
    name: str | None = None, *, state_dir: str | None = None, to_change: bool = False, notify: Notify = ignore
) -> QueueDir:
    """Return the queue of this name or directory; without a name, the one of the working directory.

    `notify` gets a line about the choice where another queue could be meant. A queue that is `to_change` is never
    chosen because it is the newest of several in other directories. Raises GpuschedError if there is none, or if
    the name is not unique enough.
    """
    known = queue_dirs.list_queues(state_dir)
    own = [queue for queue in known if _is_here(queue)]
    if name:
        candidates = _matches(name, known, state_dir)
        if not candidates:
            hint = f"known here: {_names(known, known)}" if known else "start one with `gpusched run FILE`"
            raise GpuschedError(f"there is no queue {name!r}", where="-q", hint=hint)
        is_unclear, is_expected = len(candidates) > 1, os.sep in name or _is_here(candidates[0])
        kind = " with this name"
    elif known:
        live = [queue for queue in own or known if queue.dispatcher() is not None]
        candidates = live or own or known
        is_unclear, is_expected = len(live) > 1 or not (live or own), len(known) == 1 and bool(own)
        kind = " in this directory" if own and len(own) < len(known) else ""
        kind += " with a dispatcher" if live else ""
    else:
        raise GpuschedError(
            "there is no queue yet",
            hint="start one with `gpusched run FILE`, or name its directory with -q",
            exit_code=EXIT_CANNOT_WORK,
        )
    choice = candidates[0]
    if to_change and is_unclear:
        raise _unclear(candidates, known)
    if is_unclear or not is_expected:
        label = queue_name(choice, known) if _is_here(choice) else choice.path
        which = "newest" if len(candidates) > 1 else "only"
        notify(f"queue {label}, the {which} one{kind}; to choose another, name it with -q")
    return choice


def existing_queue(name: str, state_dir: str | None = None) -> QueueDir | None:
    """Return the queue that this name or directory means, if it exists. Raises GpuschedError for one of several."""
    known = queue_dirs.list_queues(state_dir)
    candidates = _matches(name, known, state_dir)
    if len(candidates) > 1:
        raise _unclear(candidates, known)
    return candidates[0] if candidates else None


def _unclear(candidates: Sequence[QueueDir], known: Sequence[QueueDir]) -> GpuschedError:
    hint = f"name one with -q: {_names(candidates, known)}"
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

    That is ./gpusched-runs/WORD, else the directory WORD, else the queues of that name in this directory, else others.
    """
    paths = [] if os.sep in word else [f"{queue_dirs.DEFAULT_PARENT}/{word}"]
    for path in [*paths, word]:
        queue = queue_dirs.locate(os.path.join(current_directory(), path), state_dir)
        if queue.exists():
            return [queue]
    named = [queue for queue in known if word in (queue.name, queue.path)]
    return [queue for queue in named if _is_here(queue)] or named


def _is_here(queue: QueueDir) -> bool:
    """Return True for a queue below the working directory, but not in the gpusched-runs of another directory."""
    above = current_directory().rstrip("/") + "/"
    return queue.path.startswith(above) and queue_dirs.DEFAULT_PARENT not in queue.path[len(above) :].split("/")[1:]


def queue_name(queue_dir: QueueDir, known: Sequence[QueueDir] | None = None) -> str:
    """Return the name for this queue after -q in this directory: its stem if that is unique, else its path."""
    matches = _matches(queue_dir.name, queue_dirs.list_queues() if known is None else known)
    if [queue.path for queue in matches] == [queue_dir.path]:
        return queue_dir.name
    path = shown_path(queue_dir.path)
    return path if os.sep in path else f"./{path}"


def current_directory() -> str:
    """Return the working directory, to show paths below it in short; the root if it no longer exists."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def shown_path(path: str) -> str:
    """Return a path as one would type it here."""
    return short_path(path, current_directory())


# ---- its jobs --------------------------------------------------------------------------------------


def open_store(queue_dir: QueueDir, *, read_only: bool = True) -> Store:
    return Store(queue_dir.database, read_only=read_only)


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
    with open_store(queue_dir) as store:
        yield OpenQueue(queue_dir, store, read_dispatcher(queue_dir), now())


def parse_jobs(words: Sequence[str], store: Store) -> list[int]:
    """Return the ids that names, ids and ranges stand for (`3-7`, `3..7`, `1,5`), each once. Raises GpuschedError."""
    last = job_table.last_id(store)
    ids: dict[int, None] = {}
    parts = [part for word in words for part in word.split(",") if part]
    for word in parts or words:
        named = job_table.find_by_name(store, word)
        if named is not None:
            ids[named] = None
            continue
        span = re.fullmatch(r"([0-9]{1,18})(?:(?:-|\.\.)([0-9]{1,18}))?", word)
        if span is None:
            hint = "an id such as 12, a range such as 3-7, or a job's name="
            raise GpuschedError(f"there is no job {word!r}", hint=hint)
        low, high = int(span[1]), int(span[2] or span[1])
        if not 1 <= low <= high <= last:
            raise GpuschedError(
                f"there is no job {word} in the queue {os.path.dirname(store.path)}",
                hint=f"it has jobs 1 to {last}; `gpusched status -v` lists them, -q names another queue",
            )
        ids.update(dict.fromkeys(range(low, high + 1)))
    return list(ids)


def job_words(queue_dir: QueueDir, begin: str, limit: int) -> list[tuple[str, str]]:
    """Return names and ids of jobs that begin so, the newest first, each with its state, for a shell to complete."""
    with Store(queue_dir.database, read_only=True, patience_s=0.1) as store:
        return job_table.words(store, begin, limit)


def parse_job(word: str, store: Store) -> int:
    """Return the id of the one job that a word names."""
    ids = parse_jobs([word], store)
    if len(ids) != 1:
        raise GpuschedError(f"{word} names {len(ids)} jobs, but this takes a single one", hint="an id such as 12")
    return ids[0]
