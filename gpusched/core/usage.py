"""Samples of an attempt, folded into what it used. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Set

from gpusched.core.model import Sample, Usage


def memory_of(samples: Iterable[Sample], pids: Set[int]) -> int | None:
    """Bytes that the processes `pids` hold on these devices. None when one device cannot tell."""
    total = 0
    for sample in samples:
        if sample.processes is None or sample.error:
            return None
        for process in sample.processes:
            if process.pid in pids:
                if process.used_bytes is None:
                    return None
                total += process.used_bytes
    return total


def add(usage: Usage, samples: Iterable[Sample], pids: Set[int], energy_j: float | None) -> Usage:
    """The usage after one more poll of the attempt's devices. `energy_j` is what the boards used since the last."""
    seen = list(samples)
    memory = memory_of(seen, pids)
    known = [s.utilisation for s in seen if s.utilisation is not None]
    utilisation = sum(known) / len(known) if known else None
    n = usage.samples + (memory is not None or utilisation is not None)  # a silent poll weighs nothing in the means
    return Usage(
        samples=n,
        peak_memory_bytes=_larger(usage.peak_memory_bytes, memory),
        mean_memory_bytes=_mean(usage.mean_memory_bytes, memory, n),
        mean_utilisation=_mean(usage.mean_utilisation, utilisation, n),
        energy_j=usage.energy_j if energy_j is None else (usage.energy_j or 0.0) + energy_j,
        peak_device_bytes=_larger(usage.peak_device_bytes, _most(seen, pids)),
    )


def _most(samples: Iterable[Sample], pids: Set[int]) -> int | None:
    """The most that the processes hold on one of these devices."""
    told = [memory for sample in samples if (memory := memory_of([sample], pids)) is not None]
    return max(told, default=None)


def _larger(before: int | None, now: int | None) -> int | None:
    return before if now is None else max(before or 0, now)


def _mean(before: float | None, now: float | None, n: int) -> float | None:
    if now is None:
        return before
    return float(now) if before is None else before + (now - before) / n
