"""The end of a group of jobs with items: what is done, what is missing, and the time that it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.jobs.progress import ItemGroup, Span, Times, times
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
from gpusched.core.jobs.reconcile import COUNTED_NOWHERE
from gpusched.core.model import JobRow, JobState


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """The details of a group that only its feature knows."""

    spans: Mapping[str, str] = field(default_factory=dict)  # the items of a job as text, by its name
    outputs: Sequence[str] = ()  # lines of the merge about the files that it has made
    errors: Sequence[str] = ()  # its errors
    warnings: Sequence[str] = ()


NO_DETAILS = GroupDetails()


@dataclass(frozen=True, slots=True)
class MissingJob:
    """A job of a group that is not done, and its items as text, if they are known."""

    name: str
    items: str


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group at the end of a run. `held`: names of jobs that wait for what is missing."""

    group: ItemGroup
    times: Times | None
    missing: tuple[MissingJob, ...] = ()
    held: tuple[str, ...] = ()
    details: GroupDetails = NO_DETAILS


def summarize_group(
    group: ItemGroup, spans: Sequence[Span], unfinished: Iterable[JobRow], details: GroupDetails = NO_DETAILS
) -> GroupSummary:
    """Summarize a group. `spans` are its attempts, `unfinished` all jobs of the queue that have not succeeded."""
    if group.ended == group.jobs:
        return GroupSummary(group, times(spans), details=details)
    jobs = list(unfinished)
    missing = tuple(
        MissingJob(_name(job), details.spans.get(job.name, ""))
        for job in jobs
        if job.items and job.listed and job.tags == group.tags and job.cause not in COUNTED_NOWHERE
    )
    held = tuple(_name(job) for job in jobs if job.state is JobState.HELD and job.cause == CAUSE_DEPENDENCY)
    return GroupSummary(group, times(spans), missing, held if missing else (), details)


def _name(job: JobRow) -> str:
    return job.name or f"job {job.id}"


def group_document(summary: GroupSummary) -> dict[str, Any]:
    """Return a group as a JSON document; times in seconds."""
    group, took = summary.group, summary.times
    document: dict[str, Any] = {
        "tags": list(group.tags),
        "jobs": group.jobs,
        "jobs_done": group.ended,
        "items": group.items,
        "items_done": group.done,
        "missing": [{"name": job.name, "items": job.items} for job in summary.missing],
    }
    if took is None:
        return document
    names = ("wall_s", "median_s", "slowest_s", "at_once", "speed_up", "efficiency", "items_per_s")
    return document | {
        **{name: getattr(took, name) for name in names},
        "times": [
            {"job": s.job_id, "name": s.name, "items": s.items, "runtime_s": s.ended_at - s.started_at}
            for s in took.jobs
        ],
    }
