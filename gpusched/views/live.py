"""The live view of a dispatcher: GPUs, running jobs, counts, and what is waited for. Starts no thread, keeps no state
of the queue, and never fails for a terminal that is small, slow or gone.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from gpusched.core.masking import clean, last_line
from gpusched.core.model import Event, JobState
from gpusched.views.layout import Picture, lay_out
from gpusched.views.lines import IMPORTANT, LOUD
from gpusched.views.report import FrameLike, running_line
from gpusched.views.tables import Line, is_unicode
from gpusched.views.words import Pace

REFRESH_S = 0.5
TAIL_BYTES = 4096
SHOWN_AT_ONCE = 12  # events printed above the view between two looks; the dispatcher's log has them all
_STYLES = {"warning": "yellow", "error": "bold red", "queue": "bold", "device": "yellow", "ended": "red"}


class LiveView:
    """An observer that draws on a terminal. Everything it prints goes out in frame() and close(), never between."""

    def __init__(self, out: TextIO, queue: str, *, console: Console | None = None) -> None:
        """`queue` is the queue's directory: its name is shown, and its logs are read from there."""
        self.refresh_s: float | None = REFRESH_S
        self._out = out
        self._queue = queue
        self._console = console or _TerminalConsole(file=out, highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._pending: list[Event] = []
        self._left_out = 0
        self._tails = Tails(queue)
        self._pace: Pace | None = None
        self._failed_before = 0
        self._shown: list[Line] = []
        self._size = (0, 0)
        self._gone = False

    # ---- what a dispatcher calls ----

    def event(self, event: Event) -> None:
        if self._gone or not _is_important(event):
            return
        if len(self._pending) < SHOWN_AT_ONCE or event.kind in IMPORTANT:
            self._pending.append(event)
        else:
            self._left_out += 1

    def frame(self, frame: FrameLike) -> None:
        if self._gone or not self._is_ready():
            return
        try:
            self._draw(frame)
        except (OSError, ValueError):
            self._gone = True  # the jobs go on without it

    def detach(self) -> None:
        self._gone = True

    def close(self) -> None:
        """Take the view away, so that what comes next stands in its place; say what has not been said."""
        if self._gone:
            return
        try:
            self._say()
            if self._live is not None:
                self._live.stop()
        except (OSError, ValueError):
            pass
        self._live, self._gone = None, True

    # ---- drawing ----

    def _is_ready(self) -> bool:
        """Whether the terminal takes text now. One that was stopped (Ctrl-S) must not stop the dispatcher."""
        try:
            fd = self._out.fileno()
        except (OSError, ValueError):
            return True  # no file behind it, as in a test
        return bool(select.select((), (fd,), (), 0)[1])

    def _draw(self, frame: FrameLike) -> None:
        size = (self._console.width, self._console.height)
        lines = lay_out(self._picture(frame), *size, unicode=is_unicode(self._console))
        if lines == self._shown and size == self._size and not self._pending and not self._left_out:
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # so that a killed dispatcher leaves a terminal that works
        elif size[0] < self._size[0]:
            self._make_room(size[0])
        self._live.update(Group(*(_text(line) for line in lines)))
        if not self._say():
            self._live.refresh()
        self._shown, self._size = lines, size

    def _make_room(self, width: int) -> None:
        """A narrower terminal has wrapped what is shown: go up over the lines that this made."""
        more = sum(max(0, cell_len(line.plain) - 1) // width for line in self._shown)
        if more:
            steps = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *steps))

    def _say(self) -> bool:
        """Print the events that have come above the view; printing draws the view anew. False: there were none."""
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
        if texts:
            self._console.print(Group(*texts))
        return bool(texts)

    def _picture(self, frame: FrameLike) -> Picture:
        running = [running_line(view, frame.at) for view in frame.running]
        self._tails.forget_but({name for job in running for name in job.logs})
        return Picture(
            name=os.path.basename(self._queue),
            frame=frame,
            running=running,
            pace=self._paced(frame),
            tail=self._tails.last,
        )

    def _paced(self, frame: FrameLike) -> Pace:
        failed = frame.counts[JobState.FAILED]
        if self._pace is None:
            self._pace, self._failed_before = Pace(frame.started_at, frame.at), failed
        finished = frame.finished_now + max(0, failed - self._failed_before)
        self._pace = self._pace.seen(frame.at, len(frame.running), finished)
        return self._pace


class _TerminalConsole(Console):
    def on_broken_pipe(self) -> None:
        """rich would leave the process here; a dispatcher goes on."""
        raise BrokenPipeError


def _is_important(event: Event) -> bool:
    """What a person should see pass by: all that asks for action, and failed attempts."""
    if event.kind in IMPORTANT or event.kind == "retried":
        return True
    return event.kind == "ended" and not event.text.startswith(f"job {event.job_id} succeeded")


def _text(line: Line) -> Text:
    return Text.assemble(*line.parts, no_wrap=True, overflow="crop")


class Tails:
    """The last line of each log that is shown, read again only when the log has grown."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[str, tuple[tuple[int, int], str]] = {}

    def last(self, logs: Iterable[str]) -> str:
        """The last line of the log that was written to last."""
        best = (0, "")
        for name in logs:
            best = max(best, self._read(name))
        return best[1]

    def _read(self, name: str) -> tuple[int, str]:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        path = os.path.join(self._directory, name)
        try:
            found = os.stat(path, follow_symlinks=False)
            stamp = (found.st_mtime_ns, found.st_size)
            known = self._known.get(name)
            if known is not None and known[0] == stamp:
                return stamp[0], known[1]
            fd = os.open(path, flags)
            try:
                tail = os.pread(fd, TAIL_BYTES, max(0, found.st_size - TAIL_BYTES))
            finally:
                os.close(fd)
        except OSError:
            return 0, ""
        text = last_line(tail)
        self._known[name] = (stamp, text)
        return stamp[0], text

    def forget_but(self, names: set[str]) -> None:
        for name in self._known.keys() - names:
            del self._known[name]
