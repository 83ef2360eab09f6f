"""Read single keys from a terminal, without echo, and keep them from the shell. Decides nothing about them."""

from __future__ import annotations

import os
import re
import select
import termios
import tty
from contextlib import suppress
from typing import Any

_SEQUENCE = re.compile(r"\x1b[\[O][0-9;]*[^0-9;]")  # of a key without a letter, such as an arrow


class Keyboard:
    """The keys of the terminal behind a descriptor. Reads and changes nothing while another program is in front."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._mode: Any = None  # of the terminal before; None: not changed

    def read(self) -> str:
        """Return the keys that were pressed since the last call."""
        keys = b""
        with suppress(OSError, termios.error):
            if self._is_in_front():
                mode = termios.tcgetattr(self._fd)
                if mode[3] & termios.ICANON:  # at first, and when a shell has let this go on after Ctrl-Z
                    self._mode = self._mode or mode
                    tty.setcbreak(self._fd, termios.TCSANOW)
                while select.select([self._fd], [], [], 0)[0] and (more := os.read(self._fd, 1024)):
                    keys += more
        return _SEQUENCE.sub("", keys.decode("ascii", "ignore"))

    def close(self) -> None:
        """Give the terminal back as it was, without the keys that nobody has read."""
        with suppress(OSError, termios.error):
            if self._mode is not None and self._is_in_front():
                termios.tcflush(self._fd, termios.TCIFLUSH)
                termios.tcsetattr(self._fd, termios.TCSANOW, self._mode)

    def _is_in_front(self) -> bool:
        """Return True if this program may use the terminal: else it would be stopped."""
        return os.tcgetpgrp(self._fd) == os.getpgrp()
