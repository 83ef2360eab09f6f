"""The live view of a dispatcher: GPUs, running jobs, counts, and the reason why the next job waits.

Keeps no state of the queue, and works with a terminal that is small, slow or gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TextIO

from rich.text import Text

from gpusched.common.text import clean, last_line
from gpusched.core.jobs.progress import ItemGroup
from gpusched.core.model import Event, JobState
from gpusched.core.plan.board import Frame
from gpusched.views.lines import IMPORTANT, LOUD
from gpusched.views.report import GroupLine, group_line, running_line
from gpusched.views.terminal.area import Area
from gpusched.views.terminal.layout import Picture, lay_out
from gpusched.views.words import Pace

REFRESH_S = 0.5
TAIL_BYTES = 4096
SHOWN_AT_ONCE = 12  # failures printed above the view between two looks; the dispatcher's log has them all
_STYLES = {"warning": "yellow", "error": "bold red", "queue": "bold", "device": "yellow", "ended": "red"}


class LiveView:
    """An observer that draws on a terminal. Only frame() and close() print."""

    def __init__(self, out: TextIO, queue: str, *, width: int | None = None, height: int | None = None) -> None:
        """Start the view of the queue in the directory `queue`, whose logs it reads."""
        self.refresh_s: float | None = REFRESH_S
        self._queue = queue
        self._area: Area | None = Area(out, width=width, height=height)  # None: the terminal is gone
        self._pending: list[Event] = []
        self._left_out = 0
        self._tails = LogTails(queue)
        self._pace: Pace | None = None
        self._failed_before = 0
        self._first: dict[tuple[str, ...], tuple[float, float]] = {}  # tags -> first time, items done then

    def event(self, event: Event) -> None:
        if not _is_important(event):
            return
        if len(self._pending) < SHOWN_AT_ONCE or event.kind in IMPORTANT:
            self._pending.append(event)
        else:
            self._left_out += 1

    def frame(self, frame: Frame) -> None:
        if self._area is None:
            return
        try:
            if self._area.is_ready():
                lines = lay_out(self._picture(frame), *self._area.size, unicode=self._area.unicode)
                self._area.draw(lines, self._news())
        except (OSError, ValueError):
            self._area = None  # the jobs go on without it

    def detach(self) -> None:
        self._area = None

    def close(self) -> None:
        """Remove the view, and print the events that it has not shown yet."""
        area, self._area = self._area, None
        if area is None:
            return
        try:
            area.close(self._news())
        except (OSError, ValueError):
            pass

    def _news(self) -> list[Text]:
        """Return the events since the last frame."""
        texts: list[Text] = []
        for event in self._pending:
            stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
            mark = f"{event.kind}: " if event.kind in LOUD else ""
            for n, line in enumerate(event.text.splitlines() or [""]):
                head = f"{stamp} {mark}" if n == 0 else " " * (len(stamp) + 1)
                texts.append(Text.assemble((head, "dim"), (clean(line), _STYLES.get(event.kind, ""))))
        if self._left_out:
            more = f"         … and {self._left_out} more that failed: see dispatcher.log in {self._queue}"
            texts.append(Text(more, "red"))
        self._pending, self._left_out = [], 0
        return texts

    def _picture(self, frame: Frame) -> Picture:
        running = [running_line(view, frame.at) for view in frame.running]
        self._tails.forget_but({name for job in running for name in job.logs})
        return Picture(
            name=os.path.basename(self._queue),
            frame=frame,
            running=running,
            pace=self._paced(frame),
            groups=[self._grouped(group, frame.at) for group in frame.groups],
            tail=self._tails.last,
        )

    def _grouped(self, group: ItemGroup, at: float) -> GroupLine:
        since, done = self._first.setdefault(group.tags, (at, group.done))
        return group_line(group, (group.done - done) / (at - since) if at > since else 0.0)

    def _paced(self, frame: Frame) -> Pace:
        failed = frame.counts[JobState.FAILED]
        if self._pace is None:
            self._pace, self._failed_before = Pace(frame.started_at, frame.at), failed
        finished = frame.finished_now + max(0, failed - self._failed_before)
        self._pace = self._pace.seen(frame.at, len(frame.running), finished)
        return self._pace


def _is_important(event: Event) -> bool:
    """Return True for events that need an action, and for failed attempts."""
    if event.kind in IMPORTANT or event.kind == "retried":
        return True
    return event.kind == "ended" and not event.text.startswith(f"job {event.job_id} succeeded")


class LogTails:
    """The last line of each visible log, read again only if the log has grown."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._cache: dict[str, tuple[tuple[int, int], str]] = {}  # name -> time and size, last line

    def last(self, logs: Iterable[str]) -> str:
        """Return the last line of the log with the newest change."""
        return max((self._read(name) for name in logs), default=(0, ""))[1]

    def _read(self, name: str) -> tuple[int, str]:
        path = os.path.join(self._directory, name)
        try:
            status = os.stat(path, follow_symlinks=False)
            stamp = (status.st_mtime_ns, status.st_size)
            cached = self._cache.get(name)
            if cached is not None and cached[0] == stamp:
                return stamp[0], cached[1]
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                tail = os.pread(fd, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
            finally:
                os.close(fd)
        except OSError:
            return 0, ""
        text = last_line(tail)
        self._cache[name] = (stamp, text)
        return stamp[0], text

    def forget_but(self, names: set[str]) -> None:
        for name in self._cache.keys() - names:
            del self._cache[name]
