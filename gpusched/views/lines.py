"""Print one line per event, for logs, pipes and cron. No colours, no redraws; the reader may be slow or gone."""

from __future__ import annotations

import contextlib
import select
import time
from typing import Any, TextIO

from gpusched.common.text import clean
from gpusched.core.model import Event

LOUD = ("warning", "error")
IMPORTANT = (*LOUD, "queue", "device")  # the events of a quiet run
PENDING = 1 << 20  # characters kept for a slow reader; the dispatcher's log has all events
PIECE = 1024  # characters that a pipe or terminal takes without blocking if it is ready


def event_lines(event: Event) -> list[tuple[str, str]]:
    """Return the lines of an event: a time (for the first one) and a text."""
    mark = f"{event.kind}: " if event.kind in LOUD else ""
    head = f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {mark}"
    texts = [clean(text) for text in event.text.rstrip("\n").split("\n")]
    return [(head if n == 0 else " " * 9, text) for n, text in enumerate(texts)]


class PatientWriter:
    """A writer that never blocks: text for a slow pipe, or a terminal that was stopped (Ctrl-S), waits here."""

    def __init__(self, out: TextIO) -> None:
        self._target = out
        self._pending = ""
        self._poll: select.poll | None = None
        try:
            fd = out.fileno()
        except (OSError, ValueError):
            return  # a stream in memory
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @property
    def behind(self) -> bool:
        return bool(self._pending)

    def write(self, text: str) -> int:
        if len(self._pending) < PENDING:
            self._pending += text
        return len(text)

    def flush(self) -> None:
        while self._pending and (self._poll is None or self._poll.poll(0)):
            piece, self._pending = self._pending[:PIECE], self._pending[PIECE:]
            self._target.write(piece)
            self._target.flush()

    def finish(self) -> None:
        """Write the rest, and wait for the reader if necessary."""
        self._poll = None
        self.flush()


class EventLines:
    """An observer that writes events at once. `quiet`: only those that a person should act on."""

    refresh_s: float | None = None
    loud: tuple[str, ...] = IMPORTANT

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out: PatientWriter | None = PatientWriter(out)
        self._quiet = quiet

    def event(self, event: Event) -> None:
        if self._out is None or (self._quiet and event.kind not in self.loud):
            return
        self._out.write("".join(f"{head}{text}\n" for head, text in event_lines(event)))
        try:
            self._out.flush()
        except (OSError, ValueError):
            self._out = None  # the reader is gone; the queue goes on

    def frame(self, frame: object) -> None:
        return None

    def detach(self) -> None:
        self._out = None

    def take_wishes(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        """Write the last lines, which may wait for their reader."""
        out, self._out = self._out, None
        if out is not None:
            with contextlib.suppress(OSError, ValueError):
                out.finish()
