"""Identify a process, and signal exactly that one. Light enough for a shepherd; decides nothing."""

from __future__ import annotations

import os
import pwd
import signal
import time

FIRST_PID_NAMESPACE = 0xEFFFFFFC  # its inode, fixed in the kernel


def has_program(name: str) -> bool:
    """Return True if PATH has this program, or if it is the path of one."""
    paths = [name] if "/" in name else [os.path.join(directory, name) for directory in os.get_exec_path()]
    return any(os.access(path, os.X_OK) and os.path.isfile(path) for path in paths)


def process_start(pid: int) -> int | None:
    """Return the start time of a live process in clock ticks since boot; None if it is gone or a zombie."""
    fields = process_stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def process_stat(pid: int) -> list[str] | None:
    """Read /proc/PID/stat from the state field on: [0] state, [1] ppid, [2] pgrp, [3] session, [19] start time."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data[data.rindex(b")") + 2 :].decode("ascii").split()


def has_ended(pid: int) -> bool:
    """Return True for a process that is gone, or a zombie."""
    stat = process_stat(pid)
    return stat is None or stat[0] in "ZX"


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """Return the name of a user; the number where the box has no name for it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def memory_bytes() -> int:
    """Return the memory of this box."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def boot_ticks() -> int:
    """Return the clock ticks since boot, on the scale of `process_start`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def is_first_pid_namespace() -> bool:
    """Return True unless this process has pids of its own, as in a container; also where nobody can say."""
    try:
        return os.readlink("/proc/self/ns/pid") == f"pid:[{FIRST_PID_NAMESPACE}]"
    except OSError:
        return True


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


def marked_processes(marker: tuple[bytes, ...]) -> list[int]:
    """Return the pids of live processes whose environment has every `NAME=value` of `marker`, the oldest first."""
    marked: list[tuple[int, int]] = []
    for pid in all_pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environment = set(file.read().split(b"\0"))
        except OSError:
            continue
        if environment.issuperset(marker) and (began := process_start(pid)) is not None:
            marked.append((began, pid))
    return [pid for _, pid in sorted(marked)]


def session_members(session: int, start_ticks: int) -> list[int]:
    """Return the pids of live processes in the session whose leader began then; none if another one has that pid."""
    if process_start(session) not in (None, start_ticks):
        return []
    stats = ((pid, process_stat(pid)) for pid in all_pids())
    return [pid for pid, fields in stats if fields is not None and fields[0] not in "ZX" and int(fields[3]) == session]


def descendants(*roots: int) -> list[int]:
    """Return the pids of live processes whose chain of parents leads to one of `roots`, each after its parent."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        fields = process_stat(pid)
        if fields is not None and fields[0] not in ("Z", "X"):
            children.setdefault(int(fields[1]), []).append(pid)
    family = list(roots)  # grows while it is read
    for pid in family:
        family += children.pop(pid, ())
    return family[len(roots) :]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def send_signal(pid: int, number: int, start_ticks: int | None = None) -> bool:
    """Signal the process `pid`, if it began at `start_ticks`. Return True if it was there.

    It uses a pidfd, so that no other process can get the pid in between; on kernels before 5.3 it signals the pid right
    after it has read the start time.
    """
    handle = open_handle(pid)
    try:
        began = process_start(pid)
        if began is None or (start_ticks is not None and began != start_ticks):
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle is not None:
            os.close(handle)


def open_handle(pid: int) -> int | None:
    """Return a pidfd, which is readable when the process has ended. None if it is gone, or the kernel has no pidfds."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
