"""The files of one attempt: their names, the start mark, the exit record. Judges nothing.

- `<state>/lives/<job>.<number>`, the life file: made and locked by the dispatcher before the attempt is booked; the
  shepherd holds the lock to the end. First it is empty. Then it holds the start mark, at the full size of a record and
  synced before the command starts, so that a full disk can no longer lose the exit code. Last it holds the exit record,
  written over the mark in one write and synced. Nobody reads a record from it while the lock is held.
- A copy of the record goes to `$XDG_RUNTIME_DIR/gpusched/` while the life file takes none (a full copy-on-write disk).
- `<state>/lives/<job>.<number>.sh`: a command that is too long for an argument. `.seen`: its processes at a poll.
  `.setup`: not empty while a set-up file has not come to its end (see `setup.py`).
- `<state>/attempts/<job>.<number>/`: the job's own directory (GPUSCHED_ATTEMPT_DIR), in which it may do what it likes.
  In it `progress.json`, written by the job itself (GPUSCHED_PROGRESS). It names the attempt in all calls.

Mark and record are lines of `key=value`: small, readable, and parsed without any import. A record ends with a line of
its own, so that half a record (after a power cut) is not taken for a whole one; nor is one with a number that is none.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # a shepherd imports this: what only type checkers need is left out
if TYPE_CHECKING:
    from collections.abc import Mapping

RECORD_BYTES = 2048
FIELD_LIMIT = 512
_END = "record=whole"
_DIGITS = {"pid": 9, "start_ticks": 15, "exit_code": 3, "signal": 3, "max_rss_kib": 15}  # at most, in these fields
_DECIMAL_DIGITS = {"started_at": 11, "ended_at": 11, "cpu_s": 11}  # before the point
PROGRESS = "progress.json"
SCRIPT, SEEN, SETUP = ".sh", ".seen", ".setup"  # files beside the life file
PROGRESS_LIMIT_BYTES = 64 * 1024


def directory(state_dir: str, job_id: int, number: int) -> str:
    return f"{state_dir}/attempts/{job_id}.{number}"


def life_path(path: str) -> str:
    """Return the path of the attempt's life file; an older version of gpusched made it in the job's directory."""
    life, old = _new_life_path(path), f"{path}/life"
    is_new = os.path.exists(life) or os.path.islink(old) or not os.path.isfile(old)  # a job may make anything there
    return life if is_new else old


def _new_life_path(path: str) -> str:
    return "/lives/".join(path.rsplit("/attempts/", 1))


def beside(path: str, suffix: str) -> str:
    """Return the path of another file of the attempt, which lies beside its life file."""
    return f"{_new_life_path(path)}{suffix}"


def marker(queue: str, job_id: int, number: int) -> tuple[bytes, ...]:
    """Return the words that all processes of an attempt have in their environment, NAME=value."""
    words = (f"GPUSCHED_QUEUE={queue}", f"GPUSCHED_JOB_ID={job_id}", f"GPUSCHED_ATTEMPT={number}")
    return tuple(map(os.fsencode, words))


def make(path: str) -> int:
    """Make the job's directory and the life file; return the descriptor of the file, not locked yet.

    Those left by a start of the same attempt that was never booked are used again.
    """
    life = _new_life_path(path)
    for each in (os.path.dirname(life), os.path.dirname(path), path):  # one by one, or parents get another mode
        os.makedirs(each, 0o700, exist_ok=True)
    return os.open(life, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_mark(fd: int, fields: Mapping[str, object], *, sync: bool = True) -> None:
    """Write the start mark and sync it. Raises OSError if the disk is full."""
    _write(fd, fields, "", sync=sync)


def write_record(fd: int, fields: Mapping[str, object]) -> None:
    """Write the exit record over the mark and sync it. It needs no new block, so a full disk cannot stop it."""
    _write(fd, fields, _END)


def _write(fd: int, fields: Mapping[str, object], end: str, *, sync: bool = True) -> None:
    lines = []
    for key, value in fields.items():
        if value is not None:
            text = str(value).replace("\n", " ")
            lines.append(f"{key}={text}"[:FIELD_LIMIT])
    data = "\n".join(lines).encode("utf-8", "surrogateescape")[: RECORD_BYTES - 16] + b"\n" + end.encode()
    os.pwrite(fd, data.ljust(RECORD_BYTES, b"\n"), 0)  # one write: readers see the old or the new
    if sync:
        os.fdatasync(fd)


def parse_fields(data: bytes) -> dict[str, str]:
    """Return the fields of a mark or record, without what is damaged in it; a damaged record is none."""
    text = data.rstrip(b"\n").decode("utf-8", "replace")
    lines = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    fields = {key: value for key, value in lines.items() if _is_valid(key, value)}
    if len(fields) < len(lines):
        fields.pop("record", None)
    return fields


def _is_valid(key: str, value: str) -> bool:
    """Return False if the value of this field should be a number, and is none that can be."""
    limit = _DIGITS.get(key)
    if key in _DECIMAL_DIGITS:
        limit = _DECIMAL_DIGITS[key]
        value, _, decimals = value.partition(".")
        if decimals and not (decimals.isascii() and decimals.isdigit()):
            return False
    return limit is None or (value.isascii() and value.isdigit() and len(value) <= limit)


def is_record(fields: Mapping[str, str]) -> bool:
    """Return True if these are the fields of a whole exit record, False for those of a start mark."""
    return fields.get("record") == "whole"


def _copy_path(path: str) -> str:
    """Return where the copy of a record goes; empty if this user has no runtime directory of their own."""
    parent = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    try:
        status = os.stat(parent)
    except OSError:
        return ""
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return f"{parent}/gpusched/{path.replace('/', '!')[-200:]}" if is_ours else ""


def write_copy(path: str, fields: Mapping[str, object]) -> None:
    """Write a copy of the record into the user's runtime directory, if that can be; it lies in memory."""
    copy = _copy_path(path)
    if copy:
        try:
            os.makedirs(os.path.dirname(copy), 0o700, exist_ok=True)
            fd = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                write_record(fd, fields)
            finally:
                os.close(fd)
        except OSError:
            return


def read_copy(path: str, mark: Mapping[str, str]) -> dict[str, str]:
    """Return the copy of the record that belongs to this mark; nothing if there is none."""
    fields = parse_fields(read_part(_copy_path(path), RECORD_BYTES) or b"")
    belongs = all(fields.get(key) == mark.get(key) for key in ("pid", "start_ticks", "boot_id", "started_at"))
    return fields if is_record(fields) and belongs else {}


def remove_copy(path: str) -> None:
    try:
        os.unlink(_copy_path(path))
    except OSError:
        return


def open_life(path: str) -> int | None:
    """Open the life file for reading; return None if it is not there, or something else is in its place."""
    try:
        return os.open(life_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if exists(path) else None
    except FileNotFoundError:
        return None


def exists(path: str) -> bool:
    """Return True if the attempt has its life file: it was prepared, and the file is neither removed nor replaced."""
    life = life_path(path)
    return os.path.isfile(life) and not os.path.islink(life)


def read_progress(path: str) -> bytes | None:
    """Return the first PROGRESS_LIMIT_BYTES of the job's progress file; None if there is no file that can be read."""
    return read_part(f"{path}/{PROGRESS}", PROGRESS_LIMIT_BYTES)


def read_setup(path: str) -> str | None:
    """Return where the set-up was when it ended the shell, as far as that is known; None if the command began."""
    note = read_part(beside(path, SETUP), FIELD_LIMIT)
    return note.decode("utf-8", "replace").strip() if note else None


def read_part(path: str, limit_bytes: int, *, at_end: bool = False, since: int = 0) -> bytes | None:
    """Return the first bytes of a file that a job may write, or the last ones, but none before `since`.

    None if it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.pread(fd, limit_bytes, max(since, os.fstat(fd).st_size - limit_bytes) if at_end else since)
    except OSError:
        return None
    finally:
        os.close(fd)
