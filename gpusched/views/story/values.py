"""The story of a queue as values, and the sums over it. Every view of a queue's past draws these. Reads nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from gpusched.core.model import AttemptRow, JobRow, JobState
from gpusched.core.samples import NOTHING_WAITS, Stretch
from gpusched.views.failures import FailureGroup
from gpusched.views.values import QueueReport, UsageSum

UNRECORDED = "unrecorded"  # the kind of a wait that no dispatcher saw


class QueueStory(NamedTuple):
    """Everything that a queue did, from `began_at` on. `report` is its present state, as `status` shows it."""

    report: QueueReport
    began_at: float
    ended_at: float  # the present, while it is dispatched
    jobs: Sequence[tuple[JobRow, Sequence[AttemptRow]]]  # the newest ones, the first one first
    stretches: Sequence[Stretch]
    by_tag: Mapping[str, UsageSum]
    by_device: Mapping[str, UsageSum]
    together: UsageSum
    failures: Sequence[tuple[FailureGroup, Sequence[str]]]  # each with the last lines of its log


@dataclass(slots=True)
class GpuTime:
    """The recorded time of one GPU in seconds: ours with work and without, elsewhere, of others, and idle by reason."""

    index: int
    working_s: float = 0.0
    held_s: float = 0.0
    elsewhere_s: float = 0.0  # in use by other queues of this user
    others_s: float = 0.0
    idle: dict[str, float] = field(default_factory=dict)

    @property
    def free_s(self) -> float:
        return sum(self.idle.values())


def gpu_times(stretches: Iterable[Stretch]) -> dict[str, GpuTime]:
    """Return the time of each GPU by UUID, in the order of their indices."""
    times: dict[str, GpuTime] = {}
    for stretch in stretches:
        for uuid, gpu in stretch.gpus.items():
            time = times.setdefault(uuid, GpuTime(gpu.index))
            time.working_s += gpu.working_s
            time.held_s += gpu.ours_s - gpu.working_s
            time.elsewhere_s += gpu.elsewhere_s
            time.others_s += gpu.others_s
            for why, seconds in gpu.idle.items():
                time.idle[why] = time.idle.get(why, 0.0) + seconds
    return dict(sorted(times.items(), key=lambda item: item[1].index))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The memory of a job on one GPU in a stretch that ended at `at`, and the use of that GPU from 0 to 1."""

    at: float
    uuid: str
    index: int
    mib: float
    use: float | None


def job_curves(stretches: Iterable[Stretch], only: int | None = None) -> dict[int, list[CurvePoint]]:
    """Return the use that jobs made of GPUs over time, by id; `only`: of one job."""
    curves: dict[int, list[CurvePoint]] = {}
    for stretch in stretches:
        for uuid, gpu in stretch.gpus.items():
            for job, (_, mib) in gpu.jobs.items():
                if only is None or int(job) == only:
                    curves.setdefault(int(job), []).append(CurvePoint(stretch.ended_at, uuid, gpu.index, mib, gpu.use))
    return curves


def idle_costs(times: Iterable[GpuTime]) -> dict[str, float]:
    """Return the seconds in which GPUs were free although jobs waited, by the kind of the first one's reason."""
    costs: dict[str, float] = {}
    for time in times:
        for why, seconds in time.idle.items():
            if why.startswith(f"{NOTHING_WAITS}: "):
                kind = why.removeprefix(f"{NOTHING_WAITS}: ")
                costs[kind] = costs.get(kind, 0.0) + seconds
    return _largest_first(costs)


def waits_by_kind(story: QueueStory) -> dict[str, float]:
    """Return for how many seconds jobs waited, by the kind of their reason.

    The records are samples: they share out the time that jobs have waited while there were records.
    """
    waits: dict[str, float] = {}
    for stretch in story.stretches:
        for kind, jobs in stretch.waits.items():
            waits[kind] = waits.get(kind, 0.0) + jobs * stretch.seconds
    spans = [span for job, attempts in story.jobs for span in waiting_spans(job, attempts, story.ended_at)]
    seen_s = _seen_s(spans, story.stretches)
    sampled_s = sum(waits.values())
    waits = {kind: seconds * seen_s / sampled_s for kind, seconds in waits.items() if sampled_s}
    waits[UNRECORDED] = sum(end - begin for begin, end in spans) - sum(waits.values())
    return _largest_first(waits)


def _seen_s(spans: Iterable[tuple[float, float]], stretches: Sequence[Stretch]) -> float:
    """Return how many seconds of these spans lie in stretches."""
    begins = [stretch.began_at for stretch in stretches]
    before_s = list(accumulate((each.ended_at - each.began_at for each in stretches), initial=0.0))

    def seen_until(at: float) -> float:
        number = bisect_left(begins, at)
        return before_s[number] - max(0.0, stretches[number - 1].ended_at - at) if number else 0.0

    return sum(seen_until(end) - seen_until(begin) for begin, end in spans)


def waited_s(job: JobRow, attempts: Sequence[AttemptRow], now: float) -> float:
    """Return how long a job has waited in all."""
    return sum(end - begin for begin, end in waiting_spans(job, attempts, now))


def waiting_spans(job: JobRow, attempts: Sequence[AttemptRow], now: float) -> list[tuple[float, float]]:
    """Return when a job has waited: before its attempts, between them, and since the last one."""
    begins = [job.submitted_at, *(each.ended_at or now for each in attempts)]
    until = now if job.state in (JobState.QUEUED, JobState.HELD) else job.ended_at or begins[-1]
    ends = [*(each.started_at for each in attempts), until if job.state is not JobState.RUNNING else begins[-1]]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if end > begin]


def _largest_first(sums: Mapping[str, float]) -> dict[str, float]:
    return {key: sums[key] for key in sorted(sums, key=sums.__getitem__, reverse=True) if sums[key] >= 0.5}
