"""The list of the jobs of a queue: only the rows in view are read and drawn, and one or more are chosen by a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from gpusched.tui.lines import LinesView
from gpusched.tui.panes import JobColumns
from gpusched.views.job_lines import JobLine

FAR = 1 << 40
AHEAD = 100  # rows above and below those in view that are read with them


class JobList(LinesView):
    """The ids of all jobs in their order, and the lines of those in view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "", show=False),
        Binding("down,j", "move(1)", "", show=False),
        Binding("pageup", "page(-1)", "", show=False),
        Binding("pagedown", "page(1)", "", show=False),
        Binding("home", f"move({-FAR})", "", show=False),
        Binding("end", f"move({FAR})", "", show=False),
        Binding("space", "mark", "", show=False, tooltip="mark it for the next change; Esc: none"),
    ]

    class Moved(Message):
        """Another job was chosen, or other rows are in view."""

    def __init__(self) -> None:
        super().__init__(id="jobs", takes_keys=True)
        self.ids: Sequence[int] = ()
        self.marked: set[int] = set()
        self.columns = JobColumns(80, 1)
        self._rows: Mapping[int, JobLine] = {}
        self._chosen: int | None = None
        self._place = 0  # of the chosen one when it was last seen
        self._places: Mapping[int, int] = {}
        self._is_read = False

    @property
    def chosen(self) -> JobLine | None:
        return None if self._chosen is None else self._rows.get(self._chosen)

    @property
    def chosen_id(self) -> int | None:
        return self._chosen

    def wanted(self, ids: Sequence[int]) -> list[int]:
        """Return those of these jobs whose lines are needed."""
        top = self.scroll_offset.y
        near = ids[max(0, top - AHEAD) : top + self.size.height + AHEAD]
        return [*near] if self._chosen is None or self._chosen in near else [*near, self._chosen]

    def show_jobs(self, ids: Sequence[int], rows: Sequence[JobLine]) -> None:
        """Show these jobs; the chosen one stays so wherever it is now."""
        before, old, self._is_read = self.ids, self._rows, True
        self._rows = {row.job_id: row for row in rows}
        if ids is not before:
            self.ids, self._places = ids, {job_id: n for n, job_id in enumerate(ids)}
            self.marked &= self._places.keys()
            self.lay_out()
            if self._chosen not in self._places:
                self._chosen = ids[min(self._place, len(ids) - 1)] if ids else None
                self.post_message(self.Moved())
        longest = max((cell_len(row.text) for row in rows), default=0)
        columns = JobColumns(self.size.width - 1, max(ids, default=1), longest)
        is_new = columns.key != self.columns.key or len(before) != len(ids)
        self.columns = columns
        top = self.scroll_offset.y
        for y in range(self.size.height):
            now = ids[top + y : top + y + 1]
            if is_new or now != before[top + y : top + y + 1] or (now and old.get(now[0]) != self._rows.get(now[0])):
                self._refresh_row(top + y)

    def choose(self, place: int) -> None:
        """Choose the job at this place, or the nearest one, and bring it into view."""
        if not self.ids:
            return
        before = self._places.get(self._chosen or 0, self._place)
        self._place = min(max(0, place), len(self.ids) - 1)
        self._chosen = self.ids[self._place]
        top, height = self.scroll_offset.y, self.size.height
        if not top <= self._place < top + height:
            y = self._place if self._place < top else self._place - height + 1
            self.scroll_to(y=y, animate=False, immediate=True)
        for row in (before, self._place):
            self._refresh_row(row)
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        self.choose(self._places.get(self._chosen or 0, self._place) + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self.size.height - 1))

    def action_mark(self) -> None:
        if self._chosen is not None:
            self.marked ^= {self._chosen}
            self.action_move(1)

    def unmark(self) -> None:
        self.marked.clear()
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        shown = self.ids[round(new_value) : round(new_value) + self.size.height]
        if any(job_id not in self._rows for job_id in shown):
            self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        self.choose(self.scroll_offset.y + event.y)

    def _refresh_row(self, n: int) -> None:
        self.refresh(Region(0, n - self.scroll_offset.y, self.size.width, 1))

    def lay_out(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.ids))

    def on_resize(self) -> None:
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        n = y + self.scroll_offset.y
        if n >= len(self.ids):
            return self.draw(Text("" if n or not self._is_read else "no job here"))
        job_id = self.ids[n]
        row = self._rows.get(job_id)
        text = Text(f"{job_id:>7} …") if row is None else self.columns.row(row, is_marked=job_id in self.marked)
        if job_id == self._chosen:  # in one style: parts of it with colours would be hard to read
            return Strip([Segment(set_cell_size(text.plain, self.size.width), Style(reverse=True))])
        return self.draw(text)
