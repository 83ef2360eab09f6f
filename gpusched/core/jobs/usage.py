"""Sum up the samples of an attempt into its usage. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from types import MappingProxyType

from gpusched.core.model import Sample, Usage

NOTHING: Mapping[str, int] = MappingProxyType({})


def memory_of(samples: Iterable[Sample], pids: Set[int], before: Mapping[str, int] = NOTHING) -> int | None:
    """Return the bytes that the processes `pids` of an attempt use on these devices; None if that is not known.

    If the driver does not list processes by pid, and the attempt has the device alone, this is the use of the device
    minus its use `before` the attempt (by UUID).
    """
    used = [_used_on(sample, pids, before) for sample in samples]
    return None if any(one is None for one in used) else sum(one or 0 for one in used)


def _used_on(sample: Sample, pids: Set[int], before: Mapping[str, int]) -> int | None:
    if sample.error:
        return None
    if not _is_blind(sample, pids):
        return sum(p.used_bytes or 0 for p in sample.processes or () if p.pid in pids)
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
) -> Usage:
    """Return the usage after one more poll of the attempt's devices.

    `energy_j` is the energy that the boards used since the last poll.
    """
    samples = list(samples)
    memory = memory_of(samples, pids, before)
    utilisations = [s.utilisation for s in samples if s.utilisation is not None]
    utilisation = sum(utilisations) / len(utilisations) if utilisations else None
    n = usage.samples + (memory is not None or utilisation is not None)  # a silent poll weighs nothing in the means
    each = [used for sample in samples if (used := memory_of([sample], pids, before)) is not None]
    return Usage(
        samples=n,
        peak_memory_bytes=_larger(usage.peak_memory_bytes, memory),
        mean_memory_bytes=_mean(usage.mean_memory_bytes, memory, n),
        mean_utilisation=_mean(usage.mean_utilisation, utilisation, n),
        energy_j=usage.energy_j if energy_j is None else (usage.energy_j or 0.0) + energy_j,
        peak_device_bytes=_larger(usage.peak_device_bytes, max(each, default=None)),
        by_device=usage.by_device or (bool(each) and any(_is_blind(sample, pids) for sample in samples)),
    )


def _larger(before: int | None, now: int | None) -> int | None:
    return before if now is None else max(before or 0, now)


def _mean(before: float | None, now: float | None, n: int) -> float | None:
    if now is None:
        return before
    return float(now) if before is None else before + (now - before) / n
