"""The facts about an attempt: alive, exited, lost, lingering, not started. Judges nothing, reads no queue.

Alive means that the life lock is held; no pid is trusted for that. The lock is tried first, the record read after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusched.common import processes
from gpusched.core.model import AttemptFact
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir

LOG_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class LifeReading:
    """The fact about an attempt, and the fields of its mark or record."""

    fact: AttemptFact
    fields: Mapping[str, str] = field(default_factory=dict)


def look(directory: str, marker: tuple[bytes, ...]) -> LifeReading:
    fd = attempt_dir.open_life(directory)
    if fd is None:  # never prepared, or somebody has removed it
        return LifeReading(AttemptFact.LINGERING if processes.marked_processes(marker) else AttemptFact.NOT_STARTED)
    try:
        free = locks.try_lock(fd)
        fields = attempt_dir.parse_fields(os.pread(fd, attempt_dir.RECORD_BYTES, 0))
    finally:
        os.close(fd)
    if not free:
        return LifeReading(AttemptFact.ALIVE, fields)
    if attempt_dir.is_record(fields):
        return LifeReading(AttemptFact.EXITED, fields)
    if not fields:
        return LifeReading(AttemptFact.NOT_STARTED)
    if copy := attempt_dir.read_copy(directory, fields):
        return LifeReading(AttemptFact.EXITED, copy)
    fact = AttemptFact.LINGERING if processes.marked_processes(marker) else AttemptFact.LOST
    return LifeReading(fact, fields)


def _shepherd(mark: Mapping[str, str]) -> tuple[int, int] | None:
    """Return pid and start time of the shepherd that a mark names, if the mark is of this boot."""
    try:
        process = int(mark["pid"]), int(mark["start_ticks"])
    except (KeyError, ValueError):
        return None
    return process if mark.get("boot_id") == processes.boot_id() else None


def shepherd_handle(mark: Mapping[str, str]) -> int | None:
    """Return a pidfd of the shepherd that a mark names, if that very process still lives."""
    shepherd = _shepherd(mark)
    handle = None if shepherd is None else processes.open_handle(shepherd[0])
    if shepherd is not None and handle is not None and processes.process_start(shepherd[0]) != shepherd[1]:
        os.close(handle)
        return None
    return handle


def terminate(mark: Mapping[str, str]) -> bool:
    """Ask an adopted attempt's shepherd to end it. Return False if that shepherd has ended."""
    shepherd = _shepherd(mark)
    return shepherd is not None and processes.send_signal(shepherd[0], signal.SIGTERM, shepherd[1])


def end_strays(marker: tuple[bytes, ...], number: int) -> None:
    """Signal the processes left by an attempt whose shepherd was killed; its environment marker identifies them."""
    for pid in processes.marked_processes(marker):
        processes.send_signal(pid, number)


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
