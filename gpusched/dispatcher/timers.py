"""Clocks, timers, and the one place where a dispatcher sleeps: until a descriptor, a signal, a ring, or the time."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on both clocks. Records and people get `at`; every interval is measured with `monotonic_s`."""

    at: float  # epoch seconds; jumps when the clock of the box is set
    monotonic_s: float  # seconds since some start; never jumps


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of a dispatcher; a test gives its own functions."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def moment(self) -> Moment:
        return Moment(self.now(), self.monotonic())


class Timer:
    """A moment that comes again; a new timer is due at once. Moments are monotonic seconds."""

    def __init__(self) -> None:
        self.due_s = float("-inf")

    def is_due(self, now: Moment) -> bool:
        return now.monotonic_s >= self.due_s

    def restart(self, now: Moment, interval_s: float) -> None:
        """Come due this long after `now`."""
        self.due_s = now.monotonic_s + interval_s

    def repeat(self, now: Moment, interval_s: float) -> None:
        """Come due this long after the last time, so that the interval does not drift; skip those that were missed."""
        following_s = self.due_s + interval_s
        self.due_s = following_s if following_s > now.monotonic_s else now.monotonic_s + interval_s


class Sleeper:
    """Wakes for what is registered with `selector` (a callable as data), for signals, and for rings of the pipe.

    Signals are handled by it from `with` on until the end of that block.
    """

    def __init__(self, ring_path: str) -> None:
        self.selector = selectors.DefaultSelector()
        self._received: list[int] = []  # signals not handled yet
        self._before: dict[int, Any] = {}  # handlers to put back
        self._wakeup_before: int | None = None
        self._ring = os.open(ring_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(self._ring, selectors.EVENT_READ, lambda: _drain(self._ring))
        self.selector.register(self._wake_read, selectors.EVENT_READ, lambda: _drain(self._wake_read))

    def __enter__(self) -> Sleeper:
        if threading.current_thread() is threading.main_thread():
            self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            for number in SIGNALS:
                # what was ignored at the start (nohup, a background job of a script) goes on being ignored
                if number != signal.SIGTERM and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._wakeup_before is not None:
            signal.set_wakeup_fd(self._wakeup_before)
        self.selector.close()
        for fd in (self._ring, self._wake_read, self._wake_write):
            os.close(fd)

    def _on_signal(self, number: int, frame: object) -> None:
        self._received.append(number)

    def wake_for(self, fd: int | None) -> None:
        """Wake when this descriptor is readable; whoever owns it reads it."""
        if fd is not None:
            self.selector.register(fd, selectors.EVENT_READ, lambda: None)

    @property
    def has_signals(self) -> bool:
        return bool(self._received)

    def take_signals(self) -> list[int]:
        """Return the signals that have come since the last call, in their order."""
        received: list[int] = []
        while self._received:  # a signal may come in between
            received.append(self._received.pop(0))
        return received

    def sleep(self, timeout_s: float) -> None:
        """Sleep at most `timeout_s`, then run the callables of whatever is ready."""
        for key, _ in self.selector.select(0 if self._received else timeout_s):
            callback: Callable[[], object] = key.data
            callback()


def _drain(fd: int) -> None:
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass
