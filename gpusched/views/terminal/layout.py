"""Lay out the live view of a dispatcher for a terminal of a given size. Prints nothing, reads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.common.text import clean
from gpusched.core.plan.board import Frame
from gpusched.views.pages import device_table, job_texts
from gpusched.views.report import GroupLine, RunningLine, device_line, tally
from gpusched.views.tables import DIM, HEAD, Line, Row, bar, counted, fit_height, grid, line
from gpusched.views.words import about, clock, time_left

SHOWN_GROUPS = 4  # lines


@dataclass(frozen=True)
class Picture:
    """The contents of the live view."""

    name: str
    frame: Frame
    running: Sequence[RunningLine]
    groups: Sequence[GroupLine]


def lay_out(picture: Picture, width: int, height: int) -> list[Line]:
    """Return at most `height` - 1 lines of at most `width` cells; the least important are left out first."""
    rows = max(1, height - 1)
    board = picture.frame.board
    devices = [device_line(item, board.max_checks) for item in board.devices]
    memory_bar, use_bar = (20, 8) if width >= 120 else (10 if width >= 76 else 0, 0)
    gpus = device_table(devices, memory_bar=memory_bar, use_bar=use_bar, names=width >= 132)
    foot = _group_lines(picture.groups, 2 if height < 20 else SHOWN_GROUPS, width)
    foot += _foot(picture, width, 1 if height < 20 else 2)
    room = rows - len(foot) - 1
    for most in (3, 2, 1):
        jobs = _job_lines(picture.running, most, width)
        if len(gpus) + len(jobs) <= room:
            break
    share = max(room - len(gpus), room // 2 + 1)  # of the jobs
    jobs = fit_height(jobs, share, "running job") if share > 2 else []
    gpus = fit_height(gpus, room - len(jobs), "GPU") if room - len(jobs) > 2 else []
    lines = [_title(picture, width), *gpus] if room >= 0 else []
    spare = room - len(gpus) - len(jobs)
    for block in (jobs, foot):
        if block and spare > 0:
            lines.append(line())
            spare -= 1
        lines += block
    return lines[-rows:]


def _title(picture: Picture, width: int) -> Line:
    right = clock(picture.frame.at - picture.frame.started_at)
    left = line((f"gpusched  {picture.name}", HEAD))
    left.pad_right(max(2, width - left.cell_len - len(right)))
    return left.append(right, DIM)


def _job_lines(running: Sequence[RunningLine], most: int, width: int) -> list[Line]:
    """Return the table of running jobs, with at most `most` lines for each."""
    wide = 20 if width >= 100 else 10
    rows: list[Row] = [
        [(str(job.job_id), HEAD), job.where, clock(job.elapsed_s), job_texts(job, wide)[:most]] for job in running
    ]
    return grid(["JOB", "GPU", "TIME", "COMMAND"], rows, right="JOB TIME")


def _group_lines(groups: Sequence[GroupLine], most: int, width: int) -> list[Line]:
    """Return a line for each group of jobs with items, at most `most` lines."""
    wide = 20 if width >= 100 else 10
    rows: list[Row] = [
        [(group.name, HEAD), line(bar([(group.fraction, "cyan")], wide), f" {group.fraction:4.0%}"), group.text]
        for group in groups
    ]
    return fit_height(grid(["", "", ""], rows), most, "group")


def _foot(picture: Picture, width: int, reason_lines: int) -> list[Line]:
    frame = picture.frame
    counts = tally(frame.counts)
    words = counted(counts.parts(), "   ")
    states = (("succeeded", "green"), ("failed", "red"), ("cancelled", "yellow"))
    shares = [(getattr(counts, state) / (counts.total or 1), style) for state, style in states]
    ended = f" {counts.ended}/{counts.total}"
    queued = 0 if frame.closing else counts.queued
    left_s = time_left(frame.at - frame.started_at, frame.finished_now, counts.running, queued)
    if left_s is not None:
        ended += f"  {about(left_s)} left"
    progress = line(bar(shares, min(40, max(10, width // 3))), ended)
    lines = [line(progress, "   ", words)] if width >= 110 else [words, progress]
    if frame.closing:
        lines.append(line((f"{frame.closing}: nothing new starts", "yellow")))
    elif frame.board.gpus_closed:
        lines.append(line((f"nothing new starts on a GPU: {frame.board.gpus_closed}", "bold red")))
    elif counts.queued and frame.reason:
        reason = clean(f"next job: {frame.reason}")
        wrapped = textwrap.wrap(
            reason, max(20, width), subsequent_indent="  ", max_lines=reason_lines, placeholder=" …"
        )
        lines += [line((text, DIM)) for text in wrapped]
    return lines
