"""The file that a merge makes: written under a temporary name, hashed, renamed when it is whole. Knows no format."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from typing import BinaryIO

from gpusched.common.files import sync_directory, write_atomically
from gpusched.common.processes import boot_id, process_start

BUFFER_BYTES = 1 << 18
_STALE_S = 86_400.0


class MergeOutput:
    """The output under its temporary name. Use it as a context: what is not committed at its end is removed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.directory, self.name = os.path.split(os.path.abspath(path))
        self.size = 0
        self.temporary = temporary_path(path)
        fd = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.file: BinaryIO = os.fdopen(fd, "w+b", buffering=BUFFER_BYTES)  # for a library that wants to seek

    def __enter__(self) -> MergeOutput:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # where the disk is full, the rest of the buffer cannot be written either
            self.file.close()
        with suppress(FileNotFoundError):
            os.unlink(self.temporary)

    def write(self, data: bytes) -> None:
        """Add to the end."""
        self.file.write(data)

    def finish(self) -> None:
        """Send everything to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.size = os.path.getsize(self.temporary)

    def write_beside(self, path: str, text: str) -> None:
        """Replace a small file whole or not at all. What UTF-8 has no word for is escaped, as JSON does it."""
        data = text.encode("utf-8", "backslashreplace")
        write_atomically(path, data, sync=True, mode=0o666, temporary=f"{self.temporary}-beside")
        sync_directory(self.directory)

    def commit(self) -> None:
        """Give the finished file its name."""
        os.rename(self.temporary, os.path.join(self.directory, self.name))
        sync_directory(self.directory)


def temporary_path(path: str) -> str:
    """Return a hidden name that says which process of which boot writes it; remove those of killed processes."""
    directory, name = os.path.split(os.path.abspath(path))
    stem, boot = f".gpusched-merge-{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}-", boot_id()[:8]
    for entry in [entry for entry in os.scandir(directory) if entry.name.startswith(stem)]:
        with suppress(ValueError, OSError):  # of another user, say: it is not in the way
            other_boot, pid, started, *_ = entry.name.removeprefix(stem).split("-")
            age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
            # Another boot is another machine too, where the directory is shared; that one may be at work.
            if age_s > _STALE_S if other_boot != boot else str(process_start(int(pid))) != started:
                os.unlink(entry.path)
    return os.path.join(directory, f"{stem}{boot}-{os.getpid()}-{process_start(os.getpid())}")
