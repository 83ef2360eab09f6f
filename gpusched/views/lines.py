"""One line per event, for logs, pipes and cron. No colours, no redraws; never fails for a terminal that is gone."""

from __future__ import annotations

import time
from typing import TextIO

from gpusched.core.masking import clean
from gpusched.core.model import Event

LOUD = ("warning", "error")
IMPORTANT = (*LOUD, "queue", "device")


class EventLines:
    """An observer that writes events as they come. `quiet`: only what a person should act on."""

    refresh_s: float | None = None

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out: TextIO | None = out
        self._quiet = quiet

    def event(self, event: Event) -> None:
        if self._out is None or (self._quiet and event.kind not in IMPORTANT):
            return
        mark = f"{event.kind}: " if event.kind in LOUD else ""
        stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
        try:
            for line in event.text.splitlines() or [""]:
                self._out.write(f"{stamp} {mark}{clean(line)}\n")
                stamp, mark = " " * len(stamp), ""
            self._out.flush()
        except (OSError, ValueError):
            self._out = None  # the reader is gone; the queue goes on

    def frame(self, frame: object) -> None:
        return None

    def detach(self) -> None:
        self._out = None
