"""The progress of jobs that process items, summed up for all jobs of the same tags, and the time that they took.

Reads no queue: counts and times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpusched.core.documents import parse_progress
from gpusched.core.model import JobState, RunningView


@dataclass(frozen=True, slots=True)
class ItemCount:
    """Jobs with items, of the same tags and in the same state."""

    tags: tuple[str, ...]
    state: JobState
    jobs: int
    items: int


@dataclass(frozen=True, slots=True)
class StartTotals:
    """The work of one or more starts of a queue. `states`: of the jobs that ended; a shared GPU is counted once."""

    starts: int
    began_at: float
    ended_at: float
    states: Mapping[JobState, int]
    attempts: int
    gpu_s: float
    work_s: float  # of the dispatchers


@dataclass(frozen=True, slots=True)
class ItemGroup:
    """Jobs of the same tags and their items. `done` includes the progress that running jobs report."""

    tags: tuple[str, ...]
    jobs: int
    ended: int  # jobs that succeeded
    items: int
    done: float  # items

    @property
    def name(self) -> str:
        return ",".join(self.tags) or "items"

    @property
    def fraction(self) -> float:
        return self.done / self.items if self.items else 0.0


def groups(counts: Iterable[ItemCount], running: Iterable[RunningView]) -> list[ItemGroup]:
    """Return the groups of a queue, in the order of their tags."""
    by_tags: dict[tuple[str, ...], ItemGroup] = {}
    for each in counts:
        if each.jobs:
            group = by_tags.get(each.tags, ItemGroup(each.tags, 0, 0, 0, 0.0))
            jobs, items = (each.jobs, each.items) if each.state is JobState.SUCCEEDED else (0, 0)
            by_tags[each.tags] = ItemGroup(
                each.tags, group.jobs + each.jobs, group.ended + jobs, group.items + each.items, group.done + items
            )
    for view in running:
        running_group = by_tags.get(view.job.tags) if view.job.items else None
        if running_group is not None:
            done = running_group.done + items_done(view.job.items, parse_progress(view.attempt.progress))
            by_tags[view.job.tags] = replace(running_group, done=min(running_group.items, done))
    return [group for _, group in sorted(by_tags.items())]


def items_done(items: int, progress: Mapping[str, Any]) -> float:
    """Return the number of items that a running job reports as done in its progress file; 0 without a report."""
    done, total = progress.get("done"), progress.get("total")
    if done is None:
        return 0.0
    return float(min(items, max(0, items * done / total if total and total > 0 else done)))


def slowest_left_s(running: Iterable[RunningView], per_s: float, now: float) -> float | None:
    """Return the time that the slowest of a group's running jobs needs; None if it is longer at work than expected.

    `per_s` is the rate of all of them in items per second, by which those are judged that do not report their progress.
    """
    views, slowest = list(running), 0.0
    for view in views:
        spent = max(0.0, now - view.attempt.started_at)
        done = items_done(view.job.items, parse_progress(view.attempt.progress))
        if not done:
            left = view.job.items * len(views) / per_s - spent if per_s > 0 else 0.0
            if left < 0:
                return None
        else:
            left = spent * (view.job.items - done) / done
        slowest = max(slowest, left)
    return slowest


# ---- times -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The time span of an attempt. `succeeded`: this attempt processed the job's items."""

    job_id: int
    name: str
    items: int
    started_at: float
    ended_at: float
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Times:
    """The durations of a group's jobs, in seconds. `wall_s` counts only while some attempt of the group ran."""

    jobs: tuple[Span, ...]  # the attempts that succeeded, in the order of the jobs
    wall_s: float
    at_once: int  # the most attempts at one time

    @property
    def durations(self) -> list[float]:
        return [span.ended_at - span.started_at for span in self.jobs]

    @property
    def median_s(self) -> float:
        from statistics import median

        return median(self.durations)

    @property
    def slowest_s(self) -> float:
        return max(self.durations)

    @property
    def speed_up(self) -> float:
        """The sum of all durations, divided by the wall time."""
        return sum(self.durations) / self.wall_s if self.wall_s > 0 else 1.0

    @property
    def efficiency(self) -> float:
        return self.speed_up / self.at_once

    @property
    def items_per_s(self) -> float:
        return sum(span.items for span in self.jobs) / self.wall_s if self.wall_s > 0 else 0.0


def times(spans: Sequence[Span]) -> Times | None:
    """Sum up the attempts of a group's jobs. Return None if none has succeeded."""
    jobs = tuple(sorted((span for span in spans if span.succeeded), key=lambda span: span.job_id))
    if not jobs:
        return None
    wall, until, most, now = 0.0, 0.0, 0, 0
    for span in sorted(spans, key=lambda span: span.started_at):
        wall += max(0.0, span.ended_at - max(until, span.started_at))
        until = max(until, span.ended_at)
    # an end counts before a start at the same moment
    edges = sorted([(s.started_at, 1) for s in spans] + [(s.ended_at, 0) for s in spans if s.ended_at > s.started_at])
    for _, starts in edges:
        now += 1 if starts else -1
        most = max(most, now)
    return Times(jobs, wall, max(1, most))
