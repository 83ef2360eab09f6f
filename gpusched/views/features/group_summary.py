"""A group of jobs with items in the summary of a run: what is missing, what was merged, and the times of its jobs."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.common.text import clean
from gpusched.core.jobs.group_summary import GroupSummary
from gpusched.core.jobs.progress import Times
from gpusched.views.tables import STATES, Row
from gpusched.views.words import count, rate, span

SHOWN_TIMES = 16  # of the slowest jobs
SHOWN = 12  # of what is missing, merged or wrong


def group_rows(summary: GroupSummary) -> list[Row]:
    """Return the labelled rows of a group."""
    group, took = summary.group, summary.times
    speed = f", {rate(took.items_per_s)}" if took is not None else ""
    done = f"{group.ended} of {group.jobs} done, {int(group.done)} of {count(group.items, 'item')}{speed}"
    rows: list[Row] = [[clean(group.name), done], *_missing_rows(summary)]
    if summary.details.outputs:
        rows.append(["merged", [clean(text) for text in summary.details.outputs[-SHOWN:]]])
    if summary.details.warnings:
        rows.append(["warned", [clean(text) for text in summary.details.warnings[:SHOWN]]])
    if summary.details.errors:
        rows.append(["wrong", [clean(text) for text in summary.details.errors[:SHOWN]]])
    return rows if took is None or len(took.jobs) < 2 else [*rows, *_time_rows(took)]


def _missing_rows(summary: GroupSummary) -> list[Row]:
    if not summary.missing:
        return []
    names = [clean(f"{job.name} (items {job.items})" if job.items else job.name) for job in summary.missing]
    more = len(names) - SHOWN
    shown = names[:SHOWN] + ([f"… and {more} more"] if more > 0 else [])
    rows: list[Row] = [["missing", [(text, STATES["failed"]) for text in _join(shown, 2)]]]
    if summary.held:
        held = ", ".join(clean(name) for name in summary.held[:SHOWN])
        rows.append(["held", f"{held}: until what is missing has succeeded"])
    return rows


def _time_rows(took: Times) -> list[Row]:
    slowest = sorted(took.jobs, key=lambda job: job.started_at - job.ended_at)[:SHOWN_TIMES]
    shown = [job for job in took.jobs if job in slowest]
    times = [f"{clean(job.name or str(job.job_id))} {span(job.ended_at - job.started_at)}" for job in shown]
    ratio = took.slowest_s / took.median_s if took.median_s > 0 else 1.0
    against = f"slowest {span(took.slowest_s)}, {ratio:.2f} of the median {span(took.median_s)}"
    gain = f"speed-up {took.speed_up:.2f} with {took.at_once} at once, efficiency {took.efficiency:.2f}"
    return [["times", [*_join(times, 4)]], ["", f"{against}; {gain}"]]


def _join(texts: Sequence[str], per_line: int) -> list[str]:
    """Join the texts into lines of a few texts each."""
    return [", ".join(texts[n : n + per_line]) for n in range(0, len(texts), per_line)]
