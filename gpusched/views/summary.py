"""The summary of a run -> the block that is printed at its end. Reads no clock and no file."""

from __future__ import annotations

from gpusched.common.errors import EXIT_OK, EXIT_QUIT, EXIT_SOME_FAILED
from gpusched.common.text import clean
from gpusched.core.documents import job_title
from gpusched.views import tables
from gpusched.views.failures import FailureGroup, group_failures
from gpusched.views.features.group_summary import group_rows
from gpusched.views.tables import Line
from gpusched.views.values import RunSummary, Scene
from gpusched.views.words import cleaned_text, clock, command_text, count, line_place, short_path

SHOWN_FAILURES = 20  # groups of jobs that failed alike


def summary_page(summary: RunSummary) -> list[Line]:
    scene = summary.scene
    parts = [(word, n) for word, n in summary.counts.parts(ended_first=True) if n or word in ("succeeded", "failed")]
    starts = int(summary.totals["starts"])
    spent = clock(summary.totals["total_runtime"]) + (f" of {starts} starts" if starts > 1 else "")
    lines = [tables.line(tables.counted(parts), f" of {count(summary.counts.total, 'job')} in {spent}")]
    lines += [tables.line(cleaned_text(summary.cleaned))] if summary.cleaned else []
    failed = [(job, attempts[-1] if attempts else None) for job, attempts in summary.failed]
    groups = group_failures(failed)[:SHOWN_FAILURES]
    for group in groups:
        lines += _failed_lines(scene, group)
    more = summary.counts.failed - sum(len(group.ids) for group in groups)
    if more:
        lines.append(tables.line(f"  … and {more} more: gpusched status -q {scene.option} -v"))
    rows: list[tables.Row] = [row for group in summary.groups for row in group_rows(group)]
    rows += [["metrics", short_path(summary.metrics, scene.cwd)], ["logs", f"{short_path(summary.logs, scene.cwd)}/"]]
    rows += [["report", short_path(summary.report, scene.cwd)]] if summary.report else []
    rows += [["next" if n == 0 else "", step] for n, step in enumerate(_next_steps(summary))]
    return lines + tables.labelled(rows)


def _failed_lines(scene: Scene, group: FailureGroup) -> list[Line]:
    """Return jobs that failed alike: how; the command and the log of the first one."""
    job, last, style = group.job, group.last, tables.STATES["failed"]
    one = len(group.ids) == 1
    lines = [
        tables.line(
            "  ", (clean(job_title(job)) if one else "", style), f"{line_place(job)}: " if one else "", group.sentence
        ),
        *tables.grid([""], [[command_text(job.command)]], indent=6),
    ]
    if last:
        lines.append(tables.line(("      " + scene.path(last.error_log or last.log), tables.DIM)))
    return lines


def _next_steps(summary: RunSummary) -> list[str]:
    """Return what one may want to type next."""
    counts, scene, steps = summary.counts, summary.scene, []
    if summary.code == EXIT_QUIT and counts.running:
        steps.append("the running jobs go on; the same command takes them over and runs the rest")
    elif counts.running:  # they have ended, and that could not be booked
        steps.append("the same command records the jobs that have ended, and goes on")
    elif counts.queued and (summary.can_start or summary.code not in (EXIT_OK, EXIT_SOME_FAILED)):
        steps.append("the same command goes on with what is queued")
    if summary.has_held:
        steps.append(f"gpusched release JOB -q {scene.option}   (lets a held job start; --tag TAG: those of a tag)")
    if summary.has_cancelled:
        steps.append(f"gpusched requeue JOB -q {scene.option}   (queues a cancelled job again)")
    if counts.failed:
        steps.append("the same command with --retry-failed tries the failed ones again")
        steps.append(f"gpusched explain JOB -q {scene.option}   (how a job ended, and why)")
    return steps
