"""`gpusched top`: the screen, its keys, and the loop that reads what is shown. Changes go the way of the verbs."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.css.query import NoMatches
from textual.widgets import Footer, Input

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.job_filter import ORDERS, parse_filter
from gpusched.core.model import JobState
from gpusched.operations.look.overview import Focus, Overview, OverviewReader
from gpusched.tui import panes
from gpusched.tui.dialogs import Keys
from gpusched.tui.job_list import JobList
from gpusched.tui.lines import LinesView
from gpusched.views.job_lines import JobLine
from gpusched.views.pages import job_page
from gpusched.views.tables import DIM, HEAD, Line, line

T = TypeVar("T")

FRAME_S = 1.0
SIDE_BY_SIDE = 160  # cells: then one job stands beside the list
TALL = 30  # lines: then one job stands below the list from the start
PARTS = ("log", "explain", "usage")  # of one job


class ViewApp(App[None]):
    """The screen without the keys that change something. It leaves no trace, and nothing depends on it.

    Everything is read and changed in one thread beside the screen, so that keys are answered whatever a disk does.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "keys", "Keys", key_display="?", tooltip="list the keys"),
        Binding("q,d,ctrl+c", "quit", "Leave", key_display="q", tooltip="leave; nothing stops"),
        Binding("slash", "filter", "Filter", key_display="/", tooltip="filter: words, tag=TAG, state=STATE"),
        Binding("s", "state", "State", tooltip="only jobs in one state; again: the next one"),
        Binding("o", "order", "Sort", tooltip="sort by the next column"),
        Binding("i", "reverse", "Invert", show=False, tooltip="the other way round"),
        Binding("enter", "details", "Job", key_display="⏎", tooltip="show the job in full, or not"),
        Binding("v", "part", "View", show=False, tooltip="of the job: log, explanation, usage"),
        Binding("l", "log", "Log", tooltip="its whole log in $PAGER"),
        Binding("left_square_bracket", "queue(-1)", "", show=False, key_display="[", tooltip="the last queue (--all)"),
        Binding("right_square_bracket", "queue(1)", "", show=False, key_display="]", tooltip="the next queue (--all)"),
    ]

    def __init__(self, reader: OverviewReader) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # the colours of the terminal
        self.reader = reader
        self.wake = asyncio.Event()  # something else is to be shown
        self.view: Overview | None = None
        self.trouble: Exception | None = None  # that has ended it
        self._thread = ThreadPoolExecutor(1)
        self._queue, self._order, self._part = "", "", PARTS[0]
        self._is_reversed = False
        self._has_details: bool | None = None  # None: as there is room

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Call this beside the screen, behind what was called before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        """End the reading."""
        self._thread.submit(self.reader.__exit__)
        self._thread.shutdown()

    def compose(self) -> ComposeResult:
        yield LinesView(id="head", fits=True)
        yield LinesView(id="gpus", fits=True, takes_keys=True)
        with Container(id="body"):
            with Vertical(id="list"):
                yield Input(placeholder="text tag=TAG state=STATE", id="filter", compact=True)
                yield LinesView(id="titles", fits=True)
                yield JobList()
            with Vertical(id="job"):
                yield LinesView(id="parts", fits=True)
                yield LinesView(id="details", wraps=True, takes_keys=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(JobList).focus()
        self.run_worker(self._watch())

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)

    def _arrange(self, width: int, height: int) -> None:
        is_wide = width >= SIDE_BY_SIDE
        self.set_class(is_wide, "wide")
        self.set_class(height >= TALL, "tall")
        shown = self._has_details if self._has_details is not None else is_wide or height >= TALL
        self.query_one("#job").display = shown
        self.wake.set()

    # ---- reading ----

    async def _watch(self) -> None:
        """Read and show, once in a frame and whenever something else is to be seen, until the screen is taken down."""
        try:
            while True:
                self.wake.clear()
                await self._show_frame()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.wake.wait(), FRAME_S)
        except NoMatches:
            return
        except Exception as error:  # is raised again once the terminal is given back, as that of any verb
            self.trouble = error
            self.exit()

    async def _show_frame(self) -> None:
        jobs = self.query_one(JobList)
        view = await self.in_thread(partial(self.reader.read, self._focus()))
        rows: Sequence[JobLine] = ()
        with suppress(GpuschedError):  # of a database that breaks; the next view says so
            rows = await self.in_thread(partial(self.reader.read_jobs, view, jobs.wanted(view.jobs)))
        jobs.show_jobs(view.jobs, rows)
        self._show(view)

    def _focus(self) -> Focus:
        words = self.query_one("#filter", Input).value
        wanted = parse_filter(words, self._order, is_reversed=self._is_reversed)
        job = self.query_one(JobList).chosen_id if self.query_one("#job").display else None
        return Focus(self._queue, wanted, job)

    # ---- showing ----

    def _show(self, view: Overview) -> None:
        self.view = view
        width, height = self.size
        self.query_one("#head", LinesView).show(panes.head_lines(view, height))
        self.query_one("#gpus", LinesView).show(panes.gpu_lines(view, width - 1))
        titles = self.query_one(JobList).columns.head(self._order, is_reversed=self._is_reversed)
        self.query_one("#titles", LinesView).show([titles])
        if self.query_one("#job").display:
            details = self.query_one("#details", LinesView)
            self.query_one("#parts", LinesView).show([self._part_names(view)])
            about = self._part, view.job and (view.path, view.job.report.job.id)
            details.show(self._details(view, details.size.width), about=about, from_end=self._part == "log")

    def _part_names(self, view: Overview) -> Line:
        name = f"job {view.job.report.job.id}" if view.job else "no job"
        names = [(f" {part} ", "reverse" if part == self._part else DIM) for part in PARTS]
        return line((f"{name}  ", HEAD), *names)

    def _details(self, view: Overview, width: int) -> Sequence[Line]:
        if view.job is None:
            return []
        if self._part == "log":
            return panes.log_lines(view.job)
        return job_page(view.job.report) if self._part == "explain" else panes.use_lines(view.job, width)

    @on(JobList.Moved)
    @on(Input.Changed, "#filter")
    def _look_at_once(self) -> None:
        self.wake.set()

    # ---- choosing what is shown ----

    def action_keys(self) -> None:
        """List all keys, those of the list of jobs too."""
        known = [each.binding for each in self.screen.active_bindings.values() if each.binding.tooltip]
        by_action = {each.action: (each.key_display or each.key, each.tooltip) for each in known}
        self.push_screen(Keys([("↑ ↓ k j", "move; PgUp, PgDn, Home, End; Tab: elsewhere"), *by_action.values()]))

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    @on(Input.Submitted, "#filter")
    def _leave_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = bool(field.value)
        self.query_one(JobList).focus()

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape":
            self.query_one("#filter", Input).value = ""
            self.query_one(JobList).unmark()
            self._leave_filter()
            self.wake.set()

    def action_state(self) -> None:
        """Show the jobs of the next state only; after the last one, all again."""
        field = self.query_one("#filter", Input)
        words = field.value.split()
        shown = next((word for word in words if word in STATE_WORDS), "")
        following = [*STATE_WORDS, ""][(STATE_WORDS.index(shown) + 1) if shown else 0]
        field.value = " ".join([word for word in words if word != shown] + [following] * bool(following))
        self._leave_filter()

    def action_order(self, order: str | None = None) -> None:
        """Sort by this, or by the next of ORDERS; by the same once more, the other way round."""
        if order is None:
            order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._is_reversed = order == self._order and not self._is_reversed
        self._order = order
        self.wake.set()

    def action_reverse(self) -> None:
        self.action_order(self._order)

    def action_details(self) -> None:
        self._has_details = not self.query_one("#job").display
        self._arrange(*self.size)

    def action_part(self) -> None:
        self._part = PARTS[(PARTS.index(self._part) + 1) % len(PARTS)]
        self._has_details = True
        self._arrange(*self.size)

    def action_queue(self, by: int) -> None:
        """Look at the queue after this one, or before it."""
        if self.view is not None and self.view.queues:
            paths = list(self.view.queues)
            self._queue = paths[(paths.index(self.view.path) + by) % len(paths)]
            self.wake.set()

    def on_click(self, event: events.Click) -> None:
        if event.widget is self.query_one("#titles"):
            self.action_order(self.query_one(JobList).columns.order_at(event.x))
        elif event.widget is self.query_one("#parts"):
            self.action_part()

    async def action_log(self) -> None:
        """Open the log of the job in a pager."""
        job_id = self.query_one(JobList).chosen_id
        if self.view is None or job_id is None:
            return
        path = await self.in_thread(partial(self.reader.find_log, self.view.path, job_id))
        if not os.path.exists(path):
            self.notify(f"job {job_id} has no log yet", severity="warning")
            return
        pager = shlex.split(os.environ.get("PAGER", "")) or ["less"]
        before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager
        try:
            with self.suspend():
                subprocess.call([*pager, path])
        except OSError as error:
            self.notify(f"{pager[0]} cannot be started: {error.strerror} (PAGER)", severity="error")
        finally:
            signal.signal(signal.SIGINT, before)


STATE_WORDS = [f"state={state.value}" for state in JobState]
