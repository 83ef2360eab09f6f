"""`gpusched cancel`, `requeue` and `stop`: wishes, stored first, then told to whoever works. Starts nothing."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING

import click

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.operations import queues, status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusched.core.model import JobState
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.host.store import Store

ACK_STEP_S = 0.05
ACK_WAIT_S = 5.0


class ChangeReport:
    """What happened to which job, told with equal texts together."""

    def __init__(self) -> None:
        self._by_text: dict[str, list[int]] = {}
        self.refused = False

    def add(self, job_id: int, text: str, *, refused: bool = False) -> None:
        self._by_text.setdefault(text, []).append(job_id)
        self.refused |= refused

    def print(self) -> None:
        from gpusched.views.words import ranges

        for text, ids in self._by_text.items():
            noun = "job" if len(ids) == 1 else "jobs"
            click.echo(f"{noun} {ranges(ids)}: {text}")

    @property
    def exit_code(self) -> int:
        return EXIT_SOME_FAILED if self.refused else EXIT_OK


def _wanted(jobs: Sequence[str], every: Sequence[JobState] | None, store: Store, flag: str) -> list[int]:
    """The ids that the words or the flag name."""
    from gpusched.host.store import job_table

    if every is None:
        if not jobs:
            raise GpuschedError("no job is named", hint=f"ids such as 3 or 3-7, or {flag}")
        return queues.parse_jobs(jobs, store)
    if jobs:
        raise GpuschedError(f"{flag} and jobs by id do not go together", hint="name the one or the other")
    return [row.id for row in job_table.jobs(store, every)]


# ---- cancel ----------------------------------------------------------------------------------------


@click.command(epilog="\b\nExamples:\n  gpusched cancel 12\n  gpusched cancel 3-7 9 -q commands")
@click.argument("jobs", nargs=-1, metavar="JOB...")
@queues.queue_option
@click.option("--all", "every", is_flag=True, help="Cancel every job that waits or runs.")
def cancel(jobs: tuple[str, ...], queue: str | None, every: bool) -> int:
    """Cancel jobs, running ones too.

    A running job gets TERM, and KILL after the grace time; a cancelled one stays so until it is queued again. Exit
    code 1 if a job had ended before.
    """
    from gpusched.core.model import JobState
    from gpusched.host.store import job_table, transitions

    place = queues.find(queue, to_change=True)
    store = queues.open_store(place, read_only=False)
    told = ChangeReport()
    alive = (JobState.RUNNING, JobState.QUEUED, JobState.HELD)
    try:
        ids = _wanted(jobs, alive if every else None, store, "--all")
        with store.transaction():
            before = {job_id: job_table.get(store, job_id).state for job_id in ids}
            after = {job_id: job_table.cancel(store, job_id, queues.now()) for job_id in ids}
        place.ring()
        dispatched = place.dispatcher() is not None
        for job_id in ids:
            _tell_cancel(place, store, told, job_id, before[job_id], after[job_id], dispatched=dispatched)
        for job_id, state, _ in transitions.take_stopped(store):
            if job_id not in before:
                told.add(job_id, f"{state.value} too, for what it waits for")
        if not ids:
            click.echo("no job waits or runs")
    finally:
        store.close()
    told.print()
    return told.exit_code


def _tell_cancel(
    place: QueueDir,
    store: Store,
    told: ChangeReport,
    job_id: int,
    before: JobState,
    after: JobState,
    *,
    dispatched: bool,
) -> None:
    from gpusched.core.model import JobState
    from gpusched.host.attempts import reaper
    from gpusched.host.store import job_table

    if after is JobState.RUNNING:
        if dispatched:
            told.add(job_id, "is being stopped: TERM, and KILL after the grace time")
            return
        sight = status.look(place, job_id, job_table.get(store, job_id).attempts)
        if sight.alive and reaper.terminate(sight.fields):
            told.add(job_id, "is being stopped by its own shepherd, since no dispatcher works on this queue")
        else:
            told.add(job_id, "is no longer seen running; the next dispatcher notes it as cancelled or as ended")
    elif before is JobState.CANCELLED:
        told.add(job_id, "was cancelled before")
    elif after is JobState.CANCELLED:
        told.add(job_id, "cancelled")
    else:
        told.add(job_id, f"has {after.value} before: nothing to cancel", refused=True)


# ---- requeue ---------------------------------------------------------------------------------------


@click.command(epilog="\b\nExamples:\n  gpusched requeue 12\n  gpusched requeue --failed -q commands")
@click.argument("jobs", nargs=-1, metavar="JOB...")
@queues.queue_option
@click.option("--failed", is_flag=True, help="Queue every failed job.")
def requeue(jobs: tuple[str, ...], queue: str | None, failed: bool) -> int:
    """Queue failed or cancelled jobs again.

    They keep their place in the order of the list, and all their tries are given back. Exit code 1 if a job was
    neither failed nor cancelled.
    """
    from gpusched.core.jobs.lifecycle import InvalidTransition
    from gpusched.core.model import JobState
    from gpusched.host.store import job_table, startable_jobs

    place = queues.find(queue, to_change=True)
    store = queues.open_store(place, read_only=False)
    told = ChangeReport()
    try:
        ids = _wanted(jobs, (JobState.FAILED,) if failed else None, store, "--failed")
        with store.transaction():
            for job_id in ids:
                try:
                    _tell_freed(store, told, job_id, job_table.requeue(store, job_id), "queued again")
                except InvalidTransition as error:
                    told.add(job_id, _why_not_again(error.state), refused=True)
        place.ring()
        told.print()
        if not ids:
            click.echo("no job has failed")
        elif startable_jobs.has_any(store):
            _tell_who_runs_them(place, store)
    finally:
        store.close()
    return told.exit_code


def _tell_freed(store: Store, told: ChangeReport, job_id: int, state: JobState, done: str) -> None:
    """That a job can start again; or that what it waits for has stopped it at once."""
    from gpusched.core.model import JobState
    from gpusched.host.store import job_table

    if state is JobState.QUEUED:
        told.add(job_id, done)
        return
    why = status.waits_for(store, job_table.get(store, job_id))
    told.add(job_id, f"stays {state.value}: it {why}; it is freed by itself once they can end well", refused=True)


def _why_not_again(state: JobState | None) -> str:
    word = state.value if state is not None else "new"
    verb = "has" if word == "succeeded" else "is"
    return f"{verb} {word}: only failed and cancelled jobs are queued again"


def _tell_who_runs_them(place: QueueDir, store: Store) -> None:
    by = status.dispatching(place)
    if by.alive and not (by.board is not None and by.board.closed):
        return
    who = f"its dispatcher is {by.board.closed}" if by.board is not None else "no dispatcher works on this queue"
    click.echo(f"{who}; to run what is queued: {queues.resume_command(place, store)}")


# ---- hold and release ------------------------------------------------------------------------------


@click.command(epilog="\b\nExample:\n  gpusched hold 12 14-20")
@click.argument("jobs", nargs=-1, metavar="JOB...")
@queues.queue_option
@click.option("--tag", metavar="TAG", help="Hold every waiting job that bears this tag.")
def hold(jobs: tuple[str, ...], queue: str | None, tag: str | None) -> int:
    """Keep waiting jobs from starting.

    They stay held, over all starts of the queue, until they are released. Exit code 1 if a job does not wait.
    """
    from gpusched.core.model import JobState

    return _move_all(jobs, queue, tag, JobState.QUEUED, "held", "hold")


@click.command(epilog="\b\nExamples:\n  gpusched release 12\n  gpusched release --tag ablation")
@click.argument("jobs", nargs=-1, metavar="JOB...")
@queues.queue_option
@click.option("--tag", metavar="TAG", help="Release every held job that bears this tag.")
def release(jobs: tuple[str, ...], queue: str | None, tag: str | None) -> int:
    """Let held jobs start again.

    Exit code 1 if a job is not held.
    """
    from gpusched.core.model import JobState

    return _move_all(jobs, queue, tag, JobState.HELD, "released", "release")


def _move_all(
    jobs: tuple[str, ...], queue: str | None, tag: str | None, from_state: JobState, done: str, verb: str
) -> int:
    from gpusched.core.jobs.lifecycle import InvalidTransition
    from gpusched.host.store import job_table, startable_jobs

    place = queues.find(queue, to_change=True)
    store = queues.open_store(place, read_only=False)
    told = ChangeReport()
    try:
        ids = _wanted(jobs, (from_state,) if tag else None, store, "--tag")
        ids = [job_id for job_id in ids if tag is None or tag in job_table.get(store, job_id).tags]
        with store.transaction():
            for job_id in ids:
                try:
                    after = job_table.hold(store, job_id) if verb == "hold" else job_table.release(store, job_id)
                    if verb == "hold":
                        told.add(job_id, done)
                    else:
                        _tell_freed(store, told, job_id, after, done)
                except InvalidTransition as error:
                    state = error.state.value if error.state is not None else "new"
                    told.add(job_id, f"is {state}: only {from_state.value} jobs can be {done}", refused=True)
        place.ring()
        told.print()
        if not ids:
            click.echo(f"no {from_state.value} job bears the tag {tag}")
        elif verb == "release" and startable_jobs.has_any(store):
            _tell_who_runs_them(place, store)
    finally:
        store.close()
    return told.exit_code


# ---- stop ------------------------------------------------------------------------------------------


@click.command(epilog="\b\nExamples:\n  gpusched stop\n  gpusched stop --now -q commands")
@queues.queue_option
@click.option("--now", "at_once", is_flag=True, help="Stop the running jobs too; they are queued again.")
def stop(queue: str | None, at_once: bool) -> int:
    """Ask a dispatcher to leave.

    It starts nothing new and leaves when the running jobs have ended, as after one Ctrl-C; with --now it stops them
    first, as after two.
    """
    place = queues.find(queue, to_change=True)
    store = queues.open_store(place, read_only=False)
    try:
        _stop(place, store, at_once=at_once)
    finally:
        store.close()
    return EXIT_OK


def _stop(place: QueueDir, store: Store, *, at_once: bool) -> None:
    from gpusched.core.model import JobState
    from gpusched.host.store import DiskFull, job_table, request_table
    from gpusched.views.words import count, short_path

    option = shlex.quote(queues.queue_name(place))
    name = short_path(place.path, queues.here())
    pid = place.dispatcher()
    if pid is None:
        click.echo(f"no dispatcher works on {name}: there is nothing to stop")
        running = job_table.counts(store)[JobState.RUNNING]
        if running:
            click.echo(f"{count(running, 'job')} may still run by itself: gpusched status -q {option}")
        return
    who = f"the dispatcher of {name}" + (f" (pid {pid})" if pid else "")
    running = job_table.counts(store)[JobState.RUNNING]
    try:
        request = request_table.add(store, "stop_now" if at_once else "stop", queues.now())
    except DiskFull as error:
        signal = f"kill {pid}" if at_once else f"kill -INT {pid}"
        same = f"make room on that disk; or ask by `{signal}`, which does the same and needs no room" if pid else ""
        raise GpuschedError(error.what, where=error.where, hint=same or error.hint, exit_code=error.exit_code) from None
    place.ring()
    heard = _wait(place, store, request)
    if heard is None:
        request_table.acknowledge(store, request, queues.now())  # nobody is left to hear it, and the next one must not
        click.echo(f"{who} has just left by itself")
    elif not heard:
        click.echo(f"{who} has been asked, but has not answered in {ACK_WAIT_S:g} s; it stops when it hears of it")
    elif at_once and running:
        click.echo(f"{who} stops {count(running, 'running job')}, queues what it stops again, and leaves")
    elif running:
        click.echo(f"{who} starts nothing new, and leaves at the end of {count(running, 'running job')}")
        click.echo(f"to stop them too: gpusched stop --now -q {option}")
    else:
        click.echo(f"{who} starts nothing new, and leaves")
    sys.stdout.flush()


def _wait(place: QueueDir, store: Store, request: int) -> bool | None:
    """Whether the request was heard in time; None: its dispatcher is gone."""
    from gpusched.host.store import request_table

    until = time.monotonic() + ACK_WAIT_S
    while not request_table.is_acknowledged(store, request):
        if place.dispatcher() is None:
            return True if request_table.is_acknowledged(store, request) else None
        if time.monotonic() >= until:
            return False
        time.sleep(ACK_STEP_S)
    return True
