"""The page: what the reader has read -> elements of HTML by their ids. Jinja escapes all text. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from gpusched.operations.look.overview import Overview, Pulse
from gpusched.views.devices import ticket_text
from gpusched.views.job_lines import JobLine
from gpusched.views.pages import job_page, queue_head, queue_list
from gpusched.views.report import DeviceLine
from gpusched.views.story import charts
from gpusched.views.story.page import FILES
from gpusched.views.templates import content_hash, environment, read_files
from gpusched.web.query import FIRST_ROWS, MOST_ROWS, PageQuery

TREND_S, TREND_CELLS, GAP_S = 300.0, 100, 15.0  # of a GPU: how long, how many steps, how long a value holds
CURVE_CELLS = 300

_OWN = read_files(str(__package__), "page.html", "parts.html", "web.css", "web.js")
_ENVIRONMENT = environment(_OWN)
_PARTS = _ENVIRONMENT.get_template("parts.html").module
_CSS = FILES["report.css"] + _OWN["web.css"]
POLICY = (
    f"default-src 'none'; style-src '{content_hash(_CSS)}'; script-src '{content_hash(_OWN['web.js'])}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class PageColumn(NamedTuple):
    """A column of the list of jobs: a field of their lines. `order` is the one that its title stands for."""

    title: str
    field: str
    order: str = ""
    style: str = ""

    @property
    def is_rare(self) -> bool:
        """True for one that is left out where it is empty, or where the page is narrow."""
        return "rare" in self.style


COLUMNS = (
    PageColumn("Job", "job_id", "id", "n"),
    PageColumn("State", "state", "state"),
    PageColumn("GPU", "where"),
    PageColumn("Time", "time", "time", "n"),
    PageColumn("Tries", "attempts", "", "n rare"),
    PageColumn("Started", "started", "started", "rare"),
    PageColumn("Prio", "prio", "prio", "n rare"),
    PageColumn("Tags", "tags", "tags", "rare"),
    PageColumn("Command", "text", "command", "wide"),
)


class PageDrawing(NamedTuple):
    """The page for one wish: its elements by their ids, and which of them are the rows of the list, in order."""

    title: str
    parts: Mapping[str, str]
    rows: Sequence[str]


def draw(query: PageQuery, view: Overview, lines: Sequence[JobLine], own: JobLine | None, timeline: str) -> PageDrawing:
    """Return the page about this view. `lines` are the jobs of its list, and `own` is the line of the one in full."""
    columns = tuple(each for each in COLUMNS if not each.is_rare or any(getattr(job, each.field) for job in lines))
    rows = {f"j{job.job_id}": _row(job, query, columns) for job in lines}
    link = query.link(rows=min(MOST_ROWS, 2 * query.rows)) if query.rows < MOST_ROWS else ""
    report = "report" + PageQuery(queue=view.path).link() if view.path else ""
    parts = {
        "head": _part("head", lines=_head(view), broken=view.broken, report=report),
        "queues": _part("queues", lines=list(_queues(view, query))),
        "gpus": _gpus(view),
        "states": _part("states", links=list(_states(view, query))),
        "titles": _part("titles", query=query, columns=columns),
        **rows,
        "more": _part("more", left=len(view.jobs) - len(lines), link=link),
        "job": _job(query, view, own),
        "timeline": timeline,
    }
    return PageDrawing(_title(view), parts, list(rows))


def render(drawing: PageDrawing, query: PageQuery) -> bytes:
    """Return the whole page."""
    page = _ENVIRONMENT.get_template("page.html").render(drawing=drawing, query=query, css=_CSS, js=_OWN["web.js"])
    return page.encode("utf-8", "replace")


def note(text: str) -> str:
    """Return the timeline where there is none, with the reason."""
    return _part("note", text=text)


def _part(name: str, **values: Any) -> str:
    return str(getattr(_PARTS, name)(**values)).strip()


@lru_cache(2 * MOST_ROWS)  # most rows are as they were
def _row(job: JobLine, query: PageQuery, columns: tuple[PageColumn, ...]) -> str:
    return _part("row", job=job, query=query, columns=columns)


def _title(view: Overview) -> str:
    if view.queue is None:
        return "gpusched"
    return ", ".join([view.queue.summary.name, *(f"{n} {word}" for word, n in view.queue.summary.counts.parts() if n)])


def _head(view: Overview) -> list[str]:
    if view.queue is None:
        return ["gpusched", "" if view.broken else "there is no queue yet; start one with `gpusched run FILE`"]
    return [line.plain for line in queue_head(view.queue)]


def _queues(view: Overview, query: PageQuery) -> Iterator[tuple[str, str, bool]]:
    """Yield the lines about the queues, each with its link, and True for the one in focus; nothing for a single one."""
    if len(view.queues) > 1:
        for path, line in zip(["", *view.queues], queue_list(view.queues.values(), view.now), strict=True):
            link = query.link(queue=path, job=None, rows=FIRST_ROWS) if path else ""
            yield line.plain, link, path == view.path


def _states(view: Overview, query: PageQuery) -> Iterator[tuple[str, str, bool]]:
    """Yield the states with the number of their jobs, each with its link, and True for the one that is chosen."""
    if view.queue is None:
        return
    words = query.text.split()
    others = [word for word in words if not word.startswith("state=")]
    yield f"all {view.queue.summary.counts.total}", query.link(text=" ".join(others)), others == words
    for state, number in view.queue.summary.counts.parts():
        chosen = f"state={state}"
        yield f"{number} {state}", query.link(text=" ".join([*others, chosen])), chosen in words


def _gpus(view: Overview) -> str:
    ended_at = view.now // 5 * 5  # moves on only so often: what has not changed is not sent again

    def trend(device: DeviceLine, name: str) -> str:
        pulses: Sequence[Pulse] = view.pulses.get(device.item.device.uuid, ())
        values = ((each.at, each.memory if name == "memory" else each.use) for each in pulses)
        return charts.peak_path(charts.peaks(values, ended_at - TREND_S, ended_at, TREND_CELLS, GAP_S), 20)

    tickets = [ticket_text(each, view.box.devices, view.now) for each in view.box.tickets]
    return _part("gpus", devices=view.devices, trend=trend, tickets=tickets, why_none=view.no_gpus, cells=TREND_CELLS)


def _job(query: PageQuery, view: Overview, own: JobLine | None) -> str:
    details = view.job
    if query.job is None or details is None:
        return _part("no_job", job=query.job, close=query.link(job=None))
    title, *lines = job_page(details.report)
    return _part(
        "job",
        title=title.plain,
        lines=[line.plain for line in lines],
        fraction=own.fraction if own else None,
        curves=charts.job_paths(details.curve, CURVE_CELLS, 60) if len(details.curve) > 1 else [],
        cells=CURVE_CELLS,
        log=details.log,
        path=details.log_path,
        close=query.link(job=None),
    )
