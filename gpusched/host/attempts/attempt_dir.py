"""The files of one attempt: their names, the start mark, the exit record. Judges nothing.

An attempt's directory is `<state>/attempts/<job>.<number>/`. In it:

- `life`: made and locked by the dispatcher before the attempt is booked; the shepherd holds the lock to the end.
  First it is empty. Then it holds the start mark, at the full size of a record and synced before the command starts,
  so that a full disk can no longer lose the exit code. Last it holds the exit record, written over the mark in one
  write and synced. Nobody reads a record from it while the lock is held.
- `setup`: not empty while a set-up file has not come to its end (see `setup.py`).
- `progress.json`: written by the job itself (GPUSCHED_PROGRESS).

Mark and record are lines of `key=value`: small, readable, and parsed without any import. A record ends with a line of
its own, so that half a record (after a power cut) is not taken for a whole one.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # a shepherd imports this: what only type checkers need is left out
if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD_BYTES = 2048
FIELD_LIMIT = 512
LIFE = "life"
_END = "record=whole"
PROGRESS = "progress.json"
PROGRESS_LIMIT_BYTES = 64 * 1024


def directory(state_dir: str, job_id: int, number: int) -> str:
    return f"{state_dir}/attempts/{job_id}.{number}"


def make(path: str) -> int:
    """Make the attempt's directory and its life file; return the descriptor of the file, not locked yet.

    A directory without a mark, left by a start of the same attempt that was never booked, is used again.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        for missing in (os.path.dirname(path), path):  # makedirs would give the parent another mode
            os.makedirs(missing, 0o700, exist_ok=True)
    return os.open(f"{path}/{LIFE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_mark(fd: int, fields: Mapping[str, object]) -> None:
    """Write the start mark and sync it. Raises OSError if the disk is full."""
    _write(fd, fields, "")


def write_record(fd: int, fields: Mapping[str, object]) -> None:
    """Write the exit record over the mark and sync it. It needs no new block, so a full disk cannot stop it."""
    _write(fd, fields, _END)


def _write(fd: int, fields: Mapping[str, object], end: str) -> None:
    lines = []
    for key, value in fields.items():
        if value is not None:
            text = str(value).replace("\n", " ")
            lines.append(f"{key}={text}"[:FIELD_LIMIT])
    data = "\n".join(lines).encode("utf-8", "surrogateescape")[: RECORD_BYTES - 16] + b"\n" + end.encode()
    os.pwrite(fd, data.ljust(RECORD_BYTES, b"\n"), 0)  # one write: readers see the old or the new
    os.fdatasync(fd)


def parse_fields(data: bytes) -> dict[str, str]:
    text = data.rstrip(b"\n").decode("utf-8", "surrogateescape")
    return dict(line.split("=", 1) for line in text.split("\n") if "=" in line)


def is_record(fields: Mapping[str, str]) -> bool:
    """Return True if these are the fields of a whole exit record, False for those of a start mark."""
    return fields.get("record") == "whole"


def open_life(path: str) -> int | None:
    """Open the life file for reading; return None if the attempt was never prepared."""
    try:
        return os.open(f"{path}/{LIFE}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def exists(path: str) -> bool:
    """Return True if the attempt has its life file."""
    return os.path.exists(f"{path}/{LIFE}")


def read_progress(path: str) -> bytes | None:
    """Return the first PROGRESS_LIMIT_BYTES of the job's progress file; None if there is no file that can be read."""
    return read_part(f"{path}/{PROGRESS}", PROGRESS_LIMIT_BYTES)


def setup_path(path: str) -> str:
    return f"{path}/setup"


def read_setup(path: str) -> str | None:
    """Return where the set-up was when it ended the shell, as far as that is known; None if the command began."""
    note = read_part(setup_path(path), FIELD_LIMIT)
    return note.decode("utf-8", "replace").strip() if note else None


def read_part(path: str, limit_bytes: int, *, at_end: bool = False) -> bytes | None:
    """Return the first bytes of a file that a job may write, or the last ones; None if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.pread(fd, limit_bytes, max(0, os.fstat(fd).st_size - limit_bytes) if at_end else 0)
    except OSError:
        return None
    finally:
        os.close(fd)
