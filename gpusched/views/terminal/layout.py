"""Lay out the live view of a dispatcher for a terminal of a given size. Prints nothing, reads nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.core.plan.board import Frame, Wish
from gpusched.views.pages import device_table, marked_command, memory_text
from gpusched.views.report import DeviceLine, GroupLine, RunningLine, device_line, gpu_noun, tally
from gpusched.views.tables import DIM, HEAD, TONES, Cell, Line, Row, bar, counted, fit_height, grid, line
from gpusched.views.words import about, clock, time_left

LEAVING = {  # key -> the choice, and what comes of it
    "w": (Wish.DRAIN, "wait for what runs; nothing new starts"),
    "s": (Wish.STOP, "stop what runs, and queue it again"),
    "d": (Wish.DETACH, "go on in the background, without this terminal"),
    "c": (Wish.GO_ON, "do not leave"),
}
SHOWN_GROUPS = 4  # lines
ROOMY = 20  # lines: then the foot has more of them; half as many again, and blank ones set the parts apart
WIDE = 100  # cells: then there is room for longer bars, and for more behind a command


class Picture(NamedTuple):
    """The contents of the live view."""

    name: str
    frame: Frame
    running: Sequence[RunningLine]
    groups: Sequence[GroupLine]
    has_keys: bool = False
    asks: bool = False  # how to leave


def lay_out(picture: Picture, width: int, height: int) -> list[Line]:
    """Return at most `height` - 1 lines of at most `width` cells; the least important are left out first."""
    rows = max(1, height - 1)
    board = picture.frame.board
    devices = [device_line(item, board.max_checks) for item in board.devices]
    gpus = device_table(devices, memory_bar=20 if width >= WIDE else 10, names=True, width=width)
    foot = _group_lines(picture.groups, SHOWN_GROUPS if rows >= ROOMY else 2, width)
    foot += _foot(picture, width, 2 if rows >= ROOMY else 1)
    room = rows - len(foot) - 1
    for most in (3, 2, 1):
        jobs = _job_lines(picture.running, most, width)
        if len(gpus) + len(jobs) <= room:
            break
    noun = "GPU"
    if len(gpus) > room // 2 and len(gpus) + len(jobs) > room:
        gpus, noun = _memory_lines(devices, width), "row"
    gaps = 2 if rows >= 1.5 * ROOMY else 0
    jobs = _fit(jobs, max(room - len(gpus) - gaps, room // 2 + 1), "running job")
    gpus = _fit(gpus, room - len(jobs), noun)
    lines = [_title(picture, width), *gpus] if room >= 0 else []
    for block in (jobs, foot):
        gap = len(lines) + len(block) + (len(foot) if block is jobs else 0) < rows
        lines += [line(), *block] if block and gap else block
    return lines[-rows:]


def _fit(lines: list[Line], room: int, noun: str) -> list[Line]:
    """Return the lines that there is room for; none of a table that has no room for its first row."""
    return lines if len(lines) <= room else fit_height(lines, room, noun) if room > 2 else []


def _memory_lines(devices: Sequence[DeviceLine], width: int) -> list[Line]:
    """Return the memory of all GPUs in few lines: what stays of their table where it has no room."""
    cells = [line((f"{device.label:>3} ", TONES[device.tone]), memory_text(device, 8)) for device in devices]
    per_line = max(1, (width + 2) // (max((cell.cell_len for cell in cells), default=0) + 2))
    return [Line("  ").join(cells[n : n + per_line]) for n in range(0, len(cells), per_line)]


def _title(picture: Picture, width: int) -> Line:
    hint = "q: leave   " if picture.has_keys and width >= 50 else ""
    right = hint + clock(picture.frame.at - picture.frame.started_at)
    noun = gpu_noun(picture.frame.board.devices)
    left = line((f"gpusched  {picture.name}", HEAD), f"  on {noun}s" if noun != "GPU" else "")
    left.pad_right(max(2, width - left.cell_len - len(right)))
    return left.append(right, DIM)


def _job_lines(running: Sequence[RunningLine], most: int, width: int) -> list[Line]:
    """Return the table of running jobs, with at most `most` lines for each."""
    rows: list[Row] = []
    for job in running:
        done = line() if job.fraction is None else _progress(job.fraction, width)
        texts: list[Cell] = [(text, DIM) for text in job.texts]
        command, behind = marked_command(job), texts[:1] if most == 1 and width >= WIDE else []
        if behind:
            command.truncate(width // 3, overflow="ellipsis")
        where: list[Cell] = [(str(job.job_id), HEAD), job.where, clock(job.elapsed_s)]
        rows.append([*where, done, job.prio, job.tags, [command, *texts[: most - 1]], behind])
    head = ["JOB", "GPU", "TIME", "DONE", "PRIO", "TAGS", "COMMAND", ""]
    return grid(head, rows, right="JOB TIME PRIO", fit=(width, (7, 4, 5, 2, 1, 6)))


def _progress(fraction: float, width: int) -> Line:
    return line(bar([(fraction, "cyan")], 20 if width >= WIDE else 10), f" {fraction:4.0%}")


def _group_lines(groups: Sequence[GroupLine], most: int, width: int) -> list[Line]:
    """Return a line for each group of jobs with items, at most `most` lines."""
    rows: list[Row] = [[(group.name, HEAD), _progress(group.fraction, width), group.text] for group in groups]
    return fit_height(grid(["", "", ""], rows), most, "group")


def _foot(picture: Picture, width: int, reason_lines: int) -> list[Line]:
    frame = picture.frame
    counts = tally(frame.counts)
    words = counted(counts.parts(), "   ")
    states = (("succeeded", "green"), ("failed", "red"), ("cancelled", "yellow"))
    shares = [(getattr(counts, state) / (counts.total or 1), style) for state, style in states]
    ended = f" {counts.ended}/{counts.total}"
    running_s = [frame.at - view.attempt.started_at for view in frame.running]
    left_s = time_left(frame.pace, frame.at, running_s, counts.queued)
    if left_s is not None and not frame.closing:
        ended += f"  {about(left_s)} left"
    progress = line(bar(shares, min(40, max(10, width // 3))), ended)
    lines = [line(progress, "   ", words)] if width >= 110 else [words, progress]
    if picture.asks:
        lines += grid(["", ""], [[(key, HEAD), (text, "yellow")] for key, (_, text) in LEAVING.items()])
    elif frame.closing:
        hint = "   c: go on after all" if picture.has_keys and frame.can_go_on else ""
        lines.append(line((f"{frame.closing}: nothing new starts{hint}", "yellow")))
    elif frame.board.gpus_closed:
        lines.append(line((f"nothing new starts on a GPU: {frame.board.gpus_closed}", "bold red")))
    elif counts.queued and frame.reason:
        reason = clean(f"next: {frame.reason}")
        wrapped = textwrap.wrap(
            reason, max(20, width), subsequent_indent="  ", max_lines=reason_lines, placeholder=" …"
        )
        lines += [line((text, DIM)) for text in wrapped]
    return lines
