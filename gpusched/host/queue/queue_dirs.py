"""The directory of a queue: its paths, its local state, its lock, and the list of this user's queues.

Logs and metrics lie in the queue directory. queue.db, the locks, the attempt directories and the wake-up pipe lie there
too, unless it is on a network file system, where locks and SQLite cannot be trusted: then in a local directory.
Opens no database.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import NamedTuple

from gpusched.common.digests import blake2b
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_DISPATCHED_ELSEWHERE, GpuschedError
from gpusched.common.files import user_dir, write_atomically
from gpusched.common.processes import has_ended
from gpusched.host import locks

DEFAULT_PARENT = "gpusched-runs"
LOCK_FD = "GPUSCHED_LOCK_FD"  # the variable that names the descriptor of a lock to a process that is to dispatch
DEFAULT_NAME = "default"  # of the queue that belongs to no directory
_STATE = "XDG_STATE_HOME", ".local/state"
LOGS = "logs"
ROOM_BYTES = 64 * 1024  # with less left, the disk of a queue counts as full
LOCAL_STATE = "/var/tmp"  # kept over a reboot, local on every sane box


class QueueDir(NamedTuple):
    """The paths of one queue. `path` is absolute; `state` differs from it on a network file system."""

    path: str
    state: str

    @property
    def database(self) -> str:
        return f"{self.state}/queue.db"

    @property
    def wake(self) -> str:
        return f"{self.state}/wake"

    @property
    def board(self) -> str:
        """The file in which the dispatcher publishes the devices at each poll."""
        return f"{self.state}/devices.json"

    @property
    def cluster(self) -> str:
        """The file in which the head of a cluster publishes its nodes and the reasons of waiting jobs."""
        return f"{self.state}/cluster.json"

    @property
    def samples(self) -> str:
        """The file in which the dispatcher keeps what the GPUs did."""
        return f"{self.state}/samples.jsonl"

    @property
    def metrics(self) -> str:
        return f"{self.path}/gpu_metrics.json"

    @property
    def log(self) -> str:
        return f"{self.path}/dispatcher.log"

    @property
    def logs(self) -> str:
        return f"{self.path}/{LOGS}"

    @property
    def _lock(self) -> str:
        return f"{self.state}/dispatcher.lock"

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def exists(self) -> bool:
        return os.path.exists(self.database)

    def full_disk(self) -> str:
        """Return the directory of this queue whose disk is full; "" if there is room."""
        for path in dict.fromkeys((self.state, self.path)):
            try:
                disk = os.statvfs(path)
            except OSError:
                continue
            blocks = disk.f_bavail if os.geteuid() else disk.f_bfree  # the reserved blocks are for root
            if blocks * disk.f_frsize < ROOM_BYTES or (disk.f_files and not disk.f_favail):
                return path
        return ""

    def dispatcher(self) -> int | None:
        """Return the pid of the dispatcher of this queue; 0 if it cannot be seen from here; None if there is none."""
        pids = locks.takers(self._lock)
        if pids:
            return 0 if has_ended(pids[0]) else pids[0]  # who took the lock may just have handed it over
        return 0 if locks.is_held(self._lock) else None

    def take(self) -> int | None:
        """Become the dispatcher of this queue: return the descriptor of its lock, or None if another one has it.

        Whoever started this process may have handed the lock over, by LOCK_FD. No child inherits the descriptor.
        """
        handed = os.environ.pop(LOCK_FD, "")
        if handed.isdecimal() and locks.retake(int(handed), self._lock):
            return int(handed)
        lock = locks.take_file(self._lock, 0o600)
        if lock is not None:
            os.utime(lock)
        return lock

    def taken_at(self) -> float:
        """Return when the lock was taken last, by whoever handed it over since."""
        return os.stat(self._lock).st_mtime

    def open_log(self) -> int:
        """Return a descriptor that appends to the dispatcher's log, which is for this user alone."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.log, flags, 0o600)

    def ring(self) -> None:
        """Wake the dispatcher, if there is one, to look at a request."""
        with suppress(OSError):
            fd = os.open(self.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "wb", buffering=0) as pipe:
                pipe.write(b"!")


def locate(path: str, state_dir: str | None = None) -> QueueDir:
    """Return the paths of the queue in the directory `path`, whether it exists or not."""
    path = os.path.abspath(path)
    existing = path
    while not os.path.exists(existing):
        existing = os.path.dirname(existing)
    if os.path.exists(f"{path}/queue.db") or _is_local(existing):
        return QueueDir(path, path)
    parent = state_dir or f"{LOCAL_STATE}/gpusched-{os.getuid()}"
    name = blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()
    return QueueDir(path, f"{parent}/{os.path.basename(path)}-{name}")


def _is_local(path: str) -> bool:
    from gpusched.host.gpus import claims  # only for queues that are not there yet

    return claims.is_local(path)


def prepare(queue: QueueDir) -> None:
    """Make the directories that are missing, for this user alone. Raises GpuschedError for another user's directory."""
    local = (os.path.dirname(queue.state), queue.state) if queue.state != queue.path else ()
    made = not os.path.exists(queue.path)
    for path in (queue.path, *local, queue.logs):
        try:
            os.makedirs(path, 0o700, exist_ok=True)
            status = os.stat(path)
        except OSError as error:
            problem = f"cannot make the queue directory: {error.strerror}"
            raise GpuschedError(problem, where=path, hint="choose another --log-dir") from None
        if status.st_uid != os.getuid():
            raise GpuschedError("belongs to another user", where=path, hint="choose another --log-dir")
    if made:  # keeps the files of the queue out of the work tree that it lies in
        with suppress(OSError):
            write_atomically(f"{queue.path}/.gitignore", b"*\n")
    with suppress(FileExistsError):
        os.mkfifo(queue.wake, 0o600)
    _refuse_other_host(queue)


def _refuse_other_host(queue: QueueDir) -> None:
    """On a shared file system a queue belongs to the host that dispatches it."""
    if queue.state == queue.path:
        return
    path, here = f"{queue.path}/host", os.uname().nodename
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            host = file.read().strip()
    except FileNotFoundError:
        write_atomically(path, f"{here}\n".encode())
        return
    if host != here:
        raise GpuschedError(
            f"this queue belongs to the host {host}; this host is {here}",
            where=queue.path,
            hint=f"run it there, or choose another --log-dir; if {host} is gone for good, remove {path}",
            exit_code=EXIT_DISPATCHED_ELSEWHERE,
        )


def default_path(stem: str, source: str | None = None) -> str:
    """Return `gpusched-runs/<stem>`, or `gpusched-runs/<stem>-<hash of source>` for a second file of that stem."""
    stem = re.sub(r"[^\w.+-]", "_", stem).lstrip(".-") or "queue"
    if source is not None:
        stem += "-" + blake2b(os.fsencode(source), digest_size=4).hexdigest()
    return os.path.abspath(f"{DEFAULT_PARENT}/{stem}")


def standing_path(name: str) -> str:
    """Return the directory of this user's standing queue of this name on this host.

    Raises GpuschedError for a user without a home directory.
    """
    if not (standing := _standing()):
        hint = "set HOME or XDG_STATE_HOME, or name a directory with -q"
        raise GpuschedError("there is no home directory for your queues", hint=hint, exit_code=EXIT_CANNOT_WORK)
    return os.path.join(standing, name)


def _standing() -> str:
    """Return the directory of this user's standing queues on this host; "" for a user without a home directory."""
    state = user_dir(*_STATE)
    return state and os.path.join(state, "on", os.uname().nodename)


def is_default(queue: QueueDir) -> bool:
    """Return True for this user's default queue."""
    return is_standing(queue) and queue.name == DEFAULT_NAME


def find_standing(name: str, state_dir: str | None = None) -> QueueDir | None:
    """Return this user's standing queue of this name, if there is one."""
    with suppress(GpuschedError):
        queue = locate(standing_path(name), state_dir)
        return queue if queue.exists() else None
    return None


def is_standing(queue: QueueDir) -> bool:
    """Return True for a queue that lies with this user's own, and belongs to no directory."""
    return os.path.dirname(queue.path) == _standing()


# ---- this user's queues ----------------------------------------------------------------------------


def _register() -> str:
    """Return the directory of the list; "" for a user without a home directory."""
    state = user_dir(*_STATE)
    return os.path.join(state, "queues") if state else ""


def is_first_time(name: str) -> bool:
    """Return True when this is asked for the first time by this user. Without a writable home it always is."""
    marker = os.path.join(user_dir(*_STATE), name)
    try:
        os.makedirs(os.path.dirname(marker), 0o700, exist_ok=True)
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


def remember(queue: QueueDir) -> None:
    """Write the queue into this user's list, as run last. Without a writable home directory there is no list."""
    register = _register()
    name = blake2b(os.fsencode(queue.path), digest_size=8).hexdigest()
    with suppress(OSError):
        os.makedirs(register, 0o700, exist_ok=True)
        write_atomically(f"{register}/{name}", os.fsencode(f"{queue.path}\0{queue.state}"))


def list_queues(state_dir: str | None = None) -> list[QueueDir]:
    """Return this user's queues on this host, the one that was run last first, and take deleted ones off the list.

    The queues under ./gpusched-runs are always among them, since a home that cannot be written keeps no list.
    """
    used_at: dict[QueueDir, float] = {}
    for entry in _entries(_register()):
        with suppress(OSError):
            if re.fullmatch("[0-9a-f]{16}", entry.name):
                with open(entry.path, "rb") as file:
                    path, _, state = os.fsdecode(file.read()).partition("\0")
                queue = QueueDir(path, state)
                used_at[queue] = entry.stat().st_mtime
                if not queue.exists() and not os.path.exists(path):
                    os.unlink(entry.path)
    paths = {queue.path for queue in used_at}
    for entry in _entries(DEFAULT_PARENT):
        queue = locate(entry.path, state_dir)
        with suppress(OSError):
            status = os.stat(queue.database)
            if queue.path not in paths and status.st_uid == os.getuid():
                used_at[queue] = status.st_mtime
    return sorted((queue for queue in used_at if queue.exists()), key=used_at.__getitem__, reverse=True)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []
