"""File locks: taking them, and asking who holds them. Decides nothing; the only user of fcntl.

Locks are `flock`s: they belong to an open file description, so every process that holds a duplicate of the
descriptor shares the lock, and the kernel drops it when the last of them closes or dies. A lock is let go by
closing, never by LOCK_UN, which would free it under every sharer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress

from gpusched.common.files import open_regular, private_name

OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the caller's own trouble, not that of a file
_REMOVALS_LIMIT = 100
_RETRY_FOR_S = 0.05  # a refused caller tries again this long: somebody who asks may hold the lock for an instant
_RETRY_STEP_S = 0.005


def try_lock(fd: int, *, retry_for_s: float = 0.0) -> bool:
    """Try to take the exclusive lock on `fd`, for `retry_for_s` at most. Return True if this process has it now."""
    deadline = time.monotonic() + retry_for_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(_RETRY_STEP_S)


def take_file(path: str, mode: int = 0o644) -> int | None:
    """Lock the file at `path`, made if it is missing; return its descriptor, or None if somebody else has the lock.

    Never follows a link, never opens another user's file with O_CREAT (the kernel refuses that in sticky
    directories), and checks that the path still names the locked file, since cleaning programs unlink.
    """
    for _ in range(_REMOVALS_LIMIT):
        fd = _open_or_make(path, mode)
        try:
            is_locked = try_lock(fd, retry_for_s=_RETRY_FOR_S)
        except OSError as error:
            os.close(fd)
            raise OSError(error.errno, error.strerror, path) from None
        if not is_locked:
            os.close(fd)
            return None
        if is_named(fd, path):
            return fd
        os.close(fd)
    raise OSError(errno.EBUSY, "is removed again and again", path)


def retake(fd: int, path: str) -> bool:
    """Become the process that /proc/locks names for a lock that was inherited; False if somebody else has it now.

    No child inherits the descriptor any more.
    """
    try:
        os.set_inheritable(fd, False)
        if not is_named(fd, path):
            return False
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return try_lock(fd, retry_for_s=_RETRY_FOR_S)
    except OSError:  # no descriptor, or none with this lock
        return False


def _open_or_make(path: str, mode: int) -> int:
    for _ in range(_REMOVALS_LIMIT):
        with suppress(FileNotFoundError):
            return open_regular(path)
        private = private_name(path)
        fd = os.open(private, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(fd, mode)
            with suppress(FileExistsError):
                os.link(private, path, follow_symlinks=False)
        finally:
            os.close(fd)
            os.unlink(private)
    raise OSError(errno.EBUSY, "is removed again and again", path)


def is_named(fd: int, path: str) -> bool:
    """Return True if the path names the open file."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    locked = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)


def takers(path: str) -> list[int] | None:
    """Return the pids that /proc/locks names for a lock on the file, without touching the lock.

    None if /proc cannot be read. A pid is that of the process which took the lock; it may be dead while another one
    shares the lock. Takers in other pid namespaces, and in all but the first one dead ones too, are left out.
    """
    try:
        status = os.stat(path, follow_symlinks=False)
        with open("/proc/locks", encoding="ascii") as table:
            lines = table.readlines()
    except FileNotFoundError:
        return []
    except OSError:
        return None
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # 3: FLOCK  ADVISORY  WRITE 1234 08:02:131 0 EOF   (waiters have "->" as the second word)
    rows = [line.split() for line in lines]
    return [int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == name]


def holder(path: str) -> int | None:
    """Return the pid of a process that holds the lock on the file; None if none can be seen.

    It is found by its descriptors. Where those cannot be read, a taker that lives is believed.
    """
    try:
        file = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    named = takers(path) or []
    living = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    sharers = (pid for pid in (*named, *living) if _shares_lock(pid, file))
    return next(sharers, None) or next((pid for pid in named if _shares_lock(pid, file) is None), None)


def _shares_lock(pid: int, file: os.stat_result) -> bool | None:
    """Return True if a descriptor of the process shares the lock on the file; None if they cannot be read."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), file):
                    with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as info:
                        if any(line.startswith("lock:") and " FLOCK " in line for line in info):
                            return True
    except PermissionError:
        return None
    except OSError:  # it has ended
        return False
    return False


def is_held(path: str) -> bool:
    """Return True if anybody holds the lock on the file. Where /proc/locks names nobody, a shared lock is tried."""
    if takers(path):
        return True
    try:
        fd = open_regular(path)
    except OSError as error:
        if error.errno in OWN_LIMITS:
            raise
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)
