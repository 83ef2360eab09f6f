"""Claims of devices: a lock file for each, which all users of the box share, and a label for people. Decides nothing.

A claim is a lock on `<claims dir>/<uuid>.lock`. It lives as long as any process holds the descriptor: the
dispatcher, and the shepherds of its attempts. Labels say who claimed and since when; they never decide.
"""

from __future__ import annotations

import glob
import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass

from gpusched.common import processes
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.host import locks

CANDIDATES = ("/run/lock", "/dev/shm", "/tmp")
_NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "glusterfs")
)
_FUSE_LOCAL = frozenset(("fuse.overlayfs", "fuse.fuse-overlayfs", "fuseblk"))


@dataclass(frozen=True, slots=True)
class Holder:
    """The label of a claim. For people; every text comes from another user and is not cleaned here."""

    user: str
    pid: int | None
    queue: str
    since: float | None


def file_system_type(path: str) -> str:
    """Return the type of the file system that holds `path`; "" if /proc cannot be read."""
    best, kind = "", ""
    inside = os.path.join(os.path.realpath(path), "")
    with suppress(OSError), open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = line.split(" ")
            mount = os.path.join(words[1].replace("\\040", " "), "")
            if inside.startswith(mount) and len(mount) >= len(best):
                best, kind = mount, words[2]
    return kind


def is_local(path: str) -> bool:
    """Return True unless `path` is on a network file system, where locks do not count."""
    kind = file_system_type(path)
    return kind not in _NETWORK_TYPES and not (kind.startswith("fuse") and kind not in _FUSE_LOCAL)


def find_directory(configured: str | None) -> str:
    """Return the claims directory of this box: the configured one, or one in the first suitable shared directory.

    Raises GpuschedError if no directory can be used.
    """
    if configured:
        return _prepare(os.path.abspath(configured))
    for parent in CANDIDATES:
        try:
            mode = os.stat(parent).st_mode
        except OSError:
            continue
        if stat.S_ISDIR(mode) and mode & stat.S_ISVTX and mode & 0o002 and is_local(parent):
            return _prepare(f"{parent}/gpusched-claims")
    raise GpuschedError(
        f"no directory for claims that all users share: none of {', '.join(CANDIDATES)} is local and open to all",
        hint="set claims_dir (GPUSCHED_CLAIMS_DIR) to a local directory of mode 1777",
        exit_code=EXIT_CANNOT_WORK,
    )


def _prepare(path: str) -> str:
    """Make the directory if it is missing, and return it. Raises GpuschedError if no claims can be made in it."""
    with suppress(OSError):
        if not os.path.lexists(path):
            _make(path)
        status = os.lstat(path)
        is_trusted = status.st_uid in (0, os.getuid()) or bool(status.st_mode & stat.S_ISVTX)
        if stat.S_ISDIR(status.st_mode) and os.access(path, os.W_OK | os.X_OK) and is_trusted:
            return path
    raise GpuschedError(
        "is not a directory in which this user can make claims",
        where=path,
        hint="make a real directory of mode 1777 there, ask its owner, or set GPUSCHED_CLAIMS_DIR for all users",
        exit_code=EXIT_CANNOT_WORK,
    )


def _make(path: str) -> None:
    """Make the directory under a private name, so that nobody ever sees it with another mode."""
    private = f"{path}.{os.getpid()}"
    os.mkdir(private, 0o700)
    try:
        os.chmod(private, 0o1777)
        os.rename(private, path)
    except OSError:  # somebody else has just made it
        os.rmdir(private)


class Claims:
    """The claims directory. Holds no state: a claim is the descriptor that try_acquire returns."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _lock_path(self, uuid: str) -> str:
        return f"{self.path}/{re.sub(r'[^A-Za-z0-9._-]', '_', uuid)}.lock"

    def try_acquire(self, uuid: str, queue: str, now: float) -> int | None:
        """Return the descriptor that is the claim (close-on-exec), or None if somebody else has it."""
        path = self._lock_path(uuid)
        try:
            fd = locks.take_file(path)
        except OSError as error:
            raise GpuschedError(
                f"cannot lock: {error.strerror}",
                where=path,
                hint="claims are kept in claims_dir (see `gpusched config`), where every user must be able to write",
                exit_code=EXIT_CANNOT_WORK,
            ) from None
        if fd is not None:
            self._label(path, queue, now)
        return fd

    def is_of(self, uuid: str, fd: int) -> bool:
        """Return True if the descriptor is a claim of this device, whatever directory it was made in."""
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).removesuffix(" (deleted)")
        return name == os.path.basename(self._lock_path(uuid))

    def _label(self, path: str, queue: str, now: float) -> None:
        text = json.dumps({"pid": os.getpid(), "queue": queue, "since": round(now, 3)})
        with suppress(OSError):  # a label is for people; the claim stands without it
            write_atomically(f"{path}.by-{os.getuid()}", text.encode(), mode=0o644)

    def holder(self, uuid: str) -> Holder | None:
        """Return who holds the device, as far as that can be found out; None if nobody does."""
        path = self._lock_path(uuid)
        pids = locks.holders(path)
        if not pids and not locks.is_held(path):
            return None
        pid = pids[0] if pids else None
        owner = None if pid is None else _owner_of(pid)
        labels = [label for name in glob.glob(f"{glob.escape(path)}.by-*") if (label := _read_label(name))]
        likely = [label for label in labels if label.pid in (pids or ())]
        likely = likely or [label for label in labels if owner in (None, label.user)]
        return max(likely, key=lambda label: label.since or 0.0, default=Holder(owner or "?", pid, "", None))


def _read_label(path: str) -> Holder | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or path.rpartition("-")[2] != str(status.st_uid):
            return None
        try:
            data = json.loads(file.read(4096))
            return Holder(
                processes.user_name(status.st_uid), int(data["pid"]), str(data["queue"]), float(data["since"])
            )
        except (ValueError, KeyError, TypeError):
            return Holder(processes.user_name(status.st_uid), None, "", None)


def _owner_of(pid: int) -> str | None:
    try:
        return processes.user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None
