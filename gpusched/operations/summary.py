"""What a run says at its end: counts, the failed jobs and where to look, and how to go on. Decides no exit code."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from gpusched.common.errors import EXIT_OK, EXIT_QUIT, EXIT_SOME_FAILED, GpuschedError
from gpusched.host.store import attempt_table, job_table, queue_totals, startable_jobs
from gpusched.operations import queues

if TYPE_CHECKING:
    from gpusched.api import Queue
    from gpusched.core.jobs.progress import ItemGroup
    from gpusched.core.model import JobRow
    from gpusched.views import tables
    from gpusched.views.report import JobCounts
    from gpusched.views.tables import Line

SHOWN_FAILED = 20
SHOWN_TIMES = 16  # shards whose times are all told; of more, the slowest
SHOWN_SLOWEST = 4
SHOWN_WRONG = 3  # of what a merge has refused or left out
SHOWN_MISSING = 12


def print_summary(queue: Queue, code: int, *, as_json: bool) -> None:
    """Print the end of a run to stdout: one block for people, or one JSON document."""
    if as_json:
        print(json.dumps(document(queue, code), indent=2))
        return
    from gpusched.views.tables import write

    write(sys.stdout, page(queue, code))


def document(queue: Queue, code: int) -> dict[str, object]:
    """The head of gpu_metrics.json, and the failed jobs."""
    from gpusched.core.documents import job_document, metrics_head
    from gpusched.core.model import JobState

    store, place = queue.store, queue.place
    head = metrics_head(
        job_table.counts(store), job_table.count_removed(store), queue_totals.times(store), queues.now()
    )
    failed = [
        job_document(job, attempt_table.attempts(store, job.id), place.path)
        for job in job_table.jobs(store, [JobState.FAILED])
    ]
    found = {**head, "exit_code": code, "queue": place.path, "metrics": place.metrics, "failed": failed}
    grouped = [group_document(queue, group) for group in _groups(queue)]
    return {**found, "groups": grouped} if grouped else found


def _groups(queue: Queue) -> list[ItemGroup]:
    from gpusched.core.jobs.progress import groups

    return groups(queue_totals.item_counts(queue.store), ())


def group_document(queue: Queue, group: ItemGroup) -> dict[str, object]:
    """What the jobs of a group, which say how many items they do, took together; times in seconds."""
    from gpusched.core.jobs.progress import times

    took = times(queue_totals.item_spans(queue.store, group.tags))
    found: dict[str, object] = {
        "tags": list(group.tags),
        "jobs": group.jobs,
        "jobs_done": group.ended,
        "items": group.items,
        "items_done": group.done,
        "missing": [{"name": name, "items": span} for name, span in _missing(queue, group)],
    }
    if took is not None:
        found |= {
            "wall_s": took.wall_s,
            "median_s": took.median_s,
            "slowest_s": took.slowest_s,
            "at_once": took.at_once,
            "speed_up": took.speed_up,
            "efficiency": took.efficiency,
            "items_per_s": took.items_per_s,
            "times": [
                {"job": s.job_id, "name": s.name, "items": s.items, "runtime_s": s.ended_at - s.started_at}
                for s in took.jobs
            ],
        }
    return found


def _missing(queue: Queue, group: ItemGroup) -> list[tuple[str, str]]:
    """The jobs of a group that are not done, and which items that leaves out, where a plan tells."""
    from gpusched.core.jobs.progress import COUNTED_NOWHERE
    from gpusched.core.model import JobState
    from gpusched.host.queue.shard_files import read_plan
    from gpusched.shards.plan import from_document

    if group.ended == group.jobs:
        return []
    try:
        plan = from_document(read_plan(queue.place.path))
        spans = {shard.job_name: plan.span(shard) for shard in plan.shards}
    except (GpuschedError, ValueError):
        spans = {}
    states = [state for state in JobState if state is not JobState.SUCCEEDED]
    left = (job for job in job_table.jobs(queue.store, states) if job.items and job.listed and job.tags == group.tags)
    return [(job.name or f"job {job.id}", spans.get(job.name, "")) for job in left if job.cause not in COUNTED_NOWHERE]


def page(queue: Queue, code: int) -> list[Line]:
    from gpusched.core.model import JobState
    from gpusched.views import tables
    from gpusched.views.report import tally
    from gpusched.views.words import clock, count, short_path

    store, place = queue.store, queue.place
    counts = tally(job_table.counts(store), job_table.count_removed(store))
    parts: list[tables.Cell] = []
    for word, number in counts.parts(ended_first=True):
        if number or word in ("succeeded", "failed"):
            parts += [", " if parts else "", (f"{number} {word}", tables.STATES[word] if number else "")]
    spent = clock(queue_totals.times(store)["total_runtime"])
    lines = [tables.line(*parts, f" of {count(counts.total, 'job')} in {spent}")]
    unlisted = job_table.count_failed_unlisted(store)
    for n, job in enumerate(job for job in job_table.jobs(store, [JobState.FAILED]) if job.listed):
        if n == SHOWN_FAILED:
            more = counts.failed - unlisted - n
            lines.append(tables.line(f"  … and {more} more: gpusched status -q {_name(queue)} -v"))
            break
        lines += failed_lines(queue, job)
    if unlisted:
        lines.append(tables.line(f"  {count(unlisted, 'failed job')} no longer in the list: no failure of this run"))
    cwd = queues.current_directory()
    rows: list[tables.Row] = [row for group in _groups(queue) for row in group_rows(queue, group)]
    rows += [
        ["metrics", short_path(place.metrics, cwd)],
        ["logs", f"{short_path(place.logs, cwd)}/"],
    ]
    rows += [[word, text] for word, text in next_steps(queue, code, counts)]
    return lines + tables.grid(["", ""], rows)


def group_rows(queue: Queue, group: ItemGroup) -> list[tables.Row]:
    """What is missing of a group, how long each of its jobs took, and what running them at once has brought."""
    from gpusched.common.text import clean
    from gpusched.core.jobs.progress import times
    from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
    from gpusched.core.model import JobState
    from gpusched.views import tables
    from gpusched.views.words import count, rate, span

    took = times(queue_totals.item_spans(queue.store, group.tags))
    fast = f", {rate(took.items_per_s)}" if took is not None else ""
    done = f"{group.ended} of {group.jobs} done, {int(group.done)} of {count(group.items, 'item')}{fast}"
    rows: list[tables.Row] = [[clean(group.name), done]]
    missing = [clean(f"{name} (items {span})" if span else name) for name, span in _missing(queue, group)]
    if missing:
        more = len(missing) - SHOWN_MISSING
        shown = missing[:SHOWN_MISSING] + ([f"… and {more} more"] if more > 0 else [])
        rows.append(["missing", [(text, tables.STATES["failed"]) for text in _in_lines(shown, 2)]])
        held = [job for job in job_table.jobs(queue.store, [JobState.HELD]) if job.cause == CAUSE_DEPENDENCY]
        names = ", ".join(clean(job.name) or f"job {job.id}" for job in held[:SHOWN_MISSING])
        rows += [["held", f"{names}: until what is missing has succeeded"]] if held else []
    rows += _merged(queue)
    if took is None or len(took.jobs) < 2:
        return rows
    slow = sorted(took.jobs, key=lambda span: span.started_at - span.ended_at)
    timed = list(took.jobs) if len(slow) <= SHOWN_TIMES else slow[:SHOWN_SLOWEST]
    each = [f"{clean(s.name or str(s.job_id))} {span(s.ended_at - s.started_at)}" for s in timed]
    rows.append(["slowest" if len(timed) < len(slow) else "times", [*_in_lines(each, 4)]])
    against = took.slowest_s / took.median_s if took.median_s > 0 else 1.0
    slowest = f"slowest {span(took.slowest_s)}, {against:.2f} of the median {span(took.median_s)}"
    gained = f"speed-up {took.speed_up:.2f} with {took.at_once} at once, efficiency {took.efficiency:.2f}"
    return [*rows, ["", f"{slowest}; {gained}"]]


def _in_lines(texts: list[str], each: int) -> list[str]:
    """So many texts a line."""
    return [", ".join(texts[n : n + each]) for n in range(0, len(texts), each)]


def _merged(queue: Queue) -> list[tables.Row]:
    """What the merge of the shards said at its end: what it has made, or why it has failed."""
    from gpusched.common.text import last_line
    from gpusched.core.model import JobState
    from gpusched.host.attempts.reaper import log_tail
    from gpusched.shards.plan import MERGE

    last = attempt_table.last_of_name(queue.store, MERGE)
    state = None if last is None else job_table.get(queue.store, last.job_id).state
    if last is None or state not in (JobState.SUCCEEDED, JobState.FAILED):
        return []
    begin = b"gpusched: "

    def lines(log: str) -> list[bytes]:
        said = log_tail(f"{queue.place.path}/{log}").split(b"\n")
        return [line for line in said if line.strip() and not line.startswith(b" ")]

    def shown(found: list[bytes]) -> list[str | tuple[str, str]]:
        return [last_line(line).replace(f"{queues.current_directory()}/", "", 1) for line in found]

    # A line for each output; with one log for both streams its warnings and errors stand there too.
    made = [line for line in lines(last.log) if not line.startswith(begin)]
    rows: list[tables.Row] = [["merged", shown(made[-SHOWN_MISSING:])]] if made else []
    if state is JobState.FAILED:
        wrong = [line for line in lines(last.error_log or last.log) if line.startswith(begin + b"error: ")]
        told = [line.removeprefix(begin + b"error: ") for line in wrong[:SHOWN_WRONG]]
        rows += [["wrong", shown(told)]] if told else []
    return rows


def failed_lines(queue: Queue, job: JobRow) -> list[Line]:
    """One failed job: id, line, how; the command; the log."""
    from gpusched.common.text import clean
    from gpusched.core.jobs.outcome import describe
    from gpusched.views import tables
    from gpusched.views.words import command_text, short_path

    attempts = attempt_table.attempts(queue.store, job.id)
    last = attempts[-1] if attempts else None
    how = describe(last.outcome) if last and last.outcome else job.cause or "failed"
    lines = [
        tables.line("  ", (f"job {job.id}", tables.STATES["failed"]), f", line {job.line}: {clean(how)}"),
        tables.Line((("      " + command_text(job.command), ""),), table=True),
    ]
    if last:
        path = f"{queue.place.path}/{last.error_log or last.log}"
        lines.append(tables.line(("      " + short_path(path, queues.current_directory()), tables.DIM)))
    return lines


def next_steps(queue: Queue, code: int, counts: JobCounts) -> list[tuple[str, str]]:
    """What one may want to type next."""
    from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY
    from gpusched.core.model import JobState
    from gpusched.views.words import short_path

    steps: list[str] = []
    if code == EXIT_QUIT and counts.running:
        steps.append("the running jobs go on; the same command takes them over and runs the rest")
    elif counts.running:  # they have ended, and that could not be booked
        disk = queue.place.full_disk()
        room = f"make room on the disk of {short_path(disk, queues.current_directory())}; then " if disk else ""
        steps.append(f"{room}the same command notes how what still counts as running has ended, and goes on")
    elif counts.queued and (startable_jobs.has_any(queue.store) or code not in (EXIT_OK, EXIT_SOME_FAILED)):
        steps.append("the same command goes on with what is queued")
    if any(job.cause != CAUSE_DEPENDENCY for job in job_table.jobs(queue.store, [JobState.HELD])):
        steps.append(f"gpusched release JOB -q {_name(queue)}   (lets a held job start; --tag TAG: those of a tag)")
    if any(not job.cause for job in job_table.jobs(queue.store, [JobState.CANCELLED])):
        steps.append(f"gpusched requeue JOB -q {_name(queue)}   (queues a cancelled job again)")
    if counts.failed > job_table.count_failed_unlisted(queue.store):
        steps.append("the same command with --retry-failed tries the failed ones again")
        steps.append(f"gpusched explain JOB -q {_name(queue)}   (how a job ended, and why)")
    return [("next" if n == 0 else "", step) for n, step in enumerate(steps)]


def _name(queue: Queue) -> str:
    import shlex

    return shlex.quote(queues.queue_name(queue.place))
