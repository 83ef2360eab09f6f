"""The live view of a dispatcher: GPUs, running jobs, counts, and the reason why the next job waits.

Keeps no state of the queue, and works with a terminal that is small, slow or gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TextIO

from gpusched.core.jobs.progress import ItemGroup, slowest_left_s
from gpusched.core.model import AttemptRow, Event
from gpusched.core.plan.board import Frame, Wish
from gpusched.views.lines import IMPORTANT, event_lines
from gpusched.views.report import GroupLine, group_line, running_line, shorten_commands
from gpusched.views.tables import Line, line
from gpusched.views.terminal.area import Area
from gpusched.views.terminal.keyboard import REDRAW, Keyboard
from gpusched.views.terminal.layout import LEAVING, Picture, lay_out

REFRESH_S = 0.5
_STYLES = {"warning": "yellow", "error": "bold red", "queue": "bold", "device": "yellow", "ended": "red"}


class LiveView:
    """An observer that draws on a terminal. Only frame() and close() print."""

    def __init__(
        self, out: TextIO, queue: str, read_tail: Callable[[AttemptRow], str], keyboard: Keyboard | None = None
    ) -> None:
        """Start the view of the queue in the directory `queue`. `read_tail` returns the last line of a log."""
        self.refresh_s: float | None = REFRESH_S
        self._queue = queue
        self._read_tail = read_tail
        self._area: Area | None = Area(out)  # None: the terminal is gone
        self._keyboard = keyboard
        self._asks = False  # how to leave
        self._wishes: list[Wish] = []
        self._pending: list[Event] = []
        self._first: dict[tuple[str, ...], tuple[float, float]] = {}  # tags -> first time, items done then

    def event(self, event: Event) -> None:
        if _is_important(event):
            self._pending.append(event)

    def frame(self, frame: Frame) -> None:
        if self._area is None:
            return
        for key in self._keyboard.read() if self._keyboard else "":
            self._press(key)
            if key == REDRAW:
                self._area.redraw()
        try:
            if self._area.is_ready():
                self._area.draw(lay_out(self._picture(frame), *self._area.size), self._news())
        except (OSError, ValueError):
            self._area = None  # the jobs go on without it

    def _press(self, key: str) -> None:
        wish = LEAVING.get(key, (None, ""))[0]
        if wish is not None and (self._asks or wish in (Wish.GO_ON, Wish.DETACH)):
            self._wishes.append(wish)
        self._asks = key == "q" and not self._asks

    def take_wishes(self) -> list[Wish]:
        wishes, self._wishes = self._wishes, []
        return wishes

    def detach(self) -> None:
        self._area = None
        self._leave_keyboard()

    def _leave_keyboard(self) -> None:
        keyboard, self._keyboard = self._keyboard, None
        if keyboard is not None:
            keyboard.close()

    def close(self) -> None:
        """Remove the view, and print the events that it has not shown yet."""
        self._leave_keyboard()
        area, self._area = self._area, None
        if area is not None:
            with contextlib.suppress(OSError, ValueError):
                area.close(self._news())

    def _news(self) -> list[Line]:
        """Return the events since the last frame."""
        lines = [
            line((head, "dim"), (text, _STYLES.get(event.kind, "")))
            for event in self._pending
            for head, text in event_lines(event)
        ]
        self._pending = []
        return lines

    def _picture(self, frame: Frame) -> Picture:
        return Picture(
            name=os.path.basename(self._queue),
            frame=frame,
            running=shorten_commands(
                [running_line(view, frame.at, self._read_tail(view.attempt)) for view in frame.running]
            ),
            groups=[self._grouped(group, frame) for group in frame.groups],
            has_keys=self._keyboard is not None,
            asks=self._asks,
        )

    def _grouped(self, group: ItemGroup, frame: Frame) -> GroupLine:
        at = frame.at
        since, done = self._first.setdefault(group.tags, (at, group.done))
        per_s = (group.done - done) / (at - since) if at > since else 0.0
        own = [view for view in frame.running if view.job.items and view.job.tags == group.tags]
        return group_line(group, per_s, slowest_left_s(own, per_s, at))


def _is_important(event: Event) -> bool:
    """Return True for events that need an action, and for failed attempts."""
    if event.kind in IMPORTANT or event.kind == "retried":
        return True
    return event.kind == "ended" and " succeeded: " not in event.text
