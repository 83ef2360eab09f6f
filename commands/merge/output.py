"""The file that a merge makes: written under a temporary name, hashed, renamed when whole. Knows no format."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from .blocks import Blocks
from .hashing import Hasher, hash_file
from .trouble import EXIT_CANNOT_WORK, EXIT_USAGE, Refused, clean

BUFFER = 1 << 19
_SYNC_EVERY = 1 << 26  # bytes after which what is written is sent to the disk while work goes on
_STALE_S = 86_400.0
_TOLD_EVERY_S = 1.0
_MB = 1_000_000
_PREFIX = ".gpusched-merge-"


class Output:
    """Use as a context: what is not committed at its end is gone. Never follows a link under its temporary name.

    `tick` is called with the size after each piece.
    """

    def __init__(self, path: str, tick: Callable[[int], None] | None = None) -> None:
        self.path = path
        self._tick = tick
        self.directory, self.name = os.path.split(os.path.abspath(path))
        self.hasher = Hasher()
        self.blocks = Blocks(self.hasher)
        self._digest = hashlib.sha256()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._file: BinaryIO | None = None
        self._ticket = 0
        self.size = 0
        self._synced = 0
        self._syncer: threading.Thread | None = None
        self._unsynced: OSError | None = None
        try:
            sweep(self.directory, self.name)
            self.temporary = os.path.join(self.directory, temporary_name(self.name))
            self.fd = _create(self.temporary)
        except BaseException as error:
            self.hasher.close()
            raise self._refusal(error) if isinstance(error, OSError) else error from None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hasher.close()
        self._wait_for_sync()
        os.close(self.fd)
        try:
            os.unlink(self.temporary)
        except FileNotFoundError:
            pass

    def write(self, data: bytes) -> None:
        """Add to the end. Small pieces are gathered; `data` must not change afterwards."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        data = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self.hasher.wait(self._ticket)  # one piece under way is enough
        self._ticket = self._put(memoryview(data))

    def write_block(self, data: memoryview) -> int:
        """Add a large piece; it must not change before the ticket that this returns is through."""
        self._flush()
        self._ticket = self._put(data)
        return self._ticket

    def _put(self, data: memoryview) -> int:
        ticket = self.hasher.update(self._digest, data)
        self.size += len(data)
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError as error:  # what follows would stand at another place: nothing may go on from here
            raise self._refusal(error) from None
        if self._tick is not None:
            self._tick(self.size)
        if self.size - self._synced >= _SYNC_EVERY and (self._syncer is None or not self._syncer.is_alive()):
            self._synced = self.size
            self._syncer = threading.Thread(target=self._sync, daemon=True)
            self._syncer.start()
        return ticket

    def _refusal(self, error: OSError) -> Refused:
        return Refused(f"cannot be written: {error.strerror}", where=self.path, exit_code=EXIT_CANNOT_WORK)

    def _sync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:  # told once only: the fsync at the end would not see it
            self._unsynced = error

    def _wait_for_sync(self) -> None:
        if self._syncer is not None:
            self._syncer.join()

    def mark(self) -> tuple[int, Any]:
        """A state to come back to."""
        self._flush()
        self.hasher.settle()
        return self.size, self._digest.copy()

    def back(self, mark: tuple[int, Any]) -> None:
        """Drop what was written since."""
        self._waiting, self._waiting_bytes = [], 0
        self.hasher.settle()
        self.size, digest = mark
        self._digest = digest.copy()
        os.ftruncate(self.fd, self.size)
        os.lseek(self.fd, self.size, os.SEEK_SET)

    def file(self) -> BinaryIO:
        """A seekable file in the place of `write`, for a library that wants one."""
        self._file = os.fdopen(os.dup(self.fd), "w+b", buffering=BUFFER)
        return self._file

    def scratch(self) -> BinaryIO:
        """Another file in the same directory, without a name: it is gone when it is closed, whatever happens."""
        path = f"{self.temporary}-scratch"
        file = os.fdopen(_create(path), "w+b", buffering=BUFFER)
        os.unlink(path)
        return file

    def finish(self) -> str:
        """Everything to the disk; the SHA-256 of it."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.size, self._digest = hash_file(self.temporary)
        else:
            self._flush()
            self.hasher.settle()
        self._wait_for_sync()
        try:
            if self._unsynced is not None:
                raise self._unsynced
            os.fsync(self.fd)
        except OSError as error:
            raise self._refusal(error) from None
        return str(self._digest.hexdigest())

    def commit(self) -> None:
        """Give it its name. After `finish`."""
        os.rename(self.temporary, os.path.join(self.directory, self.name))
        sync_directory(self.directory)


def _create(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_small(path: str, text: str) -> None:
    """Replace a small file whole or not at all. What UTF-8 has no word for is escaped, as JSON does it."""
    directory, name = os.path.split(os.path.abspath(path))
    sweep(directory, name)
    temporary = os.path.join(directory, temporary_name(name))
    try:
        with os.fdopen(_create(temporary), "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_directory(directory)


# ---- temporary names -------------------------------------------------------------------------------


def temporary_name(name: str) -> str:
    """Tells of which output it is, and which process of which boot writes it."""
    return f"{_stem(name)}-{_boot()}-{os.getpid()}-{_started(os.getpid())}"


def sweep(directory: str, name: str) -> None:
    """Remove what merges into this output left when they were killed."""
    try:
        found = [entry for entry in os.scandir(directory) if entry.name.startswith(f"{_stem(name)}-")]
    except OSError as error:
        raise Refused(
            f"no directory to write to: {error.strerror}",
            where=directory,
            hint=f"make it first: mkdir -p {clean(directory)}",
            exit_code=EXIT_USAGE,
        ) from None
    for entry in found:
        words = entry.name.removeprefix(f"{_stem(name)}-").split("-")
        try:
            boot, pid, started = words[0], int(words[1]), words[2]
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
        except (IndexError, ValueError, OSError):
            continue
        # Another boot is another host too, where the directory is shared; that one may be at work.
        if age > _STALE_S if boot != _boot() else _started(pid) != started:
            with suppress(OSError):  # of another user, say: it is not in the way
                os.unlink(entry.path)


def _stem(name: str) -> str:
    return _PREFIX + hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return "0"


def _started(pid: int) -> str:
    """When a process has started, in ticks of this boot; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# ---- how far it is ---------------------------------------------------------------------------------


def reporter(total: int) -> Callable[[int], None] | None:
    """A function of the bytes done so far, for the file that GPUSCHED_PROGRESS names; None where nobody asks."""
    path = os.environ.get("GPUSCHED_PROGRESS")
    if not path:
        return None
    last = [time.monotonic() - _TOLD_EVERY_S]

    def tick(done: int) -> None:
        now = time.monotonic()
        if now - last[0] < _TOLD_EVERY_S:
            return
        last[0] = now
        try:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump({"done": min(done, total) // _MB, "total": max(total // _MB, 1), "unit": "MB"}, file)
            os.replace(f"{path}.new", path)
        except OSError:
            pass

    return tick
