"""The log of a job, from its end backwards or as it grows. Changes no byte of it."""

from __future__ import annotations

import mmap
import os
import shutil
import time
from contextlib import ExitStack, nullcontext
from typing import Any, BinaryIO, NamedTuple

from gpusched.common.errors import EXIT_OK, GpuschedError
from gpusched.common.text import without_numbers
from gpusched.core.documents import attempt_document
from gpusched.core.jobs.outcome import describe, exit_code_of
from gpusched.core.model import ENDED_STATES, AttemptRow, JobState, Outcome, OutcomeKind
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.addresses import find_job
from gpusched.operations.look.nodes import NodeLog
from gpusched.operations.look.reasons import wait_reasons
from gpusched.operations.look.status import read_attempt
from gpusched.operations.queues import Notify, ignore

STEP_S = 0.1
PATIENCE_S = 1.0  # before it is said that a job waits
LOOK_S = 2.0  # between two looks why


class LogChoice(NamedTuple):
    """The part of a log that is wanted: the last `lines` of it, or all; `attempt`, or the newest one.

    With `follow` it goes on as the job writes, to the end of the job, or of that attempt.
    """

    lines: int | None = None
    attempt: int | None = None
    stderr: bool = False
    follow: bool = False


def copy_log(queue_dir: QueueDir, job: str, out: BinaryIO, choice: LogChoice, *, notify: Notify = ignore) -> int:
    """Write the log of a job to `out`, and return 0; with `choice.follow`, the exit code of the job.

    Raises GpuschedError without a log.
    """
    with queues.open_store(queue_dir) as store:
        job_id = find_job(store, job, notify=notify)
        if not choice.follow:
            _copy(queue_dir, store, _find_attempt(queue_dir, store, job_id, choice.attempt), out, choice)
            return EXIT_OK
        number = choice.attempt or max(1, job_table.get(store, job_id).attempts)
        while True:
            _await_attempt(queue_dir, store, job_id, number, notify)
            code = _copy(queue_dir, store, _find_attempt(queue_dir, store, job_id, number), out, choice)
            row, outcome = job_table.get(store, job_id), _find_attempt(queue_dir, store, job_id, number).outcome
            is_over = choice.attempt or row.state in ENDED_STATES or queue_dir.dispatcher() is None
            if outcome is not None and not outcome.ok:
                notify(f"job {job_id} ended: {describe(outcome)}" + ("" if is_over else "; it is tried again"))
            if is_over:
                return code
            number += 1


def _await_attempt(queue_dir: QueueDir, store: Store, job_id: int, number: int, notify: Notify) -> None:
    """Wait until this attempt has begun. Raises GpuschedError if the job has ended without it."""
    said, say_at_s = "", time.monotonic() + PATIENCE_S
    while (row := job_table.get(store, job_id)).attempts < number:
        if row.state in ENDED_STATES:
            _find_attempt(queue_dir, store, job_id, number)  # says what is missing
        if number == 1 and time.monotonic() >= say_at_s:  # of a later attempt, the end of the last one is said
            with queues.open_queue(queue_dir) as queue:
                reasons = {} if row.state is JobState.HELD else wait_reasons(queue, until=job_id)
            _, why = reasons.get(job_id, ("", _why(queue_dir, job_id)))
            if (kind := without_numbers(why)) != said:
                notify(f"job {job_id} is {row.state.value}: {why}")
            said, say_at_s = kind, time.monotonic() + LOOK_S
        time.sleep(STEP_S)


def _why(queue_dir: QueueDir, job_id: int) -> str:
    return f"`gpusched explain {job_id} -q {queues.queue_word(queue_dir)}` says why"


def _copy(queue_dir: QueueDir, store: Store, row: AttemptRow, out: BinaryIO, choice: LogChoice) -> int:
    """Write the log of an attempt, with `follow` to its end; return its exit code, or 0 while it runs."""
    node_log = NodeLog(queue_dir, store, row.job_id, row.number)
    with ExitStack() as stack:
        log: BinaryIO | None = None
        while True:
            node_log.ask()
            row = _find_attempt(queue_dir, store, row.job_id, row.number)  # where its log lies is known late
            is_whole = node_log.is_whole(f"{queue_dir.path}/{row.log}")
            code = _exit_code(queue_dir, store, row)  # before the rest is read: no byte is missed
            if log is None and (row.log or not node_log.exists()):
                log = _open(queue_dir, row, choice, is_over=code is not None and is_whole)
                if log is not None:
                    stack.enter_context(log)
                    log.seek(0 if choice.lines is None else _start_of_last(log, choice.lines))
            if log is not None:
                shutil.copyfileobj(log, out)
                out.flush()
            if is_whole and (code is not None or not choice.follow):
                return code or EXIT_OK
            time.sleep(STEP_S)


def log_document(queue_dir: QueueDir, job: str, choice: LogChoice, *, notify: Notify = ignore) -> dict[str, Any]:
    """Return for programs where the log of a job lies, and what it belongs to. Raises GpuschedError without one."""
    with queues.open_store(queue_dir) as store:
        row = _find_attempt(queue_dir, store, find_job(store, job, notify=notify), choice.attempt)
        is_complete = _exit_code(queue_dir, store, row) is not None
        log = _open(queue_dir, row, choice, is_over=is_complete)
        with nullcontext() if log is None else log:
            size = 0 if log is None else os.fstat(log.fileno()).st_size
    path = f"{queue_dir.path}/{row.error_log if choice.stderr else row.log}"
    about = {"job": row.job_id, "attempt": row.number, "path": path, "bytes": size, "is_complete": is_complete}
    return {"queue": queue_dir.path, **about, **attempt_document(row, queue_dir.path)}


def _find_attempt(queue_dir: QueueDir, store: Store, job_id: int, number: int | None) -> AttemptRow:
    attempts = attempt_table.attempts(store, job_id)
    if number is not None and attempts and number > len(attempts):
        raise GpuschedError(f"job {job_id} has no attempt {number}: it has had {len(attempts)}")
    if not attempts:
        state = job_table.get(store, job_id).state.value
        what = f"job {job_id} is {state} and has written nothing yet"
        raise GpuschedError(what, hint=_why(queue_dir, job_id))
    return attempts[-1 if number is None else number - 1]


def _open(queue_dir: QueueDir, row: AttemptRow, choice: LogChoice, *, is_over: bool) -> BinaryIO | None:
    """Return the log; None where there is none yet, or where an attempt that is followed has never made one."""
    name = row.error_log if choice.stderr else row.log
    if not row.log:
        raise GpuschedError(f"job {row.job_id} was an interactive one: what it wrote went to its terminal")
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
        if isinstance(error, FileNotFoundError) and (choice.follow or not is_over):
            return None
        raise GpuschedError(f"the log cannot be read: {error.strerror}", where=path) from None


def _exit_code(queue_dir: QueueDir, store: Store, row: AttemptRow) -> int | None:
    """Return the exit code of an attempt; None while it runs, or its dispatcher has not noted the end yet."""
    is_gone = queue_dir.dispatcher() is None
    status = read_attempt(queue_dir, row.job_id, row.number)
    # last: an end that was noted meanwhile counts
    outcome = _find_attempt(queue_dir, store, row.job_id, row.number).outcome
    if outcome is not None:
        return exit_code_of(outcome)
    if not is_gone or status.alive:
        return None
    signal, code = status.fields.get("signal"), status.fields.get("exit_code")
    if signal:
        return exit_code_of(Outcome(OutcomeKind.SIGNALLED, signal=int(signal)))
    return exit_code_of(Outcome(OutcomeKind.EXITED if code else OutcomeKind.LOST, int(code) if code else None))


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
