"""The log of a job, from its end backwards or as it grows, through its attempts. Changes no byte of it."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from dataclasses import dataclass
from typing import BinaryIO

from gpusched.common.errors import GpuschedError
from gpusched.core.model import ENDED_STATES, AttemptRow
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.queues import Notify, read_dispatcher
from gpusched.operations.status import read_attempt

STEP_S = 0.2


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
        if number is not None and number > len(attempts):
            raise GpuschedError(f"job {self.job_id} has no attempt {number}: it has had {len(attempts)}")
        if attempts:
            return attempts[-1 if number is None else number - 1]
        if self.choice.follow and self._may_start():
            self.notify(f"job {self.job_id} has not started yet")
            return self._next(0)
        state = job_table.get(self.store, self.job_id).state.value
        what = f"job {self.job_id} is {state} and has written nothing yet"
        raise GpuschedError(what, hint=f"`gpusched explain {self.job_id}` says why")

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
        with self._open(row) as log:
            if lines is not None:
                log.seek(_start_of_last(log, lines))
            while True:
                over = not self.choice.follow or self._is_over(row)  # before the rest is read: no byte is missed
                shutil.copyfileobj(log, out)
                out.flush()
                if over:
                    return
                time.sleep(STEP_S)

    def _open(self, row: AttemptRow) -> BinaryIO:
        name = row.error_log if self.choice.stderr else row.log
        if not name:
            raise GpuschedError(
                f"stdout and stderr of job {self.job_id} are in one log",
                where="--err",
                hint="leave out --err to print that log; `run --split-streams` keeps stderr in a log of its own",
            )
        path = f"{self.queue_dir.path}/{name}"
        try:
            return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
        except OSError as error:
            raise GpuschedError(f"the log cannot be read: {error.strerror}", where=path) from None

    def _is_over(self, row: AttemptRow) -> bool:
        if attempt_table.attempts(self.store, self.job_id)[row.number - 1].outcome is not None:
            return True
        if read_dispatcher(self.queue_dir).alive:
            return False
        return not read_attempt(self.queue_dir, row.job_id, row.number).alive


def _start_of_last(log: BinaryIO, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin."""
    size = os.fstat(log.fileno()).st_size
    if not size:
        return 0
    with mmap.mmap(log.fileno(), size, access=mmap.ACCESS_READ) as text:
        newline = size - 1 if text[-1:] == b"\n" else size  # the one that ends the last line, or would
        for _ in range(lines):
            newline = text.rfind(b"\n", 0, newline)
            if newline < 0:
                return 0
    return min(newline + 1, size)
