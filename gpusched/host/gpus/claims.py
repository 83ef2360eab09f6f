"""Claims of devices: a lock file for each, which all users of the box share, and a label for people. Decides nothing.

A claim is a lock on `<claims dir>/<uuid>.lock`. It lives as long as any process holds the descriptor: the
dispatcher, and the shepherds of its attempts. Labels say who claimed and since when; they never decide.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from gpusched.common import processes
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import open_regular, private_name, write_atomically
from gpusched.host import locks

LABEL_LIMIT_BYTES = 4096
RENEWALS_LIMIT = 8  # new lock files of one claim, each of which costs its processes a descriptor
LABELS_LIMIT = 10_000  # entries of the claims directory that are looked at for labels
_DEFAULTS = tuple(f"{parent}/gpusched-claims" for parent in ("/run/lock", "/dev/shm", "/tmp"))
ELSEWHERE_PATIENCE_S = 0.05
_SHARED_MODE = stat.S_ISVTX | stat.S_IWOTH
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFLNK: "a link", stat.S_IFREG: "not readable"}
_NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "glusterfs")
)
_FUSE_LOCAL = frozenset(("fuse.overlayfs", "fuse.fuse-overlayfs", "fuseblk"))


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a claim, for people. The texts come from another user and are not cleaned here."""

    user: str
    pid: int | None
    queue: str
    since: float | None
    uid: int | None = None
    gathers: bool = False  # it is only kept until there are enough for a job


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


def _is_open_to_all(path: str) -> bool:
    """Return True for a local directory in which every user can make files, and remove only their own."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & _SHARED_MODE == _SHARED_MODE and is_local(path)


def _make(path: str) -> None:
    """Make the directory under a private name, so that nobody ever sees it with another mode."""
    private = private_name(path)
    os.mkdir(private, 0o700)
    try:
        os.chmod(private, 0o1777)
        os.rename(private, path)
    except OSError:  # somebody else has just made it
        os.rmdir(private)


class HeldClaim:
    """A claim that is held. It lives as long as any process has one of its descriptors, which are close-on-exec."""

    def __init__(self, claims: Claims, uuid: str, path: str, fd: int) -> None:
        self.path = path  # of the lock file that the newest descriptor locks
        self.fds = [fd]
        self._claims, self._uuid = claims, uuid

    def verify(self) -> str:
        """Lock a new file where takers look, if ours is not there any more; the lock on the old one is kept too.

        Return why nothing more may start on the device; empty if the claim is good. Raises OSError if this process
        lacks descriptors or memory.
        """
        if not locks.is_named(self.fds[-1], self.path):
            if len(self.fds) > RENEWALS_LIMIT:
                return f"its lock file {self.path} is removed again and again"
            try:
                path, fd = self._claims.lock(self._uuid)
            except GpuschedError as error:
                return str(error).partition("\n")[0]
            if fd is None:
                return f"its lock file {path} was removed, and somebody else has locked the new one"
            self.path = path
            self.fds.append(fd)
        earlier = self._claims.held_path(self._uuid, before=self.path, own=self.fds)
        return f"somebody else has claimed it by {earlier}" if earlier else ""

    def label(self, text: str, since: float, *, gathers: bool = False) -> None:
        """Tell others something else about what it is for."""
        write_label(self.path, {"queue": text, "since": round(since, 3), "gathers": gathers})

    def close(self) -> None:
        """Let go of it here."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Claims:
    """The claims directories. Holds no state."""

    def __init__(self, configured: str | None = None) -> None:
        """Use the configured directory alone, or else the first of the default ones that can be used."""
        self._is_configured = bool(configured)
        self.directories = (os.path.abspath(configured),) if configured else _DEFAULTS

    def directory(self, *, make: bool = True) -> str:
        """Return the directory in which claims are made now. Raises GpuschedError if there is none."""
        for path in self.directories:
            is_shared = self._is_configured or _is_open_to_all(os.path.dirname(path))
            if make and is_shared and not os.path.lexists(path):
                with suppress(OSError):
                    _make(path)
            if _can_hold_claims(path, is_shared=is_shared):
                return path
        if self._is_configured:
            what, where = "is not a directory in which this user can make claims", self.directories[0]
            hint = "make a real directory of mode 1777 there, ask its owner, or set GPUSCHED_CLAIMS_DIR for all users"
        else:
            what, where = f"there is no directory for claims that all users share: none of {', '.join(_DEFAULTS)}", ""
            hint = "set claims_dir (GPUSCHED_CLAIMS_DIR) to a local directory of mode 1777"
        raise GpuschedError(what, where=where, hint=hint, exit_code=EXIT_CANNOT_WORK)

    def weakness(self) -> str:
        """Return what a mere user can do to the claims of others, and the remedy; empty if nobody can."""
        try:
            path = self.directory(make=False)
            status = os.stat(path)
        except (GpuschedError, OSError):
            return ""
        if status.st_uid == 0 or not status.st_mode & stat.S_IWOTH:
            return ""
        owner = processes.user_name(status.st_uid)
        return f"{path} belongs to {owner}, who can remove the claims of others; as root: chown root:root {path}"

    def paths(self, uuid: str) -> list[str]:
        """Return where the lock file of a device may be, in the order in which directories are used."""
        return [f"{directory}/{_lock_name(uuid)}" for directory in self.directories]

    def try_acquire(self, uuid: str, queue: str, now: float) -> HeldClaim | None:
        """Return the claim, or None if somebody else has it.

        Raises GpuschedError if the lock file, or the directory, cannot be used; OSError if this process lacks
        descriptors or memory.
        """
        path, fd = self.lock(uuid)
        if fd is None:
            return None
        with ExitStack() as undo:
            undo.callback(os.close, fd)
            if self._is_claimed_elsewhere(uuid, path, fd):
                return None
            undo.pop_all()
        write_label(path, {"queue": queue, "since": round(now, 3)})
        return HeldClaim(self, uuid, path, fd)

    def lock(self, uuid: str) -> tuple[str, int | None]:
        """Lock the file of a device where claims are made now; return its path, and None if somebody else has it."""
        path = f"{self.directory()}/{_lock_name(uuid)}"
        try:
            return path, locks.take_file(path)
        except OSError as error:
            if error.errno in locks.OWN_LIMITS:
                raise
            raise GpuschedError(_obstacle(path, error), exit_code=EXIT_CANNOT_WORK) from None

    def held_path(self, uuid: str, *, before: str = "", own: Sequence[int] = ()) -> str:
        """Return the first lock file of a device that somebody holds; empty if nobody does.

        Only those before the path `before` count, if it is given, and none that one of the descriptors `own` locks.
        """
        for path in takewhile(lambda path: path != before, self.paths(uuid)):
            if locks.is_held(path) and not any(locks.is_named(fd, path) for fd in own):
                return path
        return ""

    def _is_claimed_elsewhere(self, uuid: str, path: str, fd: int) -> bool:
        """Return True if somebody holds a lock of the device in another directory.

        Of two who take it in the same instant the one in the earlier directory gets it: the other lets go at once.
        """
        until_s = time.monotonic() + ELSEWHERE_PATIENCE_S
        while self.held_path(uuid, own=(fd,)):
            if self.held_path(uuid, before=path) or time.monotonic() >= until_s:
                return True
            time.sleep(0.005)
        return False

    def obstacle(self, uuid: str) -> str:
        """Return why the lock file of a device cannot be used, as far as can be seen without locking; else empty."""
        try:
            path = f"{self.directory(make=False)}/{_lock_name(uuid)}"
            os.close(open_regular(path))
        except (GpuschedError, FileNotFoundError):
            return ""
        except OSError as error:
            return _obstacle(path, error)
        return ""

    def has(self, uuid: str, fds: Iterable[int]) -> bool:
        """Return True if one of the descriptors is a claim of this device, whatever directory it was made in."""
        return any(os.path.basename(_locked_path(fd)) == _lock_name(uuid) for fd in fds)

    def share(self, uuid: str, fds: Iterable[int]) -> HeldClaim | None:
        """Return the claim of a device of which another holder has passed on descriptors.

        None if it has not, or this process lacks a descriptor.
        """
        for fd in fds:
            with suppress(OSError):
                if self.has(uuid, [fd]):
                    return HeldClaim(self, uuid, _locked_path(fd), os.dup(fd))
        return None

    def holder(self, uuid: str, *, search: bool = True) -> Holder | None:
        """Return who holds the device, as far as that can be found out; None if nobody does.

        Without `search`, which reads the descriptors of processes, the process that took the lock is believed.
        """
        path = self.held_path(uuid)
        if not path:
            return None
        pid = locks.holder(path) if search else next(iter(locks.takers(path) or ()), None)
        owner = None if pid is None else uid_of(pid)
        if owner is not None:
            own = _read_label(f"{path}.by-{owner}") or Holder(processes.user_name(owner), None, "", None, owner)
            return replace(own, pid=pid)
        labels = [label for label in map(_read_label, _label_paths(path)) if label is not None]
        return max(labels, key=lambda label: label.since or 0.0, default=Holder("?", None, "", None))


def _lock_name(uuid: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", uuid) + ".lock"


def _locked_path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")


def _can_hold_claims(path: str, *, is_shared: bool) -> bool:
    """Return True if this user can make claims in the directory. `is_shared`: other users would make it there too."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_trusted = status.st_uid in (0, os.getuid()) or bool(status.st_mode & stat.S_ISVTX)
    is_shared = is_shared or (status.st_uid == 0 and status.st_mode & _SHARED_MODE == _SHARED_MODE)
    return stat.S_ISDIR(status.st_mode) and os.access(path, os.W_OK | os.X_OK) and is_trusted and is_shared


def _obstacle(path: str, error: OSError) -> str:
    """Return why no lock is to be had there, and the remedy."""
    try:
        status = os.lstat(path)
    except OSError:
        return f"its lock file {path} cannot be made: {error.strerror}"
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
    who = f"{processes.user_name(status.st_uid)}, or root," if status.st_uid else "root"
    return f"its lock file {path} is {kind}: ask {who} to remove it"


def _label_paths(path: str) -> list[str]:
    """Return the paths of the labels beside a lock file, as far as the directory is not filled up with others."""
    prefix = os.path.basename(path) + ".by-"
    try:
        with os.scandir(os.path.dirname(path)) as entries:
            return [entry.path for entry in islice(entries, LABELS_LIMIT) if entry.name.startswith(prefix)]
    except OSError:
        return []


def write_label(path: str, fields: Mapping[str, object]) -> None:
    """Write for others what the lock file is for: they read it with care, and the lock stands without it."""
    text = json.dumps({"pid": os.getpid(), **fields})
    with suppress(OSError):
        write_atomically(f"{path}.by-{os.getuid()}", text.encode(), mode=0o644)


def read_label(path: str, limit_bytes: int = LABEL_LIMIT_BYTES) -> tuple[int, bytes] | None:
    """Return the user of the label in a file, and its text; None unless the name of the file says this user."""
    try:
        with open(open_regular(path), "rb") as file:
            uid, data = os.fstat(file.fileno()).st_uid, file.read(limit_bytes)
    except OSError:
        return None
    return (uid, data) if path.endswith(f".by-{uid}") else None


def _read_label(path: str) -> Holder | None:
    """Return the label in a file of the user whom its name says; None if there is no such file."""
    label = read_label(path)
    if label is None:
        return None
    uid, data = label
    user = processes.user_name(uid)
    try:
        fields = json.loads(data)
        since, gathers = float(fields["since"]), fields.get("gathers") is True
        return Holder(user, None, str(fields["queue"]), since if math.isfinite(since) else None, uid, gathers)
    except Exception:  # another user wrote it: nothing that is in it may end this process
        return Holder(user, None, "", None, uid)


def uid_of(pid: int) -> int | None:
    """Return the user of a process; None if it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
