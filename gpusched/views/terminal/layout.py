"""Lay out the live view of a dispatcher for a terminal of a given size. Prints nothing, reads nothing."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from gpusched.common.text import clean
from gpusched.core.plan.board import Frame
from gpusched.views.report import DeviceLine, GroupLine, RunningLine, device_line, tally
from gpusched.views.tables import DIM, HEAD, STATES, TONES, Cell, Line, Part, bar, cut, line
from gpusched.views.words import Pace, about, clock, count, time_left

Lines = list[Line]
SHOWN_GROUPS = 3


@dataclass(frozen=True)
class Picture:
    """The contents of the live view. `tail` returns the last line of a job's logs."""

    name: str
    frame: Frame
    running: Sequence[RunningLine]
    pace: Pace
    groups: Sequence[GroupLine]
    tail: Callable[[Iterable[str]], str]


def lay_out(picture: Picture, width: int, height: int, *, unicode: bool = True) -> Lines:
    """Return at most `height` - 1 lines of at most `width` cells; the least important are left out first."""
    rows = max(1, height - 1)
    frame = picture.frame
    devices = [device_line(item, frame.board.max_checks) for item in frame.board.devices]
    jobs = [_job_lines(job, picture.tail(job.logs), width, unicode) for job in picture.running[:rows]]
    foot = _groups(picture.groups, 1 if height < 20 else SHOWN_GROUPS, width, unicode)
    foot += _foot(picture, width, unicode, 1 if height < 20 else 2)
    title = _title(picture, width)
    room = rows - len(foot) - 1
    gpu_lines = _device_lines(devices, width, unicode)
    for most in (3, 2, 1):
        job_lines = _job_block(picture.running, jobs, most, room, width)
        spare = room - len(gpu_lines) - len(job_lines)
        if spare >= 0:
            break
    else:
        job_lines = _job_block(picture.running, jobs, 1, room - 1, width)
        gpu_lines = _fewer_devices(devices, gpu_lines, room - len(job_lines))
        spare = 0
    parts: Lines = [title] if room >= 0 else []
    for block in (gpu_lines, job_lines, foot):
        if block and parts and spare > 0 and block is not gpu_lines:
            parts.append(line())
            spare -= 1
        parts += block
    mark = "…" if unicode else "..."
    return [cut(each, width, mark) for each in parts][-rows:]


def _title(picture: Picture, width: int) -> Line:
    frame = picture.frame
    right = clock(frame.at - frame.started_at)
    left = f"gpusched  {picture.name}"
    return line((left, HEAD), " " * max(2, width - cell_len(left) - len(right)), (right, DIM))


# ---- GPUs ------------------------------------------------------------------------------------------


def _device_lines(devices: Sequence[DeviceLine], width: int, unicode: bool) -> Lines:
    if not devices:
        return []
    memory_bar = 20 if width >= 120 else 10 if width >= 76 else 0
    use_bar = 8 if width >= 120 else 0
    memories = max(len(d.memory) for d in devices)
    labels = max([3, *(len(d.label) for d in devices)])
    words = min(16, max(len(d.word) for d in devices))
    names = min(24, max(len(d.name) for d in devices)) if width >= 132 else 0
    head = "GPU".rjust(labels) + (f"  {'MODEL':<{names}}" if names else "")
    head += "  " + "MEMORY".ljust((memory_bar + 1 if memory_bar else 0) + memories)
    head += "  " + "USE".ljust(use_bar + 1 + 4 if use_bar else 4)
    lines = [line((f"{head}  STATE", DIM))]
    for d in devices:
        parts: list[Part] = [(d.label.rjust(labels), HEAD)]
        if names:
            parts.append((f"  {d.name[:names].ljust(names)}", DIM))
        if memory_bar:
            parts += [("  ", ""), *bar(_memory_shares(d), memory_bar, plain=not unicode)]
        parts.append((f"{' ' if memory_bar else '  '}{d.memory.rjust(memories)}  ", ""))
        if use_bar:
            parts += [*bar([(d.utilisation or 0.0, "green")], use_bar, plain=not unicode), (" ", "")]
        parts += [(d.use.rjust(4), ""), ("  ", ""), (d.word.ljust(words), TONES[d.tone])]
        room = width - sum(cell_len(text) for text, _ in parts) - 2
        parts += [("  ", ""), (_short_detail(d, room), "" if d.tone == "bad" else DIM)]
        lines.append(Line(tuple(parts), table=True))
    return lines


def _memory_shares(d: DeviceLine) -> list[tuple[float, str]]:
    """Return the shares of our memory and of that of others; the driver's own is too little to be visible."""
    if not d.total_bytes or d.used_bytes is None:
        return []
    others = d.used_bytes if d.foreign_bytes is None else min(d.foreign_bytes, d.used_bytes)
    ours = d.used_bytes - others
    shares = [(ours / d.total_bytes, "cyan"), (others / d.total_bytes, "yellow" if d.tone == "busy" else "blue")]
    return [(share, style) for share, style in shares if share > 0.005]


def _short_detail(d: DeviceLine, room: int) -> str:
    """Return the detail if it fits, else the first process, which says more than the amount of memory."""
    if len(d.detail) <= room or d.tone != "busy" or not d.processes:
        return d.detail
    more = f" +{len(d.processes) - 1}" if len(d.processes) > 1 else ""
    return d.processes[0] + more


def _fewer_devices(devices: Sequence[DeviceLine], lines: Lines, rows: int) -> Lines:
    """Return the first devices, and one line for the others."""
    if len(lines) <= rows:
        return lines
    if rows < 3:
        return [line(_state_counts(devices))][:rows]
    return [*lines[: rows - 1], line((f"  and {_state_counts(devices[rows - 2 :], 'more ')}", DIM))]


def _state_counts(devices: Sequence[DeviceLine], more: str = "") -> str:
    words = Counter("running" if d.tone == "ours" else d.word.split(" ")[0] for d in devices)
    noun = f"{more}GPU" if len(devices) == 1 else f"{more}GPUs"
    return f"{len(devices)} {noun}: " + ", ".join(f"{n} {word}" for word, n in words.most_common())


# ---- jobs ------------------------------------------------------------------------------------------


def _job_lines(job: RunningLine, tail: str, width: int, unicode: bool) -> list[list[Part]]:
    """Return up to three lines of a job: the command, the progress that it reports, the last line of its log."""
    command: list[Part] = [(job.command, "")]
    if job.mark:
        command.insert(0, (f"[{job.mark}] ", "yellow"))
    lines = [command]
    if job.fraction is not None:
        progress = bar([(job.fraction, "cyan")], 20 if width >= 100 else 10, plain=not unicode)
        lines.append([*progress, (f" {job.fraction:4.0%}  {job.progress}", "")])
    elif job.progress:
        lines.append([(job.progress, "")])
    if tail:
        lines.append([(tail, DIM)])
    return lines


def _job_block(
    running: Sequence[RunningLine], jobs: Sequence[list[list[Part]]], most: int, rows: int, width: int
) -> Lines:
    """Return the running jobs, at most `most` lines for each, in at most `rows` lines."""
    if not running or rows < 2:
        return []
    fitting = len(jobs) if most > 1 or len(running) < rows else min(len(jobs), max(0, rows - 2))
    ids = max([3, *(len(str(job.job_id)) for job in running)])
    where = min(max([3, *(len(job.where) for job in running)]), max(3, width // 6))
    times = max([4, *(len(clock(job.elapsed_s)) for job in running)])
    lines = [line((f"{'JOB':>{ids}}  {'GPU':<{where}}  {'TIME':>{times}}  COMMAND", DIM))]
    blank = " " * (ids + where + times + 6)
    for job, texts in zip(running[:fitting], jobs, strict=False):
        lead = [(f"{job.job_id:>{ids}}", HEAD), (f"  {job.where[:where]:<{where}}  ", "")]
        lead.append((f"{clock(job.elapsed_s):>{times}}  ", ""))
        lines.append(Line((*lead, *texts[0]), table=True))
        lines += [Line(((blank, ""), *text), table=True) for text in texts[1:most]]
    if fitting < len(running):
        lines.append(line((f"{'':>{ids}}  and {len(running) - fitting} more running", DIM)))
    return lines


def _groups(groups: Sequence[GroupLine], most: int, width: int, unicode: bool) -> Lines:
    """Return a line for each group of jobs with items."""
    names = max((cell_len(group.name) for group in groups[:most]), default=0)
    wide = 20 if width >= 100 else 10
    lines = []
    for group in groups[:most]:
        lead = group.name + " " * (names - cell_len(group.name))
        progress = bar([(group.fraction, "cyan")], wide, plain=not unicode)
        lines.append(line((lead, HEAD), "  ", *progress, f" {group.fraction:4.0%}  {group.text}"))
    if len(groups) > most:
        lines.append(line((f"  and {count(len(groups) - most, 'more group')}", DIM)))
    return lines


# ---- the end ---------------------------------------------------------------------------------------


def _foot(picture: Picture, width: int, unicode: bool, reason_lines: int) -> Lines:
    frame = picture.frame
    counts = tally(frame.counts, frame.removed)
    words: list[Cell] = []
    for word, number in counts.parts():
        words += ["   " if words else "", (f"{number} {word}", STATES[word] if number else DIM)]
    total = counts.total or 1
    shares = [
        (counts.succeeded / total, "green"),
        (counts.failed / total, "red"),
        (counts.cancelled / total, "yellow"),
    ]
    ended = f" {counts.ended}/{counts.total}"
    left_s = time_left(picture.pace, 0 if frame.closing else counts.queued, _elapsed(picture.running))
    if left_s is not None:
        ended += f"  {about(left_s)} left"
    progress = bar(shares, min(40, max(10, width // 3)), plain=not unicode)
    lines: Lines = [line(*words), line(*progress, ended)]
    if width >= 110:
        lines = [line(*progress, ended, "   ", *words)]
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


def _elapsed(running: Sequence[RunningLine]) -> list[tuple[float, float | None]]:
    return [(job.elapsed_s, job.fraction) for job in running]
