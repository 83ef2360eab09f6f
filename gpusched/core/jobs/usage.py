"""Sum up the samples of an attempt into its usage. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TypeVar

from gpusched.core.model import NOBODY_SEEN, ForeignUse, Sample, Usage

N = TypeVar("N", int, float)
NAMED = 3  # processes of others that are remembered by name
NOTHING: Mapping[str, int] = MappingProxyType({})


def memory_on(
    sample: Sample, pids: Set[int], before: Mapping[str, int] = NOTHING, reported_bytes: int | None = None
) -> int | None:
    """Return the bytes that the processes `pids` of an attempt use on this device; None if that is not known.

    If the driver does not list processes by pid, this is what the attempt itself has reported for each device; without
    a report, the use of the device minus its use `before` the attempt (by UUID), which had it alone since.
    """
    if sample.error:
        return None
    if not _is_blind(sample, pids):
        return sum(p.used_bytes or 0 for p in sample.processes or () if p.pid in pids)
    if reported_bytes is not None:
        return reported_bytes
    if sample.used_bytes is None or sample.uuid not in before:
        return None
    return max(0, sample.used_bytes - before[sample.uuid])


def _is_blind(sample: Sample, pids: Set[int]) -> bool:
    """Return True if the device does not report the memory of these processes."""
    return sample.processes is None or any(p.used_bytes is None for p in sample.processes if p.pid in pids)


def add(
    usage: Usage,
    samples: Iterable[Sample],
    pids: Set[int],
    energy_j: float | None,
    before: Mapping[str, int] = NOTHING,
    foreign_use: ForeignUse = NOBODY_SEEN,
    reported_bytes: int | None = None,
) -> Usage:
    """Return the usage after one more poll of the attempt's devices.

    `energy_j` is the energy that the boards used since the last poll, `foreign_use` what that poll says of others.
    `before` and `reported_bytes` as in memory_on().
    """
    samples = list(samples)
    used = [memory_on(sample, pids, before, reported_bytes) for sample in samples]
    known = [each for each in used if each is not None]
    memory = sum(known) if len(known) == len(used) else None
    utilisations = [s.utilisation for s in samples if s.utilisation is not None]
    utilisation = sum(utilisations) / len(utilisations) if utilisations else None
    n = usage.samples + (memory is not None or utilisation is not None)  # a silent poll weighs nothing in the means
    is_blind = bool(known) and any(_is_blind(sample, pids) for sample in samples)
    return Usage(
        samples=n,
        peak_memory_bytes=_larger(usage.peak_memory_bytes, memory),
        mean_memory_bytes=_mean(usage.mean_memory_bytes, memory, n),
        mean_utilisation=_mean(usage.mean_utilisation, utilisation, n),
        energy_j=usage.energy_j if energy_j is None else (usage.energy_j or 0.0) + energy_j,
        peak_device_bytes=_larger(usage.peak_device_bytes, max(known, default=None)),
        by_device=usage.by_device or (is_blind and reported_bytes is None),
        by_report=usage.by_report or (is_blind and reported_bytes is not None),
        foreign_use=add_foreign(usage.foreign_use, foreign_use),
        idle_samples=usage.idle_samples + _is_idle(samples, pids),
    )


def _is_idle(samples: Sequence[Sample], pids: Set[int]) -> bool:
    """Return True if these processes do nothing on the devices; where the driver does not tell, the devices do."""
    if all(sample.processes is not None for sample in samples):
        own = [p.utilisation for sample in samples for p in sample.processes or () if p.pid in pids]
        if None not in own:
            return not any(own)
    uses = [sample.utilisation for sample in samples]
    return None not in uses and not any(uses)


def foreign_use_of(samples: Sequence[Sample], foreign: Set[int], *, alone: bool) -> ForeignUse:
    """Return what one poll says of others on these devices; `foreign` are their pids.

    `alone`: the job had asked to be alone.
    """
    if not samples or any(sample.processes is None for sample in samples):
        return NOBODY_SEEN
    others = [p for sample in samples for p in sample.processes or () if p.pid in foreign]
    return ForeignUse(
        samples=1,
        shared=int(bool(others)),
        who=tuple(dict.fromkeys(f"{p.user}'s {p.program}" for p in others))[:NAMED],
        peak_bytes=sum(known) if (known := [p.used_bytes for p in others if p.used_bytes is not None]) else None,
        peak_utilisation=max((p.utilisation for p in others if p.utilisation is not None), default=None),
        disturbed=alone and bool(others),
    )


def add_foreign(one: ForeignUse, other: ForeignUse) -> ForeignUse:
    """Return the use of both together."""
    return ForeignUse(
        samples=one.samples + other.samples,
        shared=one.shared + other.shared,
        who=tuple(dict.fromkeys((*one.who, *other.who)))[:NAMED],
        peak_bytes=_larger(one.peak_bytes, other.peak_bytes),
        peak_utilisation=_larger(one.peak_utilisation, other.peak_utilisation),
        disturbed=one.disturbed or other.disturbed,
    )


def _larger(before: N | None, now: N | None) -> N | None:
    return before if now is None or (before is not None and before > now) else now


def _mean(before: float | None, now: float | None, n: int) -> float | None:
    if now is None:
        return before
    return float(now) if before is None else before + (now - before) / n
