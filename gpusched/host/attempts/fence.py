"""The deadline of an attempt that this box runs for a cluster: without news of its lease, its shepherd ends it then.

The file lies beside the directories of the attempts, `<state>/leases/<job>`, since it is there before the attempt is:
what waits under a lease that has run out must never begin. It counts on CLOCK_BOOTTIME, which goes on while the box
sleeps, and only for the boot in which it was written.
"""

from __future__ import annotations

import os
import time

from gpusched.common import processes

LOOK_S = 5.0  # a poll does not count the sleep of the box: it is never longer than this


def path_of(state_dir: str, job_id: int) -> str:
    return f"{state_dir}/leases/{job_id}"


def now_s() -> float:
    """Return the time by which deadlines are counted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write(path: str, deadline_s: float) -> None:
    """Set the deadline of an attempt. A later one needs no room on the disk. Raises OSError."""
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.pwrite(fd, f"{deadline_s:020.3f} {processes.boot_id()}\n".encode(), 0)  # always as long
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Take the deadline away: an attempt without one does not begin."""
    try:
        os.unlink(path)
    except OSError:
        return


class Fence:
    """The deadline of one attempt as its shepherd knows it; without a path there is none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._deadline_s = 0.0

    def left_s(self) -> float | None:
        """Return for how long the attempt may still run, by the newest deadline that could be read; None: no limit."""
        if not self._path:
            return None
        try:
            with open(self._path, encoding="ascii") as file:
                deadline_s, boot_id = file.read(200).split()
            self._deadline_s = float(deadline_s) if boot_id == processes.boot_id() else 0.0
        except (OSError, ValueError):
            pass  # what was known last counts
        return self._deadline_s - now_s()
