"""The files of one attempt: names, the start mark, the exit record, atomic writes. Judges nothing.

An attempt's directory is `<state>/attempts/<job>.<number>/`. In it:

- `life`: made and locked by the dispatcher before the attempt is booked; the shepherd holds the lock to the end.
  Empty, or a start mark: the file at the full size of a record, synced before the command starts, so that a full
  disk can no longer lose the exit code.
- `record`: the same file, rewritten with the exit record, synced and renamed.
- `progress.json`: the job's own (GPUSCHED_PROGRESS).

Mark and record are lines of `key=value`: small, readable, and parsed without any import.
"""

from __future__ import annotations

import os

RECORD_BYTES = 2048
LIFE = "life"
RECORD = "record"
PROGRESS = "progress.json"
PROGRESS_LIMIT_BYTES = 64 * 1024


def directory(state_dir: str, job_id: int, number: int) -> str:
    return f"{state_dir}/attempts/{job_id}.{number}"


def make(path: str) -> int:
    """Make the attempt's directory and its life file; the descriptor, not locked yet.

    An earlier start of the same attempt that was never booked leaves a directory without a mark: used again.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(path, 0o700, exist_ok=True)
    return os.open(f"{path}/{LIFE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_fields(fd: int, fields: dict[str, object]) -> None:
    """Write mark or record over the whole file and sync it. Raises OSError when the disk is full."""
    lines = []
    for key, value in fields.items():
        if value is not None:
            text = str(value).replace("\n", " ")
            lines.append(f"{key}={text}"[:512])
    data = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")[:RECORD_BYTES]
    os.pwrite(fd, data.ljust(RECORD_BYTES, b"\n"), 0)
    os.fsync(fd)


def parse_fields(data: bytes) -> dict[str, str]:
    text = data.decode("utf-8", "surrogateescape")
    return dict(line.split("=", 1) for line in text.split("\n") if "=" in line)


def finish(path: str) -> None:
    """Give the rewritten life file its final name: from here on the attempt has a record."""
    os.rename(f"{path}/{LIFE}", f"{path}/{RECORD}")


def read_record(path: str) -> dict[str, str] | None:
    return _read(f"{path}/{RECORD}")


def read_mark(path: str) -> dict[str, str] | None:
    """The start mark (of a running attempt, or of one that left no record). None: the command never began."""
    return _read(f"{path}/{LIFE}") or None


def _read(name: str) -> dict[str, str] | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return parse_fields(os.read(fd, RECORD_BYTES))
    finally:
        os.close(fd)


def read_progress(path: str) -> bytes | None:
    """The raw progress file of the job, if it wrote a regular one of sensible size."""
    try:
        fd = os.open(f"{path}/{PROGRESS}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(fd, PROGRESS_LIMIT_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes, *, sync: bool = False, mode: int = 0o600) -> None:
    """Replace the file at `path` by a temporary name and a rename."""
    temporary = f"{path}.tmp{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    os.close(fd)
    os.rename(temporary, path)


# ---- who a process is ------------------------------------------------------------------------------


def process_start(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    fields = process_stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def process_stat(pid: int) -> list[str] | None:
    """/proc/PID/stat from the state field on: [0] state, [1] ppid, [2] pgrp, [3] session, [19] start time."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data[data.rindex(b")") + 2 :].decode("ascii").split()


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def marked_processes(marker: tuple[bytes, ...]) -> list[int]:
    """Pids of live processes of ours whose environment holds every `NAME=value` of `marker`."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                environment = set(file.read().split(b"\0"))
        except OSError:
            continue
        if environment.issuperset(marker) and process_start(int(name)) is not None:
            found.append(int(name))
    return found
