"""The exception for errors that are shown to users, and the exit codes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_CANNOT_WORK = 3
EXIT_SOFTWARE = 70
EXIT_DISPATCHED_ELSEWHERE = 75
EXIT_TIMED_OUT = 124  # as of timeout(1)
EXIT_INTERRUPTED = 130
EXIT_QUIT = 131
EXIT_TERMINATED = 143
DAMAGED = "it is left as it is: restore it, or move its directory away to begin afresh (jobs run again)"  # a hint


class GpuschedError(Exception):
    """An error for people: the problem, its place, and the remedy.

    `what` is one sentence without a final full stop; `where` names a file, line, device or option (may be
    empty); `hint` is the remedy (may be empty); `exit_code` is one of the codes above.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", exit_code: int = EXIT_USAGE) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  {self.hint}" if self.hint else head


@contextmanager
def stored_value() -> Iterator[None]:
    """Turn the error of a conversion into one about the damaged queue.db; a decorator too."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        what = f"is damaged ({type(error).__name__}: {error})"
        raise GpuschedError(what, where="queue.db", hint=DAMAGED, exit_code=EXIT_CANNOT_WORK) from error


_DISK_FULL = "the disk is full"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def disk_full(where: str, detail: str = "") -> str:
    """Return the sentence about a full disk, or a quota that is used up: of this file or directory."""
    return f"{_DISK_FULL} ({where})" + (detail and f": {detail}")


def is_disk_full(error: BaseException | str) -> bool:
    """Return True if this is the error of a full disk or of a used up quota, or its text."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return str(error).startswith((_DISK_FULL, *map(os.strerror, _NO_ROOM)))
