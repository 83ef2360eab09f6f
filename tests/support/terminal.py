"""A program on a terminal of its own, whose screen can be read, resized and typed on."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from tests.support.box import PATIENCE_S


class Terminal:
    """A terminal of this size that runs a program. A context manager that kills it."""

    def __init__(
        self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], *, columns: int = 80, lines: int = 24
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execvpe(argv[0], list(argv), {**environment, "TERM": "xterm-256color"})
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def shown(self) -> list[str]:
        """Return the lines of the screen down to the last one with text."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip().split("\n")

    def listen(self, until: Callable[[], bool]) -> None:
        """Take what the program writes until this is so, or until it has ended."""
        end = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < end, "\n".join(self.shown())
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self._stream.feed(os.read(self._master, 65536))
                except OSError:
                    return

    def await_text(self, text: str) -> None:
        self.listen(lambda: text in "\n".join(self.shown()))
        assert text in "\n".join(self.shown())

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Change the size as many terminals do: lines that are too long now are wrapped, and the last ones shown."""
        text = "\r\n".join(self.shown())
        self.screen.reset()
        self.screen.resize(lines, columns)
        self._stream.feed(text.encode() + b"\r\n")
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def wait(self) -> int:
        """Listen to the end of the program; return its exit code."""
        self.listen(lambda: False)
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def hang_up(self) -> int:
        """Close the terminal as a lost connection does; return how the program has ended."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)
        pid, self.pid = self.pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
