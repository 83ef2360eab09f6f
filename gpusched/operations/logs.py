"""The log of a job, from its end backwards or as it grows. Changes no byte of it."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from dataclasses import dataclass
from typing import BinaryIO

from gpusched.common.errors import GpuschedError
from gpusched.core.model import AttemptRow
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.queues import Notify, ignore, read_dispatcher
from gpusched.operations.standing.addresses import find_job
from gpusched.operations.status import read_attempt

STEP_S = 0.2


@dataclass(frozen=True, slots=True)
class LogChoice:
    """The part of a log that is wanted: the last `lines` of it, or all; `attempt`, or the newest one.

    With `follow` it goes on as the job writes, to the end of this attempt.
    """

    lines: int | None = None
    attempt: int | None = None
    stderr: bool = False
    follow: bool = False


def copy_log(queue_dir: QueueDir, job: str, out: BinaryIO, choice: LogChoice, *, notify: Notify = ignore) -> None:
    """Write the log of a job to `out`. Raises GpuschedError without one."""
    with queues.open_store(queue_dir) as store:
        row = _find_attempt(store, find_job(store, job, notify=notify), choice.attempt)
        with _open(queue_dir, row, stderr=choice.stderr) as log:
            if choice.lines is not None:
                log.seek(_start_of_last(log, choice.lines))
            while True:
                over = not choice.follow or _is_over(
                    queue_dir, store, row
                )  # before the rest is read: no byte is missed
                shutil.copyfileobj(log, out)
                out.flush()
                if over:
                    return
                time.sleep(STEP_S)


def _find_attempt(store: Store, job_id: int, number: int | None) -> AttemptRow:
    attempts = attempt_table.attempts(store, job_id)
    if number is not None and number > len(attempts):
        raise GpuschedError(f"job {job_id} has no attempt {number}: it has had {len(attempts)}")
    if not attempts:
        state = job_table.get(store, job_id).state.value
        what = f"job {job_id} is {state} and has written nothing yet"
        raise GpuschedError(what, hint=f"`gpusched explain {job_id}` says why")
    return attempts[-1 if number is None else number - 1]


def _open(queue_dir: QueueDir, row: AttemptRow, *, stderr: bool) -> BinaryIO:
    name = row.error_log if stderr else row.log
    if not name:
        raise GpuschedError(
            f"stdout and stderr of job {row.job_id} are in one log",
            where="--err",
            hint="leave out --err to print that log; `run --split-streams` keeps stderr in a log of its own",
        )
    path = f"{queue_dir.path}/{name}"
    try:
        return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError as error:
        raise GpuschedError(f"the log cannot be read: {error.strerror}", where=path) from None


def _is_over(queue_dir: QueueDir, store: Store, row: AttemptRow) -> bool:
    if attempt_table.attempts(store, row.job_id)[row.number - 1].outcome is not None:
        return True
    if read_dispatcher(queue_dir).alive:
        return False
    return not read_attempt(queue_dir, row.job_id, row.number).alive


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
