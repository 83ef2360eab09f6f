"""The one place where a dispatcher sleeps: until a descriptor, a signal, a ring, or the time. Handles nothing."""

from __future__ import annotations

import os
import selectors
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Sleeper:
    """Wakes for what is registered with `selector` (a callable as data), for signals, and for rings of the pipe."""

    def __init__(self, ring_path: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.received: list[int] = []  # signals not handled yet
        self._before: dict[int, Any] = {}
        self._ring = os.open(ring_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(self._ring, selectors.EVENT_READ, lambda: self._drain(self._ring))
        self.selector.register(self._wake_read, selectors.EVENT_READ, lambda: self._drain(self._wake_read))
        self._old_wakeup: int | None = None
        if threading.current_thread() is threading.main_thread():
            self._old_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            for number in SIGNALS:
                # what was ignored at the start (nohup, a background job of a script) goes on being ignored
                if number != signal.SIGTERM and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    def _drain(self, fd: int) -> None:
        try:
            while os.read(fd, 4096):
                pass
        except BlockingIOError:
            pass

    def sleep(self, timeout_s: float | None) -> None:
        """Sleep at most `timeout_s`, then run the callables of whatever is ready."""
        if self.received:
            timeout_s = 0
        for key, _ in self.selector.select(None if timeout_s is None else max(0.0, timeout_s)):
            callback: Callable[[], object] = key.data
            callback()

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._old_wakeup is not None:
            signal.set_wakeup_fd(self._old_wakeup)
        self.selector.close()
        for fd in (self._ring, self._wake_read, self._wake_write):
            os.close(fd)
