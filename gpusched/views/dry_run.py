"""A dry run -> its page: what would change in the queue, the GPUs at one look, what the first jobs would do."""

from __future__ import annotations

from collections import Counter

from gpusched.core.model import JobState
from gpusched.views import pages, report, tables
from gpusched.views.tables import Line, Row
from gpusched.views.values import DryRun
from gpusched.views.words import cleaned_text, command_text, count, short_path

_CHANGES = {"add": "add", "keep": "keep", "requeue": "queue again", "cancel": "cancel"}


def page(dry_run: DryRun, cwd: str) -> list[Line]:
    """Return the page for people. Paths below `cwd` are shown relative to it."""
    pid = dry_run.pid
    by = f"; pid {pid} dispatches it and would take the list" if pid is not None else ""
    lines = [tables.line((short_path(dry_run.path, cwd), tables.HEAD), f": {_counts(dry_run)}{by}")]
    kinds = Counter(change for _, change in dry_run.jobs)
    parts = [f"{words} {kinds[change]}" for change, words in _CHANGES.items() if kinds[change]]
    lines += [tables.line("would " + ", ".join(parts))] if parts else []
    lines += [tables.line(cleaned_text(dry_run.cleaned))] if dry_run.cleaned else []
    lines += [tables.line("would take lines as they arrive")] if not (parts or dry_run.cleaned) else []
    lines.append(tables.line())
    rows: list[Row] = []
    for row, change in dry_run.jobs:
        more = {"keep": f" ({row.state.value})", "cancel": ": its line is gone"}.get(change, "")
        rows.append([str(row.id), str(row.line), _CHANGES[change] + more, command_text(row.command)])
    lines += tables.grid(["JOB", "LINE", "WOULD", "COMMAND"], rows, right="JOB LINE")
    if dry_run.board.devices:
        lines += _devices(dry_run)
    numbers = {row.id: row.line for row, _ in dry_run.jobs}
    first = [f"  job {n}, line {numbers[n]}: {text}" for n, text in dry_run.reasons.items() if n in numbers]
    waiting = sum(change != "cancel" and row.state is JobState.QUEUED for row, change in dry_run.jobs)
    first += [f"  … and {waiting - len(first)} more"] if 0 < len(first) < waiting else []
    return lines + ([tables.line(), *map(tables.line, ["first:", *first])] if first else [])


def _counts(dry_run: DryRun) -> str:
    if dry_run.counts is None:
        return "a new queue"
    counts = report.tally(dry_run.counts)
    return "has " + ", ".join(f"{n} {word}" for word, n in counts.parts() if n) if counts.total else "is empty"


def _devices(dry_run: DryRun) -> list[Line]:
    devices = [report.device_line(item, 1) for item in dry_run.board.devices]
    free = sum(device.word == "free" for device in devices)
    wants = f"a run wants {dry_run.max_checks} in a row, {dry_run.poll_interval_s:g} s apart"
    return [
        tables.line(),
        tables.line(
            f"{free} of {count(len(devices), report.gpu_noun(dry_run.board.devices))} free at this one look ({wants})"
        ),
        *pages.device_table(devices, names=True),
    ]
