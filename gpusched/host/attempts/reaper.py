"""The facts about an attempt: alive, exited, lost, lingering, not started. Judges nothing, reads no queue.

Alive means that the life lock is held; no pid is trusted for that. The lock is tried first, the record read after it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpusched.common import processes
from gpusched.core.model import AttemptFact
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir, strays

LOG_TAIL_BYTES = 16 * 1024
REMOVE_FOR_S = 1.0


@dataclass(frozen=True, slots=True)
class LifeReading:
    """The fact about an attempt, the fields of its mark or record, and the processes that live without a shepherd."""

    fact: AttemptFact
    fields: Mapping[str, str] = field(default_factory=dict)
    strays: Sequence[int] = ()


def look(directory: str, queue_id: str, marker: tuple[bytes, ...], seen: Mapping[int, int]) -> LifeReading:
    """Look at an attempt of this queue, of which these processes (start times by pid) were seen under its shepherd.

    A record of another queue, whose number is the same, says nothing about it.
    """
    fd = attempt_dir.open_life(directory)
    if fd is None:  # never prepared, or somebody has removed it
        found = strays.find({}, marker, seen)
        return LifeReading(AttemptFact.LINGERING if found else AttemptFact.NOT_STARTED, strays=found)
    try:
        free = locks.try_lock(fd)
        data = os.pread(fd, attempt_dir.RECORD_BYTES, 0).strip(b"\0\n")
    finally:
        os.close(fd)
    fields = attempt_dir.parse_fields(data)
    if fields.get("queue_id", queue_id) != queue_id:  # a record of an older version has none
        data, fields = b"", {}
    if not free:
        return LifeReading(AttemptFact.ALIVE, fields)
    if attempt_dir.is_record(fields):
        return LifeReading(AttemptFact.EXITED, fields)
    if not data:
        return LifeReading(AttemptFact.NOT_STARTED)
    if copy := attempt_dir.read_copy(directory, fields):
        return LifeReading(AttemptFact.EXITED, copy)
    found = strays.find(fields, marker, seen)
    return LifeReading(AttemptFact.LINGERING if found else AttemptFact.LOST, fields, found)


def is_alive(state_dir: str, job_id: int, number: int) -> bool:
    """Return True if the life lock of an attempt is held, without touching it."""
    return locks.is_held(attempt_dir.life_path(attempt_dir.directory(state_dir, job_id, number)))


def shepherd_handle(mark: Mapping[str, str]) -> int | None:
    """Return a pidfd of the shepherd that a mark names, if that very process still lives."""
    shepherd = strays.shepherd_of(mark)
    handle = None if shepherd is None else processes.open_handle(shepherd[0])
    if shepherd is not None and handle is not None and processes.process_start(shepherd[0]) != shepherd[1]:
        os.close(handle)
        return None
    return handle


def terminate(mark: Mapping[str, str]) -> bool:
    """Ask an adopted attempt's shepherd to end it. Return False if that shepherd has ended."""
    shepherd = strays.shepherd_of(mark)
    is_there = shepherd is not None and processes.send_signal(shepherd[0], signal.SIGTERM, shepherd[1])
    continue_shepherd(mark)
    return is_there


def continue_shepherd(mark: Mapping[str, str], *, freeze: bool = False) -> None:
    """Continue an attempt's shepherd if it is stopped; with `freeze` its job is stopped first, lest it do it again."""
    shepherd = strays.shepherd_of(mark)
    fields = None if shepherd is None else processes.process_stat(shepherd[0])
    if shepherd is None or fields is None or fields[0] != "T":
        return
    if freeze:
        for pid in processes.descendants(shepherd[0]):
            processes.send_signal(pid, signal.SIGSTOP)
    processes.send_signal(shepherd[0], signal.SIGCONT, shepherd[1])


def remove_files(directory: str) -> None:
    """Remove the files of an attempt that is booked; its directory stays if it holds anything of the job."""
    suffixes = (attempt_dir.SCRIPT, attempt_dir.SEEN, attempt_dir.SETUP, f"{attempt_dir.SETUP}.sh")
    for path in (attempt_dir.life_path(directory), *(attempt_dir.beside(directory, suffix) for suffix in suffixes)):
        with suppress(OSError):
            os.unlink(path)
    with suppress(OSError):
        if os.listdir(directory) == [attempt_dir.PROGRESS]:  # booked too
            os.unlink(f"{directory}/{attempt_dir.PROGRESS}")
        os.rmdir(directory)
    attempt_dir.remove_copy(directory)


def remove_old_files(state_dir: str, keep: Container[str]) -> None:
    """Remove the files of all attempts but `keep`, and those of which a process still holds the life lock.

    There may be many of an older version, which never removed any; what takes too long is left to the next start.
    """
    until_s = time.monotonic() + REMOVE_FOR_S
    for name in (*_names(f"{state_dir}/lives"), *_names(f"{state_dir}/attempts")):
        if time.monotonic() >= until_s:
            return
        directory = f"{state_dir}/attempts/{'.'.join(name.split('.')[:2])}"
        if directory not in keep and not locks.is_held(attempt_dir.life_path(directory)):
            remove_files(directory)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def log_tail(path: str) -> bytes:
    """Return the last LOG_TAIL_BYTES of a log; nothing if it cannot be read."""
    return attempt_dir.read_part(path, LOG_TAIL_BYTES, at_end=True) or b""


def shepherds_of(pids: Iterable[int], shepherds: Mapping[int, str]) -> dict[int, str]:
    """Return, for each of `pids` that descends from a shepherd, the attempt directory of that shepherd.

    `shepherds` has the directories by the pids of shepherds.
    """
    owners: dict[int, str] = {}
    for pid in pids:
        current = pid
        while current > 1 and current not in shepherds:
            fields = processes.process_stat(current)
            current = 0 if fields is None else int(fields[1])
        if current in shepherds:
            owners[pid] = shepherds[current]
    return owners
