"""Print one line per event, for logs, pipes and cron. No colours, no redraws; the reader may be slow or gone."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import TextIO

from gpusched.common.text import clean
from gpusched.core.model import Event

LOUD = ("warning", "error")
IMPORTANT = (*LOUD, "queue", "device")  # the events of a quiet run
PENDING = 10_000  # lines kept for a slow reader; the dispatcher's log has them all
PIECE_BYTES = 4096  # a pipe or terminal that is ready takes this much without blocking


class EventLines:
    """An observer that writes events at once. `quiet`: only those that a person should act on."""

    refresh_s: float | None = None

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out: TextIO | None = out
        self._quiet = quiet
        self._pending: deque[str] = deque(maxlen=PENDING)
        self._ready: select.poll | None = None
        try:
            fd = out.fileno()
            os.fstat(fd)
        except (OSError, ValueError):
            return  # a stream in memory
        self._ready = select.poll()
        self._ready.register(fd, select.POLLOUT)

    def event(self, event: Event) -> None:
        if self._out is None or (self._quiet and event.kind not in IMPORTANT):
            return
        mark = f"{event.kind}: " if event.kind in LOUD else ""
        stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
        for line in event.text.splitlines() or [""]:
            self._pending.append(f"{stamp} {mark}{clean(line)}\n")
            stamp, mark = " " * len(stamp), ""
        self._write()

    def _write(self) -> None:
        """Write pending lines as long as that does not block the dispatcher."""
        while self._pending and self._out is not None:
            if self._ready is not None and not self._ready.poll(0):
                return
            try:
                self._out.write(self._pending.popleft()[:PIECE_BYTES])
                self._out.flush()
            except (OSError, ValueError):
                self._out = None  # the reader is gone; the queue goes on

    def frame(self, frame: object) -> None:
        return None

    def detach(self) -> None:
        self._out = None

    def close(self) -> None:
        self._ready = None  # the last lines may wait for their reader
        self._write()
