"""Live attempts -> facts: alive, exited, lost, lingering, not started. Judges nothing, reads no queue.

Alive means that the life lock is held; no pid is trusted for that. The lock is looked at first, the record after it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusched.core.model import AttemptFact
from gpusched.host import attemptdir, locks

LOG_TAIL_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of an attempt: its fact and the fields of its mark or record."""

    fact: AttemptFact
    fields: Mapping[str, str] = field(default_factory=dict)


def look(directory: str, marker: tuple[bytes, ...]) -> Sight:
    fd = attemptdir.open_life(directory)
    if fd is None:
        return Sight(AttemptFact.NOT_STARTED)
    try:
        free = locks.try_lock(fd)
        fields = attemptdir.parse_fields(os.pread(fd, attemptdir.RECORD_BYTES, 0))
    finally:
        os.close(fd)
    if not free:
        return Sight(AttemptFact.ALIVE, fields)
    if attemptdir.is_record(fields):
        return Sight(AttemptFact.EXITED, fields)
    if not fields:
        return Sight(AttemptFact.NOT_STARTED)
    fact = AttemptFact.LINGERING if attemptdir.marked_processes(marker) else AttemptFact.LOST
    return Sight(fact, fields)


def shepherd_handle(mark: Mapping[str, str]) -> int | None:
    """A pidfd of the shepherd that a mark names, if that very process still lives."""
    try:
        pid, ticks = int(mark["pid"]), int(mark["start_ticks"])
    except (KeyError, ValueError):
        return None
    if mark.get("boot_id") != attemptdir.boot_id():
        return None
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    if attemptdir.process_start(pid) != ticks:
        os.close(handle)
        return None
    return handle


def terminate(mark: Mapping[str, str]) -> bool:
    """Ask an adopted attempt's shepherd to end it. False when that shepherd is no more."""
    handle = shepherd_handle(mark)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def end_strays(marker: tuple[bytes, ...], number: int) -> None:
    """Signal what is left of an attempt whose shepherd was killed: processes with its environment marker."""
    for pid in attemptdir.marked_processes(marker):
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            signal.pidfd_send_signal(handle, number)
        except OSError:
            pass
        finally:
            os.close(handle)


def log_tail(path: str) -> bytes:
    """The last bytes of a log; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        size = os.fstat(fd).st_size
        return os.pread(fd, LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
    finally:
        os.close(fd)


def shepherds_of(pids: Iterable[int], shepherds: Mapping[int, str]) -> dict[int, str]:
    """Which of `pids` descend from which shepherd: pid -> the attempt directory of that shepherd (by its pid)."""
    owners: dict[int, str] = {}
    for pid in pids:
        current, steps = pid, 0
        while current > 1 and steps < 64:
            if current in shepherds:
                owners[pid] = shepherds[current]
                break
            fields = attemptdir.process_stat(current)
            if fields is None:
                break
            current, steps = int(fields[1]), steps + 1
    return owners
