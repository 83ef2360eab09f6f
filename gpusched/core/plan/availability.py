"""Samples of a device over time -> is it free, how far is the count, and if not, why. Does not read the clock.

Each device keeps its own count of consecutive polls that found it free of others. The count goes on while a
job of ours runs there: what counts is the memory of *others* (foreign memory).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum

from gpusched.core.model import MIB, Device, DeviceProcess, Sample

IDLE_UTILISATION = 0.05  # at or under this a device without readable memory may count as idle


class DeviceState(str, Enum):
    UNKNOWN = "unknown"  # never read
    FREE = "free"
    CHECKING = "checking"
    BUSY = "busy"
    RUNNING = "running"  # an attempt of this queue is on it
    SETTLING = "settling"  # our attempt ended, its memory is not back yet
    LOST = "lost"
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class Criteria:
    """When a device counts as free."""

    threshold_bytes: int = 500 * MIB
    max_checks: int = 10
    idle_only: bool = False
    allow_unreadable_memory: bool = False


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known of one device. `count` is the number of consecutive polls that found it free of others."""

    uuid: str
    count: int = 0
    state: DeviceState = DeviceState.UNKNOWN
    why: str = "not read yet"
    since: float = 0.0  # when `state` began
    sample: Sample | None = None
    foreign_bytes: int | None = None
    settling_since: float | None = None  # on a clock that is never set
    withheld: bool = False  # set aside because memory of a job of ours never came back
    ours: tuple[int, ...] = ()  # pids of our last attempt, as last listed: a dead one can stay listed for a while

    @property
    def at(self) -> float:
        return self.sample.at if self.sample else 0.0


def foreign_bytes(sample: Sample, ours: Set[int]) -> int | None:
    """Memory in use on the device that is not of the processes `ours` (pids). None: cannot be known."""
    if sample.used_bytes is None:
        return None
    if not ours:
        return sample.used_bytes
    if sample.processes is None:
        return None
    mine = 0
    for process in sample.processes:
        if process.pid in ours:
            if process.used_bytes is None:
                return None
            mine += process.used_bytes
    return max(0, sample.used_bytes - mine)


def never_used(device: Device) -> str | None:
    """Why the device is not for jobs at all, whoever is on it."""
    if device.compute_mode == "prohibited":
        return "compute mode PROHIBITED"
    if device.mig_parent:
        return "in MIG mode: only its instances are handed out"
    return None


def obstacle(
    device: Device, sample: Sample, ours: Set[int], occupied: bool, criteria: Criteria, *, polled: bool = True
) -> str | None:
    """Why the device is not free of others at this sample; None if it is. One short clause, MiB for people."""
    if sample.error:
        return "lost" if sample.error == "lost" else f"cannot be read: {sample.error}"
    closed = never_used(device)
    if closed:
        return closed
    others = [p for p in sample.processes or () if p.pid not in ours and p.kind != "G"]
    if device.compute_mode == "exclusive_process":
        if sample.processes is None:
            return "exclusive-process mode, and its processes cannot be listed"
        if others:
            return f"exclusive-process mode, and {name_processes(others)} is on it"
    foreign = foreign_bytes(sample, ours)
    if foreign is None and (occupied or sample.used_bytes is not None):
        return "processes cannot be told apart while a job is on it"
    if foreign is None:
        return _unreadable(device, sample, others, criteria, polled)
    if foreign >= criteria.threshold_bytes:
        more = f" by {name_processes(others)}" if others else ""
        more += " (with the driver's reserve)" if sample.memory_includes_reserve else ""
        return f"{foreign // MIB} MiB in use{more}, threshold {criteria.threshold_bytes // MIB} MiB"
    if criteria.idle_only:
        if sample.processes is None:
            return "its processes cannot be listed, which --free-when idle needs"
        if others:
            return f"{name_processes(others)} is on it (--free-when idle)"
    return None


def _unreadable(
    device: Device, sample: Sample, others: Sequence[DeviceProcess], criteria: Criteria, polled: bool
) -> str | None:
    if not device.unified_memory:
        return "memory not readable"
    if not criteria.allow_unreadable_memory:
        return "memory not readable (--allow-unreadable-memory goes by processes and utilisation)"
    use = sample.utilisation
    if sample.processes is None or (polled and use is None):  # a look between polls does not read utilisation
        return "neither memory nor processes and utilisation can be read"
    if others:
        return f"{name_processes(others)} is on it"
    if use is not None and use > IDLE_UTILISATION:
        return f"{use:.0%} in use"
    return None


def name_processes(processes: Sequence[DeviceProcess]) -> str:
    """The first process in words, and how many more: "bo's python (pid 51) and 2 more"."""
    first = processes[0]
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    return f"{first.user}'s {first.program} (pid {first.pid}){more}"


def explained(device: Device, sample: Sample, ours: Set[int], criteria: Criteria) -> bool:
    """Whether the processes listed beside `ours` are reason enough for the device not to be free."""
    others = [p for p in sample.processes or () if p.pid not in ours]
    if sum(p.used_bytes or 0 for p in others) >= criteria.threshold_bytes:
        return True
    by_process = device.compute_mode == "exclusive_process" or criteria.idle_only or sample.used_bytes is None
    return by_process and any(p.kind != "G" for p in others)


def fold(
    before: Availability,
    device: Device,
    sample: Sample,
    *,
    ours: Set[int] = frozenset(),
    occupied: bool = False,
    polled: bool = True,
    criteria: Criteria,
    settle_timeout_s: float = 30.0,
    now: float | None = None,
) -> Availability:
    """Return the availability after one more sample.

    `ours` are the pids of our own attempts on the device, `occupied` says that an attempt of ours holds it.
    Only polls raise the count (`polled`); a look between polls can reset it, never raise it. `now` is the moment of
    the sample on the clock of `settling_since`; without it the sample's own time.
    """
    now = sample.at if now is None else now
    why = obstacle(device, sample, ours, occupied, criteria, polled=polled)
    mine = _still_listed({*before.ours, *ours}, sample)
    settling_since, withheld, count = before.settling_since, False, 0
    if why is None:
        count = min(before.count + (1 if polled else 0), criteria.max_checks)
        settling_since = None
        if occupied:
            state, why = DeviceState.RUNNING, "runs a job of this queue"
        elif count >= criteria.max_checks:
            state, why = DeviceState.FREE, "free"
        else:
            state, why = DeviceState.CHECKING, f"free at {count} of {criteria.max_checks} checks"
    elif sample.error:
        state = DeviceState.LOST if sample.error == "lost" else DeviceState.SET_ASIDE
        settling_since = None
    elif occupied:
        state = DeviceState.RUNNING
        if settling_since is not None:  # one of the jobs that share the device has left, its memory is not back yet
            if now - settling_since > settle_timeout_s or explained(device, sample, mine, criteria):
                settling_since = None
            else:
                count = before.count
    elif never_used(device):
        state, settling_since = DeviceState.SET_ASIDE, None
    elif explained(device, sample, mine, criteria):
        state, settling_since = DeviceState.BUSY, None
    elif before.withheld:
        state, why, withheld = DeviceState.SET_ASIDE, before.why, True
    elif settling_since is None:
        state = DeviceState.BUSY
    elif now - settling_since > settle_timeout_s:
        state, settling_since, withheld = DeviceState.SET_ASIDE, None, True
        why = f"{why}: not given back {settle_timeout_s:g} s after our job ended"
    else:
        state, count = DeviceState.SETTLING, before.count
        why = f"waiting for the memory of our last job: {why}"
    return Availability(
        uuid=before.uuid,
        count=count,
        state=state,
        why=why,
        since=before.since if state is before.state else sample.at,
        sample=sample,
        foreign_bytes=foreign_bytes(sample, ours),
        settling_since=settling_since,
        withheld=withheld,
        ours=tuple(sorted(mine)) if occupied or withheld or state is DeviceState.SETTLING else (),
    )


def _still_listed(pids: Set[int], sample: Sample) -> Set[int]:
    return pids if sample.processes is None else pids & {p.pid for p in sample.processes}


def settle(
    before: Availability, at: float, *, occupied: bool = False, settling_since: float | None = None
) -> Availability:
    """Return the availability at the moment when an attempt of ours has left the device; the next samples decide.

    `settling_since` is the same moment on the clock by which settling is measured; without it `at`.

    `occupied`: another attempt of ours is on it still. A device that is lost or cannot be read stays so: what is said
    of it once need not be said again.
    """
    if before.state is DeviceState.LOST or (before.sample is not None and before.sample.error):
        return before
    settling_since = at if settling_since is None else settling_since
    if occupied:
        return replace(before, settling_since=settling_since)
    return replace(
        before,
        state=DeviceState.SETTLING,
        why="our job has just ended",
        since=at,
        settling_since=settling_since,
    )


def vanish(before: Availability, now: float) -> Availability:
    """The availability of a device that the box no longer lists."""
    if before.state is DeviceState.LOST:
        return before
    return Availability(uuid=before.uuid, state=DeviceState.LOST, why="no longer in the box", since=now)


def settle_pause_s(settling_for_s: float) -> float:
    """How long to wait before the next look at a settling device: looks at 5, 10, … ms, thinning out by an eighth.

    So what comes back late is found late by an eighth of its wait at most.
    """
    return min(0.5, max(0.005, settling_for_s / 8))
