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
from gpusched.host.attempts import attempt_dir

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
        strays = _strays({}, marker, seen)
        return LifeReading(AttemptFact.LINGERING if strays else AttemptFact.NOT_STARTED, strays=strays)
    try:
        free = locks.try_lock(fd)
        fields = attempt_dir.parse_fields(os.pread(fd, attempt_dir.RECORD_BYTES, 0))
    finally:
        os.close(fd)
    if fields.get("queue_id", queue_id) != queue_id:  # a record of an older version has none
        fields = {}
    if not free:
        return LifeReading(AttemptFact.ALIVE, fields)
    if attempt_dir.is_record(fields):
        return LifeReading(AttemptFact.EXITED, fields)
    if not fields:
        return LifeReading(AttemptFact.NOT_STARTED)
    strays = _strays(fields, marker, seen)
    return LifeReading(AttemptFact.LINGERING if strays else AttemptFact.LOST, fields, strays)


def _strays(mark: Mapping[str, str], marker: tuple[bytes, ...], seen: Mapping[int, int]) -> list[int]:
    """Return the live processes of an attempt without a shepherd.

    Each sign can be missing: a process may write over its environment, leave its session, and be born between polls.
    """
    found = [pid for pid, start_ticks in seen.items() if processes.process_start(pid) == start_ticks]
    found += processes.marked_processes(marker)
    session = _process(mark, mark.get("session", ""))
    if session is not None:
        found += processes.session_members(*session)
    return list(dict.fromkeys(found + processes.descendants(*found))) if found else []


def _process(mark: Mapping[str, str], words: str) -> tuple[int, int] | None:
    """Return a process of this mark, written as pid and start time, if the mark is of this boot."""
    try:
        pid, start_ticks = map(int, words.split())
    except ValueError:
        return None
    return (pid, start_ticks) if mark.get("boot_id") == processes.boot_id() else None


def shepherd_of(mark: Mapping[str, str]) -> tuple[int, int] | None:
    """Return pid and start time of the shepherd that a mark names, if the mark is of this boot."""
    return _process(mark, f"{mark.get('pid')} {mark.get('start_ticks')}")


def save_seen(directory: str, seen: Mapping[int, int]) -> None:
    """Keep the processes of an attempt for the next dispatcher, as far as the disk has room."""
    with suppress(OSError), open(attempt_dir.seen_path(directory), "w", encoding="ascii") as file:
        file.writelines(f"{pid} {start_ticks}\n" for pid, start_ticks in seen.items())


def load_seen(directory: str, mark: Mapping[str, str]) -> dict[int, int]:
    """Return the processes that an earlier dispatcher has seen of an attempt since this boot."""
    with suppress(OSError), open(attempt_dir.seen_path(directory), encoding="ascii") as file:
        return dict(process for line in file if (process := _process(mark, line)) is not None)
    return {}


def shepherd_handle(mark: Mapping[str, str]) -> int | None:
    """Return a pidfd of the shepherd that a mark names, if that very process still lives."""
    shepherd = shepherd_of(mark)
    handle = None if shepherd is None else processes.open_handle(shepherd[0])
    if shepherd is not None and handle is not None and processes.process_start(shepherd[0]) != shepherd[1]:
        os.close(handle)
        return None
    return handle


def terminate(mark: Mapping[str, str]) -> bool:
    """Ask an adopted attempt's shepherd to end it. Return False if that shepherd has ended."""
    shepherd = shepherd_of(mark)
    return shepherd is not None and processes.send_signal(shepherd[0], signal.SIGTERM, shepherd[1])


def remove_files(directory: str) -> None:
    """Remove the files of an attempt that is booked; its directory stays if it holds anything of the job."""
    for path in (attempt_dir.life_path, attempt_dir.script_path, attempt_dir.seen_path):
        with suppress(OSError):
            os.unlink(path(directory))
    with suppress(OSError):
        if os.listdir(directory) == [attempt_dir.PROGRESS]:  # booked too
            os.unlink(f"{directory}/{attempt_dir.PROGRESS}")
        os.rmdir(directory)


def remove_old_files(state_dir: str, keep: Container[str]) -> None:
    """Remove the files of all attempts but `keep`, and those of which a process still holds the life lock.

    There may be many of an older version, which never removed any; what takes too long is left to the next start.
    """
    until_s = time.monotonic() + REMOVE_FOR_S
    for name in (*_names(f"{state_dir}/lives"), *_names(f"{state_dir}/attempts")):
        if time.monotonic() >= until_s:
            return
        directory = f"{state_dir}/attempts/{'.'.join(name.split('.')[:2])}"
        if directory not in keep and not _is_held(directory):
            remove_files(directory)


def _is_held(directory: str) -> bool:
    fd = attempt_dir.open_life(directory)
    if fd is None:
        return False
    with open(fd, "rb"):
        return not locks.try_lock(fd)


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
