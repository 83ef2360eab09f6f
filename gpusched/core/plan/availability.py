"""Judge from samples of a device over time if it is free, and if not, why. Does not read the clock.

Each device has its own count of consecutive polls at which it was free of others. The count goes on while a
job of ours runs there, since only the memory of *others* (foreign memory) matters.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum

from gpusched.core.model import MIB, Device, DeviceProcess, Sample

IDLE_UTILISATION = 0.05  # at or under this a device without readable memory may count as idle
WORKING_UTILISATION = 0.05  # of a device, on average: somebody works there, where processes do not tell
STALE_USE_S = 2.0  # so long after a job of ours its work may be in the device's utilisation


class DeviceState(str, Enum):
    UNKNOWN = "unknown"  # never read
    FREE = "free"
    CHECKING = "checking"
    BUSY = "busy"
    RUNNING = "running"  # an attempt of this queue is on it
    SETTLING = "settling"  # our attempt has ended, its memory is not free yet
    LOST = "lost"
    SET_ASIDE = "set_aside"


RUNS_OURS = "runs a job of this queue"  # why a device is in the state RUNNING
_BY_UNKNOWN = " by an unknown process (of a container, or just ended)"
OPEN_STATES = (DeviceState.FREE, DeviceState.CHECKING)


@dataclass(frozen=True, slots=True)
class Criteria:
    """The conditions for a device to count as free, and the time that it may take to settle."""

    threshold_bytes: int = 500 * MIB
    max_checks: int = 10
    free_when: str = "auto"  # auto | memory | idle
    allow_unreadable_memory: bool = False
    settle_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class OwnUse:
    """The use of a device by this queue: `occupied` says that an attempt is on it, `pids` are its known processes."""

    pids: Set[int] = frozenset()
    occupied: bool = False
    reported_bytes: int | None = None  # by all attempts on it, each of itself; None: not all of them report
    gone: Set[int] = frozenset()  # listed, of nobody known, and ended: ours, where a job of ours is or was
    has_host_pids: bool = False  # the pids here are those that the driver lists


@dataclass(frozen=True, slots=True)
class Availability:
    """The state of one device. `count` is the number of consecutive polls at which it was free of others."""

    uuid: str
    count: int = 0
    state: DeviceState = DeviceState.UNKNOWN
    why: str = "not read yet"
    since: float = 0.0  # when `state` began
    sample: Sample | None = None
    foreign_bytes: int | None = None
    settling_since: float | None = None  # on a clock that is never set
    withheld: bool = False  # set aside because the memory of a job of ours was not freed
    ours: tuple[int, ...] = ()  # pids of our last attempt that the driver still lists, some of them perhaps dead
    mean_use: float | None = None  # utilisation over the polls that `count` counts; None: not known, or partly ours
    ours_until: float | None = None  # when a job of ours was last there, on a clock that is never set

    @property
    def at(self) -> float:
        return self.sample.at if self.sample else 0.0


def foreign_bytes(sample: Sample, own: OwnUse) -> int | None:
    """Return the memory in use on the device by others than this queue; None if not known."""
    if sample.used_bytes is None:
        return None
    mine = [process.used_bytes for process in sample.processes or () if process.pid in own.pids]
    is_blind = sample.processes is None or None in mine
    if is_blind and own.reported_bytes is None:
        return None if own.pids or own.occupied else sample.used_bytes
    return max(0, sample.used_bytes - (own.reported_bytes or 0 if is_blind else sum(used or 0 for used in mine)))


def never_used(device: Device) -> str | None:
    """Return why the device can never run jobs; None if it can."""
    if device.compute_mode == "prohibited":
        return "compute mode PROHIBITED"
    if device.mig_parent:
        return "in MIG mode: only its instances are handed out"
    return None


def obstacle(
    device: Device,
    sample: Sample,
    own: OwnUse,
    criteria: Criteria,
    *,
    polled: bool = True,
    mean_use: float | None = None,
) -> str | None:
    """Return why the device is not free of others at this sample, as one short clause; None if it is free of them.

    `mean_use` is the utilisation of the device over these checks; None if it is not known, or may be ours.
    """
    if sample.error:
        return "lost" if sample.error == "lost" else f"cannot be read: {sample.error}"
    closed = never_used(device)
    if closed:
        return closed
    others = [p for p in sample.processes or () if p.pid not in own.pids and p.kind != "G"]
    if device.compute_mode == "exclusive_process":
        if sample.processes is None:
            return "exclusive-process mode, and its processes cannot be listed"
        if others:
            return f"exclusive-process mode, and {name_processes(others)} is on it"
    foreign = foreign_bytes(sample, own)
    if foreign is None:
        if own.occupied or sample.used_bytes is not None:
            return "memory of others is unknown while a job is on it"
        return _unreadable(device, sample, others, criteria, polled)
    if foreign >= criteria.threshold_bytes:
        unknown = _BY_UNKNOWN if sample.processes is None else ""
        by = f" by {name_processes(others)}" if others else unknown
        reserve = " (with the driver's reserve)" if sample.memory_includes_reserve else ""
        return f"{foreign // MIB} MiB in use{by}{reserve}, threshold {criteria.threshold_bytes // MIB} MiB"
    if criteria.free_when == "idle":
        return _not_idle(sample, others)
    return _in_use(sample, others, mean_use) if criteria.free_when == "auto" else None


def _in_use(sample: Sample, others: Sequence[DeviceProcess], mean_use: float | None) -> str | None:
    """Return who works on a device although little of its memory is in use; None if nobody is seen to."""
    working = [p for p in others if p.utilisation]
    if working:
        return f"{name_processes(working)} works on it ({max(p.utilisation or 0.0 for p in working):.0%} GPU use)"
    by_process = sample.processes is not None and all(p.utilisation is not None for p in others)
    if by_process or mean_use is None or mean_use < WORKING_UTILISATION:
        return None
    on_it = f", and {name_processes(others)} is on it" if others else _BY_UNKNOWN
    return f"{mean_use:.0%} in use{on_it} (--free-when memory ignores that)"


def _not_idle(sample: Sample, others: Sequence[DeviceProcess]) -> str | None:
    if sample.processes is None:
        return "its processes cannot be listed, which --free-when idle needs"
    return f"{name_processes(others)} is on it (--free-when idle)" if others else None


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
    """Return the first process in words, and the number of the others: "bo's python (pid 51) and 2 more"."""
    first = processes[0]
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    return f"{first.user}'s {first.program} (pid {first.pid}){more}"


def company(known: Availability) -> str:
    """Return who is on a free device, or that nobody can know, for a job that wants to be alone; empty if nobody is."""
    listed = known.sample.processes if known.sample else None
    if listed is None:
        return "its processes cannot be listed, which alone=yes needs"
    return f"{name_processes(listed)} is on it (alone=yes)" if listed else ""


def explained(device: Device, sample: Sample, ours: Set[int], criteria: Criteria) -> bool:
    """Return True if the listed processes other than `ours` alone keep the device from being free."""
    others = [p for p in sample.processes or () if p.pid not in ours]
    if sum(p.used_bytes or 0 for p in others) >= criteria.threshold_bytes:
        return True
    others = [p for p in others if p.kind != "G"]
    if criteria.free_when == "auto" and any(p.utilisation for p in others):
        return True
    by_process = device.compute_mode == "exclusive_process" or criteria.free_when == "idle" or sample.used_bytes is None
    return by_process and bool(others)


def fold(
    before: Availability,
    device: Device,
    sample: Sample,
    own: OwnUse = OwnUse(),
    *,
    polled: bool = True,
    criteria: Criteria,
    now: float | None = None,
) -> Availability:
    """Return the availability after one more sample.

    Only polls raise the count (`polled`); a look between polls can reset it, never raise it. `now` is the time of
    the sample on the clock of `settling_since`; without it the sample's own time.
    """
    now = sample.at if now is None else now
    was_ours = own.occupied or before.state in (DeviceState.RUNNING, DeviceState.SETTLING)
    ours_until = now if was_ours else before.ours_until
    may_be_ours = ours_until is not None and now - ours_until < STALE_USE_S
    use = None if may_be_ours else _use_over_checks(before, sample, polled)
    why = obstacle(device, sample, own, criteria, polled=polled, mean_use=use)
    may_be_gone = own.gone if own.occupied or before.settling_since is not None else ()
    listed = _still_listed({*before.ours, *own.pids, *may_be_gone}, sample)
    foreign = foreign_bytes(sample, own)
    after = Availability(before.uuid, why=why or "", sample=sample, foreign_bytes=foreign)
    if why is None:
        after = _count_free_poll(before, after, own.occupied, polled, criteria.max_checks)
    elif sample.error:
        after = replace(after, state=DeviceState.LOST if sample.error == "lost" else DeviceState.SET_ASIDE)
    elif own.occupied:
        is_explained = explained(device, sample, listed, criteria)
        is_known = foreign is not None and sample.processes is not None
        have_left = (is_known and not polled) or _have_left(before, sample, own)
        after = _keep_running(before, after, now, is_explained, have_left, criteria)
    elif never_used(device):
        after = replace(after, state=DeviceState.SET_ASIDE)
    elif explained(device, sample, listed, criteria):
        after = replace(after, state=DeviceState.BUSY)
    else:
        after = _wait_for_memory(before, after, now, criteria.settle_timeout_s)
    is_ours = own.occupied or after.withheld or after.state is DeviceState.SETTLING
    since = before.since if after.state is before.state else sample.at
    return replace(
        after,
        since=since,
        ours=tuple(sorted(listed)) if is_ours else (),
        mean_use=use if polled else before.mean_use,
        ours_until=ours_until,
    )


def _use_over_checks(before: Availability, sample: Sample, polled: bool) -> float | None:
    """Return the mean utilisation over the polls in a row at which the device was free of others, and this one.

    A look between polls stands for itself: who came after the last poll must not hide behind the polls before.
    """
    use = sample.utilisation
    if use is None or before.mean_use is None or not before.count or not polled:
        return use
    return before.mean_use + (use - before.mean_use) / (before.count + 1)


def _count_free_poll(
    before: Availability, after: Availability, occupied: bool, polled: bool, max_checks: int
) -> Availability:
    """Decide for a device that is free of others at this sample."""
    count = min(before.count + polled, max_checks)
    if occupied:
        return replace(after, state=DeviceState.RUNNING, why=RUNS_OURS, count=count)
    if count >= max_checks:
        return replace(after, state=DeviceState.FREE, why="free", count=count)
    return replace(after, state=DeviceState.CHECKING, why=f"free at {count} of {max_checks} checks", count=count)


def _keep_running(
    before: Availability, after: Availability, now: float, is_explained: bool, have_left: bool, criteria: Criteria
) -> Availability:
    """Decide for a device with a job of ours that is not free of others.

    After one of the jobs that share it has ended, its memory may take a while to come back: the count is kept so long.
    A look may come after the last process of a job, and before its end is known: that is the same.
    """
    since = before.settling_since
    if since is None and have_left:
        since = now
    if since is None or now - since > criteria.settle_timeout_s or is_explained:
        return replace(after, state=DeviceState.RUNNING)
    return replace(after, state=DeviceState.RUNNING, why=RUNS_OURS, count=before.count, settling_since=since)


def _have_left(before: Availability, sample: Sample, own: OwnUse) -> bool:
    """Return True if a process of ours has left since the last sample, or none is there, though they would be shown.

    A driver that lists nobody while memory is in use may hide processes; but where ours were listed, or must be, that
    memory is most likely of those that have ended. The next process of a job may be there before it is back.
    """
    listed = {p.pid for p in sample.processes or ()}
    if sample.processes is not None and {*before.ours} - listed:
        return True
    seen = before.sample.processes if before.sample is not None else None
    are_shown = (own.has_host_pids and seen is not None) or {p.pid for p in seen or ()} & {*before.ours}
    return bool(are_shown) and not listed & own.pids


def _wait_for_memory(before: Availability, after: Availability, now: float, settle_timeout_s: float) -> Availability:
    """Decide for a device without a job of ours, whose memory in use no listed process explains."""
    since = before.settling_since
    if before.withheld:
        return replace(after, state=DeviceState.SET_ASIDE, why=before.why, settling_since=since, withheld=True)
    if since is None:
        return replace(after, state=DeviceState.BUSY)
    if now - since > settle_timeout_s:
        late = f"{after.why}: not given back {settle_timeout_s:g} s after our job ended"
        return replace(after, state=DeviceState.SET_ASIDE, why=late, withheld=True)
    why = f"waiting for the memory of our last job: {after.why.replace(_BY_UNKNOWN, '')}"
    return replace(after, state=DeviceState.SETTLING, why=why, count=before.count, settling_since=since)


def _still_listed(pids: Set[int], sample: Sample) -> Set[int]:
    return pids if sample.processes is None else pids & {p.pid for p in sample.processes}


def settle(
    before: Availability, at: float, *, occupied: bool = False, settling_since: float | None = None
) -> Availability:
    """Return the availability right after an attempt of ours has left the device.

    `occupied`: another attempt of ours is still on it. A device that is lost or cannot be read keeps its state, so
    that no second event reports it. `settling_since` is the same moment on the clock by which settling is measured;
    without it `at`.
    """
    if before.state is DeviceState.LOST or (before.sample is not None and before.sample.error):
        return before
    settling_since = at if settling_since is None else settling_since
    if occupied:
        return replace(before, settling_since=settling_since)
    why = "our job has just ended"
    return replace(before, state=DeviceState.SETTLING, why=why, since=at, settling_since=settling_since)


def vanish(before: Availability, now: float) -> Availability:
    """Return the availability of a device that the box no longer lists."""
    if before.state is DeviceState.LOST:
        return before
    return Availability(uuid=before.uuid, state=DeviceState.LOST, why="no longer in the box", since=now)


def bar(known: Availability, why: str) -> Availability:
    """Return the availability of a device that takes no more jobs, for this reason if there is one."""
    if not why or known.state not in (*OPEN_STATES, DeviceState.RUNNING):
        return known
    return replace(known, count=0, why=why, state=DeviceState.SET_ASIDE if known.state in OPEN_STATES else known.state)


def settle_pause_s(settling_for_s: float) -> float:
    """Return the pause before the next look at a settling device: 5 ms at first, later an eighth of the wait so far.

    So the return of its memory is noticed late by at most an eighth of the wait, and at most half a second.
    """
    return min(0.5, max(0.005, settling_for_s / 8))
