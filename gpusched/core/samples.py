"""The record of GPUs and queue, in one stretch of time after the other; old stretches become longer. Reads nothing.

A poll of the dispatcher is a short stretch. Stretches are merged as they age, so that a queue of years has a record of
bounded size that is fine where people look at it: near its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpusched.core.model import MIB, DeviceProcess
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.snapshot import Reason

K = TypeVar("K")
NAMES = 6  # reasons, or others, that one stretch remembers of a GPU
WHY_LENGTH = 60
PLAIN_STATES = (DeviceState.CHECKING, DeviceState.SETTLING, DeviceState.RUNNING)  # they say why
NOTHING_WAITS = "free"  # the reason why a GPU is idle; while jobs wait: "free: " and the kind of the first one's reason


@dataclass(slots=True)
class GpuStretch:
    """One GPU in a stretch. A part of the time was ours, a part that of others alone; in the rest it was idle."""

    index: int
    total_mib: float | None = None
    used_mib: float | None = None  # on average, as all numbers here that are no seconds
    peak_mib: float | None = None  # the most
    use: float | None = None  # utilisation, 0 to 1
    ours_s: float = 0.0
    working_s: float = 0.0  # of `ours_s`, with any utilisation
    others_s: float = 0.0  # it was not free for us
    others_mib: float | None = None
    checks: int = 0  # in a row that had found it free, at the end
    jobs: dict[str, list[float]] = field(default_factory=dict)  # ours, by id: seconds, and memory in MiB
    who: dict[str, float] = field(default_factory=dict)  # others, beside ours too: seconds
    idle: dict[str, float] = field(default_factory=dict)  # why it was idle: seconds
    elsewhere_s: float = 0.0  # this user had claimed it for another queue, or to work there


@dataclass(slots=True)
class Stretch:
    """A stretch of time in epoch seconds. `seconds` of it are known: less than its length where nobody dispatched."""

    began_at: float
    ended_at: float
    seconds: float
    states: dict[str, float] = field(default_factory=dict)  # jobs that were queued, held and running, on average
    waits: dict[str, float] = field(default_factory=dict)  # queued jobs by the kind of their reason, on average
    gpus: dict[str, GpuStretch] = field(default_factory=dict)  # by UUID


# ---- one poll --------------------------------------------------------------------------------------


def stretch_of(board: Board, seconds: float, waits_for: str) -> Stretch:
    """Return the last `seconds` as a poll shows them. `waits_for` is the kind of the first waiting job's reason."""
    gpus = {item.device.uuid: _gpu_of(item, seconds, waits_for) for item in board.devices}
    return Stretch(board.at - seconds, board.at, seconds, gpus=gpus)


def _gpu_of(item: BoardDevice, seconds: float, waits_for: str) -> GpuStretch:
    view, known, sample = item.view, item.view.availability, item.view.availability.sample
    used = None if sample is None or sample.used_bytes is None else sample.used_bytes / MIB
    processes = sample.processes or () if sample else ()
    others = [p for p in processes if p.pid not in known.ours and p.kind != "G"]
    gpu = GpuStretch(
        item.device.index,
        None if view.total_bytes is None else view.total_bytes / MIB,
        used,
        used,
        sample.utilisation if sample else None,
        others_mib=None if known.foreign_bytes is None else known.foreign_bytes / MIB,
        checks=known.count,
        jobs={str(each.job_id): [seconds, (each.used_bytes or 0) / MIB] for each in view.residents},
        who=dict.fromkeys(_names(others, view.refused), seconds),
    )
    if view.residents:
        gpu.ours_s = seconds
        gpu.working_s = seconds if gpu.use else 0.0
    elif view.refused.startswith("claimed by your "):
        gpu.elsewhere_s = seconds
    elif known.state is DeviceState.BUSY or view.refused.startswith("claimed by"):
        gpu.others_s = seconds
        gpu.who = gpu.who or {"unknown": seconds}
    else:
        gpu.idle = {_idle_reason(known.state, view.refused or known.why, waits_for): seconds}
    return gpu


def _names(others: Iterable[DeviceProcess], refused: str) -> list[str]:
    claimer = refused.removeprefix("claimed by ") if refused.startswith("claimed by ") else ""
    return [*dict.fromkeys(f"{p.user}'s {p.program}" for p in others), *filter(None, [claimer])][:NAMES]


def _idle_reason(state: DeviceState, why: str, waits_for: str) -> str:
    if state in PLAIN_STATES:
        return state.name.lower()
    if state is DeviceState.FREE and why == "free":
        return f"{NOTHING_WAITS}: {waits_for}" if waits_for else NOTHING_WAITS
    return f"{state.name.lower()}: {why.partition(': ')[0][:WHY_LENGTH]}"


def count_waits(reasons: Iterable[Reason], ready: int, others: Mapping[str, int]) -> dict[str, float]:
    """Return how many jobs wait for which kind of reason.

    `ready` jobs could start; a plan knows the reasons of the first ones, and the rest wait as these do. `others` are
    the jobs that could not start, by kind.
    """
    kinds = [reason.shortage for reason in reasons]
    share = ready / len(kinds) if kinds else 0.0
    waits = {kind: kinds.count(kind) * share for kind in kinds}
    for kind, number in others.items():
        if number:
            waits[kind] = waits.get(kind, 0.0) + number
    return waits


# ---- merging ---------------------------------------------------------------------------------------


def merge(one: Stretch, next_one: Stretch) -> Stretch:
    """Return a stretch and the one after it as one."""
    weights = one.seconds, next_one.seconds
    return Stretch(
        one.began_at,
        next_one.ended_at,
        sum(weights),
        _mean_each(one.states, next_one.states, weights),
        _mean_each(one.waits, next_one.waits, weights),
        {
            uuid: _merge_gpu(one.gpus[uuid], next_one.gpus[uuid], weights)
            if uuid in one.gpus and uuid in next_one.gpus
            else one.gpus.get(uuid) or next_one.gpus[uuid]
            for uuid in one.gpus | next_one.gpus
        },
    )


def thin(stretches: Iterable[Stretch], now: float, fineness: int) -> list[Stretch]:
    """Merge neighbours until no two of them together are shorter than their age divided by `fineness`.

    A job stays only in stretches of which it had half: so short, it has no curve.
    """
    kept: list[Stretch] = []
    for stretch in stretches:
        before = kept[-1] if kept else None
        if before is not None and 0 <= stretch.ended_at - before.began_at <= (now - before.began_at) / fineness:
            kept[-1] = merge(before, stretch)
        else:
            kept.append(stretch)
    for stretch in kept:
        for gpu in stretch.gpus.values():
            gpu.jobs = {job: row for job, row in gpu.jobs.items() if row[0] >= stretch.seconds / 2}
    return kept


def _merge_gpu(one: GpuStretch, other: GpuStretch, weights: tuple[float, float]) -> GpuStretch:
    peaks = [peak for peak in (one.peak_mib, other.peak_mib) if peak is not None]
    jobs = {job: list(row) for job, row in one.jobs.items()}
    for job, (seconds, mib) in other.jobs.items():
        before_s, before_mib = jobs.get(job, (0.0, 0.0))
        jobs[job] = [before_s + seconds, (before_s * before_mib + seconds * mib) / ((before_s + seconds) or 1.0)]
    return GpuStretch(
        index=other.index,
        total_mib=other.total_mib,
        used_mib=_mean(one.used_mib, other.used_mib, weights),
        peak_mib=max(peaks, default=None),
        use=_mean(one.use, other.use, weights),
        ours_s=one.ours_s + other.ours_s,
        working_s=one.working_s + other.working_s,
        others_s=one.others_s + other.others_s,
        others_mib=_mean(one.others_mib, other.others_mib, weights),
        checks=other.checks,
        jobs=jobs,
        who=_sum_each(one.who, other.who),
        idle=_sum_each(one.idle, other.idle),
        elsewhere_s=one.elsewhere_s + other.elsewhere_s,
    )


def _mean(one: float | None, other: float | None, weights: tuple[float, float]) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return (one * weights[0] + other * weights[1]) / (sum(weights) or 1.0)


def _mean_each(one: dict[K, float], other: dict[K, float], weights: tuple[float, float]) -> dict[K, float]:
    """Return the means of numbers that are 0 where they are missing."""
    total = sum(weights) or 1.0
    return {key: (one.get(key, 0.0) * weights[0] + other.get(key, 0.0) * weights[1]) / total for key in one | other}


def _sum_each(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Return the sums by name; the names with the least time become one where there are too many."""
    sums = {name: one.get(name, 0.0) + other.get(name, 0.0) for name in one | other}
    if len(sums) <= NAMES:
        return sums
    rest = sums.pop("more", 0.0)
    named = sorted(sums, key=sums.__getitem__, reverse=True)
    return {name: sums[name] for name in named[: NAMES - 1]} | {"more": rest + sum(sums[n] for n in named[NAMES - 1 :])}
