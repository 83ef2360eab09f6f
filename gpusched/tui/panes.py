"""The contents of the panes of `gpusched top` as lines, for a given width. Knows no screen and no key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rich.text import Text

from gpusched.common.text import clean
from gpusched.operations.look.overview import JobDetails, Overview
from gpusched.views.devices import ticket_text
from gpusched.views.job_lines import JobLine
from gpusched.views.pages import device_table, queue_head, queue_list
from gpusched.views.report import DeviceLine
from gpusched.views.story.charts import peaks
from gpusched.views.story.values import CurvePoint
from gpusched.views.story.words import gpu_label
from gpusched.views.tables import DIM, HEAD, STATES, Line, line
from gpusched.views.values import DeviceReport
from gpusched.views.words import moment, span

TREND_S = 8.0  # a cell, of a GPU: the last two to four minutes beside it
GAP_S = 15.0  # for which a value of a trend holds
BLOCKS = " ▁▂▃▄▅▆▇█"
ROOMY = 36  # lines: then the head has all of its lines
WIDE = 110  # cells: then there are the names of GPUs, and priorities and tags of jobs


def trend(points: Iterable[tuple[float, float | None]], began_at: float, ended_at: float, cells: int) -> str:
    """Draw values from 0 to 1 over time, a block a cell with the largest value in it; blank where none is known.

    A value holds until the next one, but for GAP_S at most.
    """
    most = peaks(points, began_at, ended_at, cells, GAP_S)
    return "".join(" " if value is None else BLOCKS[1 + min(7, round(max(0.0, value) * 7))] for value in most)


def head_lines(view: Overview, height: int) -> list[Line]:
    """Return what is known of the queue in focus as a whole; the shorter, the less."""
    broken = [line((text, "bold red")) for text in view.broken]
    if view.queue is None:
        return broken or [line("there is no queue yet; start one with `gpusched run FILE`")]
    lines = queue_head(view.queue)
    if len(view.queues) > 1:
        lines += [line(), *queue_rows(view)]
    if height < ROOMY:
        lines[0] = line(lines[0].split("  ")[0], "  ", lines.pop(1))
        lines = [each for each in lines if each.plain and not each.plain.startswith(("this start", "last", "all "))]
    return lines + broken


def queue_rows(view: Overview) -> list[Line]:
    """Return the table of the queues; the one in focus is marked."""
    table = queue_list(view.queues.values(), view.now)
    for path, row in zip(view.queues, table[1:], strict=True):
        if path == view.path:
            row.stylize("reverse")
    return table


def gpu_lines(view: Overview, width: int) -> list[Line]:
    """Return the table of the GPUs, and who waits for some."""
    if view.no_gpus and not view.devices:
        return [line((text, DIM)) for text in view.no_gpus.split("\n")]
    cells = 30 if width >= 150 else 15 if width >= WIDE else 10
    trends = {
        uuid: trend(((pulse.at, pulse.use) for pulse in pulses), view.now - TREND_S * cells, view.now, cells)
        for uuid, pulses in view.pulses.items()
    }
    bar = 20 if width >= WIDE else 10
    devices = view.devices
    if width < WIDE:
        devices = [_with_user(*each) for each in zip(view.devices, view.box.devices, strict=True)]
    lines = device_table(devices, memory_bar=bar, names=width >= 150, width=width, trends=trends)
    return lines + [line((ticket_text(each, view.box.devices, view.now), "yellow")) for each in view.box.tickets]


def _with_user(device: DeviceLine, report: DeviceReport) -> DeviceLine:
    """Return the line of a GPU that says behind its state who has it, for where there is no room for more."""
    if device.tone != "busy":
        return device
    known = device.item.view.availability
    processes = known.sample.processes or () if known.sample is not None else ()
    users = {clean(each.user) for each in processes if each.pid not in known.ours and each.kind != "G"}
    users |= {report.claim.user} if report.claim is not None and not users else set()
    return device._replace(word=f"{device.word}: {', '.join(sorted(users))}") if users else device


# ---- jobs ------------------------------------------------------------------------------------------


class JobColumn(NamedTuple):
    """A column of the list of jobs. `order` is the one that its title stands for; empty: none."""

    title: str
    cells: int
    order: str
    text: Callable[[JobLine], str]
    is_number: bool = False


class JobColumns:
    """The columns of the list of jobs for which a width has room."""

    def __init__(self, width: int, largest_id: int, longest: int = 1 << 20) -> None:
        """Take the columns for ids up to this one, and for texts of `longest` cells."""
        digits = max(3, len(str(largest_id)))
        columns = [
            JobColumn("JOB", digits + 1, "id", lambda job: str(job.job_id), is_number=True),
            JobColumn("STATE", 9, "state", lambda job: job.state),
            JobColumn("GPU", 3, "", lambda job: job.where),
            JobColumn("TIME", 8, "time", lambda job: job.time, is_number=True),
            JobColumn("DONE", 4, "", lambda job: "" if job.fraction is None else f"{job.fraction:.0%}", is_number=True),
        ]
        if width >= WIDE:
            columns += [
                JobColumn("TRY", 3, "", lambda job: job.attempts, is_number=True),
                JobColumn("STARTED", 8, "started", lambda job: job.started[-8:]),
                JobColumn("PRIO", 4, "prio", lambda job: job.prio, is_number=True),
                JobColumn("TAGS", 12, "tags", lambda job: job.tags),
            ]
        rest = max(10, width - sum(each.cells + 1 for each in columns) - 2)
        text = min(rest - rest * 2 // 5, max(12, -longest // 8 * -8))
        columns.append(JobColumn("COMMAND", text, "command", lambda job: job.text))
        self.columns = [*columns, JobColumn("HOW", rest - text, "", lambda job: job.how)]
        self.key = width, digits, text

    def head(self, order: str, *, is_reversed: bool) -> Line:
        """Return the titles; the one that the jobs are sorted by is marked."""
        mark = "▲" if is_reversed else "▼"
        return _join((each, each.title + mark * (each.order == (order or None)), HEAD) for each in self.columns)

    def order_at(self, x: int) -> str:
        """Return the order that the title at this place stands for; empty for the usual one."""
        for column in self.columns:
            if x <= column.cells:
                return column.order
            x -= column.cells + 1
        return ""

    def row(self, job: JobLine, *, is_marked: bool = False) -> Line:
        styles = {"STATE": STATES[job.state], "HOW": DIM}
        mark = {"JOB": "*"} if is_marked else {}
        return _join(
            (each, mark.get(each.title, "") + each.text(job), styles.get(each.title, "")) for each in self.columns
        )


def _join(cells: Iterable[tuple[JobColumn, str, str]]) -> Line:
    """Return one line of columns with their texts and styles, each cut to its width."""
    joined = Text(no_wrap=True)
    for column, text, style in cells:
        part = Text(text, style)
        part.truncate(column.cells, overflow="ellipsis")
        blanks = " " * (column.cells - part.cell_len)
        joined.append(blanks if column.is_number else "").append_text(part)
        joined.append(" " if column.is_number else blanks + " ")
    return joined


# ---- one job ---------------------------------------------------------------------------------------


def log_lines(job: JobDetails) -> list[Line]:
    return [line(text) for text in job.log] if any(job.log) else [line(("nothing was written yet", DIM))]


def use_lines(job: JobDetails, width: int) -> list[Line]:
    """Return the curves of what a job has used of each of its GPUs."""
    by_gpu: dict[tuple[int, str], list[CurvePoint]] = {}
    for point in job.curve:
        by_gpu.setdefault((point.index, point.uuid), []).append(point)
    if not by_gpu:
        return [line(("no samples yet: its dispatcher keeps one every few polls, of jobs that last", DIM))]
    lines = []
    for (index, uuid), points in sorted(by_gpu.items()):
        began, ended, most = points[0].at, points[-1].at, max(point.mib for point in points)
        when = f"{moment(began, ended)}, {span(ended - began)}"
        memory = [(point.at, point.mib / (most or 1.0)) for point in points]
        use = [(point.at, point.use) for point in points]
        lines += [
            line((gpu_label(uuid, index), HEAD), f"  since {when}"),
            line("memory  ", (trend(memory, began, ended, width - 22), "cyan"), f"  {most:.0f} MiB"),
            line("use     ", (trend(use, began, ended, width - 22), "green"), "  of 100%"),
            line(),
        ]
    return lines
