"""What a run says at its end: counts, the failed jobs and where to look, and how to go on. Decides no exit code."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from gpusched.common.errors import EXIT_OK, EXIT_QUIT, EXIT_SOME_FAILED
from gpusched.core.jobs.group_summary import NO_DETAILS, GroupDetails, GroupSummary, group_document, summarize_group
from gpusched.core.jobs.progress import groups
from gpusched.core.model import JobState
from gpusched.operations import queues

if TYPE_CHECKING:
    from gpusched.core.model import JobRow
    from gpusched.operations.run import Queue
    from gpusched.views import tables
    from gpusched.views.report import JobCounts
    from gpusched.views.tables import Line

SHOWN_FAILED = 20


def print_summary(queue: Queue, code: int, *, as_json: bool, details: GroupDetails = NO_DETAILS) -> None:
    """Print the end of a run to stdout: one block for people, or one JSON document."""
    if as_json:
        print(json.dumps(document(queue, code, details), indent=2))
        return
    from gpusched.views.tables import write

    write(sys.stdout, page(queue, code, details))


def document(queue: Queue, code: int, details: GroupDetails = NO_DETAILS) -> dict[str, object]:
    """The head of gpu_metrics.json, and the failed jobs."""
    from gpusched.core.documents import job_document, metrics_head

    store, place = queue.store, queue.queue_dir
    head = metrics_head(store.counts(), store.count_removed(), store.totals(), queues.now())
    failed = [job_document(job, store.attempts(job.id), place.path) for job in store.jobs([JobState.FAILED])]
    found = {**head, "exit_code": code, "queue": place.path, "metrics": place.metrics, "failed": failed}
    groups = [group_document(group) for group in read_groups(queue, details)]
    return {**found, "groups": groups} if groups else found


def read_groups(queue: Queue, details: GroupDetails = NO_DETAILS) -> list[GroupSummary]:
    """Summarize the jobs with items, by their tags."""
    store = queue.store
    unfinished = [state for state in JobState if state is not JobState.SUCCEEDED]
    return [
        summarize_group(group, store.item_spans(group.tags), store.jobs(unfinished), details)
        for group in groups(store.item_counts(), ())
    ]


def page(queue: Queue, code: int, details: GroupDetails = NO_DETAILS) -> list[Line]:
    """Lay out the end of a run for people."""
    from gpusched.views import tables
    from gpusched.views.group_summary import group_rows
    from gpusched.views.report import tally
    from gpusched.views.words import clock, count, short_path

    store, place = queue.store, queue.queue_dir
    counts = tally(store.counts(), store.count_removed())
    parts: list[tables.Cell] = []
    for word, number in counts.parts(ended_first=True):
        if number or word in ("succeeded", "failed"):
            parts += [", " if parts else "", (f"{number} {word}", tables.STATES[word] if number else "")]
    spent = clock(store.totals()["total_runtime"])
    lines = [tables.line(*parts, f" of {count(counts.total, 'job')} in {spent}")]
    unlisted = store.count_failed_unlisted()
    for n, job in enumerate(job for job in store.jobs([JobState.FAILED]) if job.listed):
        if n == SHOWN_FAILED:
            more = counts.failed - unlisted - n
            lines.append(tables.line(f"  … and {more} more: gpusched status -q {_name(queue)} -v"))
            break
        lines += failed_lines(queue, job)
    if unlisted:
        lines.append(tables.line(f"  {count(unlisted, 'failed job')} no longer in the list: no failure of this run"))
    cwd = queues.here()
    rows: list[tables.Row] = [row for group in read_groups(queue, details) for row in group_rows(group)]
    rows += [
        ["metrics", short_path(place.metrics, cwd)],
        ["logs", f"{short_path(place.logs, cwd)}/"],
    ]
    rows += [[word, text] for word, text in next_steps(queue, code, counts)]
    return lines + tables.grid(["", ""], rows)


def failed_lines(queue: Queue, job: JobRow) -> list[Line]:
    """One failed job: id, line, how; the command; the log."""
    from gpusched.common.text import clean
    from gpusched.core.jobs.outcome import describe
    from gpusched.views import tables
    from gpusched.views.words import command_text, short_path

    attempts = queue.store.attempts(job.id)
    last = attempts[-1] if attempts else None
    how = describe(last.outcome) if last and last.outcome else job.cause or "failed"
    lines = [
        tables.line("  ", (f"job {job.id}", tables.STATES["failed"]), f", line {job.line}: {clean(how)}"),
        tables.Line((("      " + command_text(job.command), ""),), table=True),
    ]
    if last:
        path = f"{queue.queue_dir.path}/{last.error_log or last.log}"
        lines.append(tables.line(("      " + short_path(path, queues.here()), tables.DIM)))
    return lines


def next_steps(queue: Queue, code: int, counts: JobCounts) -> list[tuple[str, str]]:
    """What one may want to type next."""
    from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
    from gpusched.views.words import short_path

    steps: list[str] = []
    if code == EXIT_QUIT and counts.running:
        steps.append("the running jobs go on; the same command takes them over and runs the rest")
    elif counts.running:  # they have ended, and that could not be booked
        disk = queue.queue_dir.full_disk()
        room = f"make room on the disk of {short_path(disk, queues.here())}; then " if disk else ""
        steps.append(f"{room}the same command notes how what still counts as running has ended, and goes on")
    elif counts.queued and (queue.store.has_startable() or code not in (EXIT_OK, EXIT_SOME_FAILED)):
        steps.append("the same command goes on with what is queued")
    if any(job.cause != CAUSE_DEPENDENCY for job in queue.store.jobs([JobState.HELD])):
        steps.append(f"gpusched release JOB -q {_name(queue)}   (lets a held job start; --tag TAG: those of a tag)")
    if any(not job.cause for job in queue.store.jobs([JobState.CANCELLED])):
        steps.append(f"gpusched requeue JOB -q {_name(queue)}   (queues a cancelled job again)")
    if counts.failed > queue.store.count_failed_unlisted():
        steps.append("the same command with --retry-failed tries the failed ones again")
        steps.append(f"gpusched explain JOB -q {_name(queue)}   (how a job ended, and why)")
    return [("next" if n == 0 else "", step) for n, step in enumerate(steps)]


def _name(queue: Queue) -> str:
    import shlex

    return shlex.quote(queues.queue_name(queue.queue_dir))
