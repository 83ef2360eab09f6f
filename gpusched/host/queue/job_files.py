"""The files that jobs leave in the directories of a queue, found by the numbers in their names; their removal."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress

from gpusched.host.queue.queue_dirs import LOGS, QueueDir

_OF_A_JOB = re.compile(r"0*([0-9]{1,18})\.[0-9]+(?:\D.*)?", re.DOTALL)
# All that a queue is made of, in the order of its removal; directories that hold something else stay.
_DIRECTORIES = (LOGS, "lives", "attempts")
_FILES = (
    *("gpu_metrics.json", "dispatcher.log", "devices.json", "samples.jsonl", "report.html"),
    *("cluster.json", "wake", "shepherd.err", ".gitignore", "host"),
)
_LAST = ("queue.db-wal", "queue.db-shm", "queue.db", "dispatcher.lock")


def logs(queue: QueueDir) -> Iterator[tuple[int, str]]:
    """Yield the logs in a queue, each with the job that wrote it."""
    return _numbered(queue.logs)


def attempt_dirs(queue: QueueDir) -> Iterator[tuple[int, str]]:
    """Yield the directories that jobs have kept, each with its job."""
    return _numbered(f"{queue.state}/attempts")


def _numbered(directory: str) -> Iterator[tuple[int, str]]:
    for name in _names(directory):
        if match := _OF_A_JOB.fullmatch(name):
            yield int(match[1]), f"{directory}/{name}"


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _target(name: str) -> str:
    """Return the file that a temporary one was to replace, which a killed process has left; else the name itself."""
    return name.partition(".tmp")[0]


def size_of(path: str) -> int:
    """Return the size of a file in bytes; 0 if it is gone."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def remove(queue: QueueDir, is_gone: Callable[[int], bool], *, attempts: bool) -> None:
    """Remove the logs and life files of the jobs that are gone, and with `attempts` the directories that they kept."""
    for found in (_numbered(f"{queue.state}/lives"), logs(queue)):
        for job_id, path in found:
            if is_gone(job_id):
                with suppress(FileNotFoundError):
                    os.unlink(path)
    for job_id, path in attempt_dirs(queue) if attempts else ():
        if is_gone(job_id):
            shutil.rmtree(path, ignore_errors=True)


def others(queue: QueueDir, is_gone: Callable[[int], bool], *, attempts: bool) -> list[str]:
    """Return the names of the files that `remove` leaves, and that are no part of a queue without jobs."""
    own = {*_DIRECTORIES, *_FILES, *_LAST}
    names = [name for path in {queue.path, queue.state} for name in _names(path) if _target(name) not in own]
    for directory in (queue.logs, f"{queue.state}/lives", f"{queue.state}/attempts"):
        for name in _names(directory):
            match = _OF_A_JOB.fullmatch(name)
            if match is None or not is_gone(int(match[1])) or (directory.endswith("/attempts") and not attempts):
                names.append(f"{os.path.basename(directory)}/{name}")
    return sorted(names)


def remove_queue(queue: QueueDir) -> None:
    """Remove a queue without jobs; its database and its lock last, so that a removal that was broken off can go on."""
    found = [name for directory in {queue.path, queue.state} for name in _names(directory) if _target(name) in _FILES]
    for name in (*_DIRECTORIES, *found, *_LAST):
        for directory in {queue.path, queue.state}:
            with suppress(OSError):
                (os.rmdir if name in _DIRECTORIES else os.unlink)(f"{directory}/{name}")
    for directory in {queue.path, queue.state}:
        with suppress(OSError):
            os.rmdir(directory)
