"""The log of a job, from its end backwards or as it grows, through its attempts. Changes no byte of it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, BinaryIO

import click

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import status

if TYPE_CHECKING:
    from gpusched.core.model import AttemptRow
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.host.store import Store

STEP_S = 0.2
BLOCK_BYTES = 1 << 16


class Log:
    """The log of one job. `number` names one attempt; without it the newest, and when following those after it."""

    def __init__(self, place: QueueDir, store: Store, job_id: int, *, stderr: bool, number: int | None) -> None:
        self._place, self._store, self._job_id = place, store, job_id
        self._stderr, self._number = stderr, number

    def print(self, out: BinaryIO, *, lines: int | None, follow: bool) -> None:
        """Write the log to `out`. Raises GpuschedError where there is none."""
        row = self._find(wait=follow)
        if row is None:
            return
        while True:
            self._print_one(row, out, lines, follow=follow)
            if not follow or self._number is not None:
                return
            following = self._next(row.number)
            if following is None:
                return
            _say(f"attempt {following.number} of job {self._job_id}")
            row, lines = following, None

    def _find(self, *, wait: bool) -> AttemptRow | None:
        attempts = attempt_table.attempts(self._store, self._job_id)
        if self._number is not None and not any(row.number == self._number for row in attempts):
            have = f"it has had {len(attempts)}" if attempts else "it has not started yet"
            raise GpuschedError(f"job {self._job_id} has no attempt {self._number}: {have}")
        if attempts:
            return attempts[-1] if self._number is None else attempts[self._number - 1]
        if wait and self._goes_on():
            _say(f"job {self._job_id} has not started yet")
            return self._next(0)
        state = job_table.get(self._store, self._job_id).state.value
        raise GpuschedError(
            f"job {self._job_id} is {state} and has written nothing yet",
            hint=f"`gpusched explain {self._job_id}` says why",
            exit_code=EXIT_USAGE,
        )

    def _goes_on(self) -> bool:
        """Whether another attempt may begin: the job waits, and somebody dispatches it."""
        from gpusched.core.model import ENDED_STATES

        ended = job_table.get(self._store, self._job_id).state in ENDED_STATES
        return not ended and status.dispatching(self._place).alive

    def _next(self, number: int) -> AttemptRow | None:
        """The attempt after this one, waited for while it may come."""
        while True:
            attempts = attempt_table.attempts(self._store, self._job_id)
            if len(attempts) > number:
                return attempts[number]
            if not self._goes_on():
                return None
            time.sleep(STEP_S)

    def _print_one(self, row: AttemptRow, out: BinaryIO, lines: int | None, *, follow: bool) -> None:
        name = row.error_log if self._stderr else row.log
        if not name:
            raise GpuschedError(
                f"stdout and stderr of job {self._job_id} are in one log",
                where="--err",
                hint="without --err it is printed; --split-streams of `gpusched run` parts them",
            )
        path = f"{self._place.path}/{name}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise GpuschedError(f"the log cannot be read: {error.strerror}", where=path) from None
        try:
            if lines is not None:
                os.lseek(fd, _start_of_last(fd, lines), os.SEEK_SET)
            while True:
                over = not follow or self._is_over(row)  # asked before the rest is read, so that no byte is missed
                while data := os.read(fd, BLOCK_BYTES):
                    out.write(data)
                out.flush()
                if over:
                    return
                time.sleep(STEP_S)
        finally:
            os.close(fd)

    def _is_over(self, row: AttemptRow) -> bool:
        now = attempt_table.attempts(self._store, self._job_id)[row.number - 1]
        if now.outcome is not None:
            return True
        return not status.dispatching(self._place).alive and not status.look(self._place, row.job_id, row.number).alive


def _start_of_last(fd: int, lines: int) -> int:
    """Where the last `lines` lines begin."""
    at = os.fstat(fd).st_size
    if lines == 0:
        return at
    wanted = lines + (1 if at and os.pread(fd, 1, at - 1) == b"\n" else 0)  # a newline at the end ends a line
    while at > 0:
        begin = max(0, at - BLOCK_BYTES)
        block = os.pread(fd, at - begin, begin)
        found = block.count(b"\n")
        if found >= wanted:
            place = len(block)
            for _ in range(wanted):
                place = block.rindex(b"\n", 0, place)
            return begin + place + 1
        wanted -= found
        at = begin
    return 0


def _say(text: str) -> None:
    click.echo(f"gpusched: {text}", err=True)
