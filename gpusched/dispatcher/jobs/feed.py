"""Sources of jobs while a queue is dispatched: a file that is edited, or a stream. Submits nothing."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass

from gpusched.common.errors import GpuschedError
from gpusched.core.model import JobSpec
from gpusched.lists.jobfile import JobFile, LineFeed

STILL_S = 1.0  # an edited file is read when it has not changed for this long
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs to submit. `append`: they come after what is there; else they are the whole list as it is now.

    `complete` says that what is not in a whole list is gone.
    """

    jobs: JobFile
    append: bool
    complete: bool


class Feed:
    """A source of jobs. This one has none: jobs come by other commands only. Moments are monotonic seconds."""

    def poll(self, now: float) -> Batch | None:
        """Return what has come since the last call."""
        return None

    def ended(self) -> bool:
        """Return True if nothing more can be on its way now."""
        return True

    def deadline(self) -> float | None:
        """Return when poll() wants to be called at the latest."""
        return None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Wake the dispatcher through its selector."""

    def detach(self) -> None:
        """Leave the selector."""


def _signature(stat: os.stat_result) -> tuple[int, int, int]:
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


class FileFeed(Feed):
    """A job file. Its first content was submitted by whoever made this; later ones are taken as they are saved."""

    def __init__(self, path: str, parse: Callable[[bytes], JobFile], taken: bytes, taken_stat: os.stat_result) -> None:
        self.path = path
        self._parse = parse
        self._taken = _signature(taken_stat)
        self._newline = taken.endswith(b"\n")  # of the last good content
        self._seen: tuple[tuple[int, int, int], float] | None = None

    def poll(self, now: float) -> Batch | None:
        try:
            signature = _signature(os.stat(self.path))
        except OSError:
            self._seen = None  # being replaced, or gone: the jobs stay
            return None
        if signature == self._taken:
            self._seen = None
            return None
        if self._seen is None or self._seen[0] != signature:
            self._seen = (signature, now)
            return None
        if now - self._seen[1] < STILL_S:
            return None
        with open(self.path, "rb") as file:
            data = file.read()
            if _signature(os.fstat(file.fileno())) != signature:
                return None
        self._taken, self._seen = signature, None
        if self._newline and not data.endswith(b"\n"):
            hint = "if it is whole, end its last line; the jobs go on as they were"
            raise GpuschedError("looks half-saved, since its last line has no end", where=self.path, hint=hint)
        jobs = self._parse(data)  # raises for a list that is refused; the old one stays
        if not jobs.specs:
            hint = "what waits goes on; `gpusched cancel` takes jobs away"
            raise GpuschedError("holds no command any more", where=self.path, hint=hint)
        self._newline = data.endswith(b"\n")
        return Batch(jobs, append=False, complete=True)

    def ended(self) -> bool:
        if self._seen is not None:
            return False
        try:
            return _signature(os.stat(self.path)) == self._taken
        except OSError:
            return True

    def deadline(self) -> float | None:
        return None if self._seen is None else self._seen[1] + STILL_S


class StreamFeed(Feed):
    """Lines that arrive on a descriptor, taken as they come. No job is taken away before a clean end of the stream.

    `begun` are the bytes that were read of it before.
    """

    def __init__(self, fd: int, lines: LineFeed, begun: bytes = b"") -> None:
        self._fd = fd
        self._lines = lines
        self._buffer = begun
        self._specs: list[JobSpec] = []
        self._over = False  # end of input seen
        self._clean = False
        self._end_taken = False
        self._selector: selectors.BaseSelector | None = None

    def attach(self, selector: selectors.BaseSelector) -> None:
        if self._over:
            return
        try:  # left blocking, since it is shared with whoever started us: read only when there is something
            selector.register(self._fd, selectors.EVENT_READ, self._read)
            self._selector = selector
        except PermissionError:  # a regular file is always readable
            while not self._over:
                self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:  # it was not blocking before us
            return
        except OSError:
            self._end(clean=False)
            return
        if data:
            self._buffer += data
        else:
            self._end(clean=True)

    def detach(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self._fd)
            self._selector = None

    def _end(self, *, clean: bool) -> None:
        self._over, self._clean = True, clean
        self.detach()

    def poll(self, now: float) -> Batch | None:
        if self._buffer:
            data, self._buffer = self._buffer, b""
            jobs = self._lines.feed(data)
            self._specs += jobs.specs
            return Batch(jobs, append=True, complete=False)
        if self._over and not self._end_taken:
            self._end_taken = True
            jobs = self._lines.finish()
            self._specs += jobs.specs
            whole = JobFile(tuple(self._specs), jobs.findings, jobs.complete)
            # what brought no command takes none away: whoever was to write them has probably failed
            return Batch(whole, append=False, complete=self._clean and bool(self._specs))
        return None

    def ended(self) -> bool:
        return self._end_taken

    def deadline(self) -> float | None:
        return 0.0 if self._buffer or (self._over and not self._end_taken) else None
