"""The common part of all viewers: one reader of the queues, in a thread of its own, and what it has just drawn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.operations.look.overview import Overview, OverviewReader
from gpusched.operations.look.story import read_story
from gpusched.operations.queues import QueueDir
from gpusched.views.story.page import render, render_timeline
from gpusched.web import page
from gpusched.web.page import PageDrawing
from gpusched.web.query import PageQuery

FRAME_S, LAST_S = 1.0, 10.0  # the shortest and the longest time for which a frame stands
PACE = 33  # times what the frames of all viewers take goes by before the next ones: 3 % of a core
STORY_S, STORY_PACE = 10.0, 75  # the same of a timeline, which tells the whole past of a queue
STALE_S = 15.0
KEPT_TIMELINES = 8


class _Timeline(NamedTuple):
    html: str
    next_s: float  # when it is to be read again


class Painter:
    """Draws the page for each wish, at most once in a frame. Nothing is read unless somebody looks.

    A context manager. The past of a queue is read in a second thread, since it takes long.
    """

    def __init__(self, open_reader: Callable[[], OverviewReader]) -> None:
        self._open_reader = open_reader
        self._reader: OverviewReader | None = None
        self._looked_s = 0.0  # when somebody did so last
        self._thread, self._story_thread = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._drawn: dict[PageQuery, tuple[float, float, PageDrawing]] = {}  # with when, and what it took
        self._timelines: dict[str, _Timeline] = {}
        self._reading: Future[None] | None = None

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._close)
        self._thread.shutdown()
        self._story_thread.shutdown(cancel_futures=True)

    async def draw(self, query: PageQuery) -> PageDrawing:
        """Return the page for this wish. Raises GpuschedError or OSError where a queue cannot be read."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(self._draw, query))

    async def report(self, query: PageQuery) -> bytes | None:
        """Return the report of the queue in focus; None if there is none."""
        loop = asyncio.get_running_loop()
        view = await loop.run_in_executor(self._thread, lambda: self._opened().read(query.focus))
        queue_dir = view.queue_dir
        if queue_dir is None:
            return None
        return await loop.run_in_executor(
            self._story_thread, lambda: render(read_story(queue_dir)).encode("utf-8", "replace")
        )

    def pause_s(self) -> float:
        """Return for how long a frame stands."""
        return min(LAST_S, max(FRAME_S, PACE * sum(took_s for _, took_s, _ in tuple(self._drawn.values()))))

    def _draw(self, query: PageQuery) -> PageDrawing:
        now_s, began_s, stands_s = time.monotonic(), time.thread_time(), 0.9 * self.pause_s()
        self._drawn = {other: each for other, each in self._drawn.items() if now_s - each[0] < stands_s}
        if query not in self._drawn:
            before, reader = self._reader, self._opened()
            view = reader.read(query.focus)
            lines = reader.read_jobs(view, view.jobs[: query.rows])
            own = None if query.job is None else next(iter(reader.read_jobs(view, [query.job])), None)
            drawing = page.draw(query, view, lines, own, self._timeline(view, now_s))
            took_s = time.thread_time() - began_s if reader is before else 0.0  # the first one takes longer
            self._drawn[query] = now_s, took_s, drawing
        return self._drawn[query][2]

    def _opened(self) -> OverviewReader:
        """Return the reader: a new one if nobody looked for a while, since it has missed what the GPUs did."""
        now_s = time.monotonic()
        if self._reader is None or now_s >= self._looked_s + STALE_S:
            self._close()
            self._reader = self._open_reader()
        self._looked_s = now_s
        return self._reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.__exit__()

    def _timeline(self, view: Overview, now_s: float) -> str:
        """Return the newest timeline of the queue in focus, and have it read again when that is due."""
        if view.queue_dir is None:
            return page.note("there is no queue")
        known = self._timelines.get(view.path)
        if (known is None or now_s >= known.next_s) and (self._reading is None or self._reading.done()):
            self._reading = self._story_thread.submit(self._read_story, view.queue_dir)
        return known.html if known is not None else page.note("it is being read …")

    def _read_story(self, queue_dir: QueueDir) -> None:
        began_s = time.thread_time()
        try:
            html = render_timeline(read_story(queue_dir)).strip()
        except (GpuschedError, OSError) as error:
            html = page.note(str(error))
        next_s = time.monotonic() + max(STORY_S, STORY_PACE * (time.thread_time() - began_s))
        others = [item for item in self._timelines.items() if item[0] != queue_dir.path]
        self._timelines = dict([*others[1 - KEPT_TIMELINES :], (queue_dir.path, _Timeline(html, next_s))])
