"""The log of a job, from its end backwards or as it grows, through its attempts. Changes no byte of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import BinaryIO

from gpusched.common.errors import EXIT_USAGE, GpuschedError
from gpusched.core.model import ENDED_STATES, AttemptRow
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.dispatchers import read_dispatcher
from gpusched.operations.queues import Notify
from gpusched.operations.status import read_attempt

STEP_S = 0.2
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The part of a log that is wanted: the last `lines` of it, or all; `attempt`, or the newest one.

    With `follow` it goes on as the job writes, through the attempts that come after, to the end of the job.
    """

    lines: int | None = None
    attempt: int | None = None
    stderr: bool = False
    follow: bool = False


def copy_log(queue_dir: QueueDir, job: str, out: BinaryIO, choice: LogChoice, *, notify: Notify) -> None:
    """Write the log of a job to `out`; `notify` gets a line for each new attempt. Raises GpuschedError without one."""
    with queues.open_store(queue_dir) as store:
        _JobLog(queue_dir, store, queues.parse_job(job, store), choice, notify).copy(out)


@dataclass(frozen=True, slots=True)
class _JobLog:
    queue_dir: QueueDir
    store: Store
    job_id: int
    choice: LogChoice
    notify: Notify

    def copy(self, out: BinaryIO) -> None:
        row, lines = self._first(), self.choice.lines
        while row is not None:
            self._copy_attempt(row, out, lines)
            if not self.choice.follow or self.choice.attempt is not None:
                return
            row, lines = self._next(row.number), None
            if row is not None:
                self.notify(f"attempt {row.number} of job {self.job_id}")

    def _first(self) -> AttemptRow | None:
        attempts, number = attempt_table.attempts(self.store, self.job_id), self.choice.attempt
        if number is not None and not any(row.number == number for row in attempts):
            have = f"it has had {len(attempts)}" if attempts else "it has not started yet"
            raise GpuschedError(f"job {self.job_id} has no attempt {number}: {have}")
        if attempts:
            return attempts[-1] if number is None else attempts[number - 1]
        if self.choice.follow and self._may_start():
            self.notify(f"job {self.job_id} has not started yet")
            return self._next(0)
        state = job_table.get(self.store, self.job_id).state.value
        raise GpuschedError(
            f"job {self.job_id} is {state} and has written nothing yet",
            hint=f"`gpusched explain {self.job_id}` says why",
            exit_code=EXIT_USAGE,
        )

    def _may_start(self) -> bool:
        """Return True if another attempt may begin: the job has not ended, and a dispatcher works."""
        ended = job_table.get(self.store, self.job_id).state in ENDED_STATES
        return not ended and read_dispatcher(self.queue_dir).alive

    def _next(self, number: int) -> AttemptRow | None:
        """Wait for the attempt after this one, while it may come."""
        while True:
            attempts = attempt_table.attempts(self.store, self.job_id)
            if len(attempts) > number:
                return attempts[number]
            if not self._may_start():
                return None
            time.sleep(STEP_S)

    def _copy_attempt(self, row: AttemptRow, out: BinaryIO, lines: int | None) -> None:
        fd = self._open(row)
        try:
            if lines is not None:
                os.lseek(fd, _start_of_last(fd, lines), os.SEEK_SET)
            while True:
                over = not self.choice.follow or self._is_over(row)  # before the rest is read: no byte is missed
                while data := os.read(fd, BLOCK_BYTES):
                    out.write(data)
                out.flush()
                if over:
                    return
                time.sleep(STEP_S)
        finally:
            os.close(fd)

    def _open(self, row: AttemptRow) -> int:
        name = row.error_log if self.choice.stderr else row.log
        if not name:
            raise GpuschedError(
                f"stdout and stderr of job {self.job_id} are in one log",
                where="--err",
                hint="leave out --err to print that log; `run --split-streams` keeps stderr in a log of its own",
            )
        path = f"{self.queue_dir.path}/{name}"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise GpuschedError(f"the log cannot be read: {error.strerror}", where=path) from None

    def _is_over(self, row: AttemptRow) -> bool:
        if attempt_table.attempts(self.store, self.job_id)[row.number - 1].outcome is not None:
            return True
        if read_dispatcher(self.queue_dir).alive:
            return False
        return not read_attempt(self.queue_dir, row.job_id, row.number).alive


def _start_of_last(fd: int, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin."""
    at = os.fstat(fd).st_size
    if lines == 0:
        return at
    missing = lines + (1 if at and os.pread(fd, 1, at - 1) == b"\n" else 0)  # a newline at the end ends a line
    while at > 0:
        begin = max(0, at - BLOCK_BYTES)
        block = os.pread(fd, at - begin, begin)
        number = block.count(b"\n")
        if number >= missing:
            offset = len(block)
            for _ in range(missing):
                offset = block.rindex(b"\n", 0, offset)
            return begin + offset + 1
        missing -= number
        at = begin
    return 0
