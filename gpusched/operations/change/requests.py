"""Requests to change jobs, pause a queue or stop a dispatcher: stored, then announced to it. Starts none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.config import layers
from gpusched.core.jobs.lifecycle import InvalidTransition
from gpusched.core.model import JobState
from gpusched.core.plan.board import paused_text
from gpusched.host.attempts import reaper
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import (
    DiskFull,
    Store,
    TransientError,
    job_table,
    meta_table,
    request_table,
    startable_jobs,
    transitions,
)
from gpusched.operations import queues
from gpusched.operations.addresses import find_jobs
from gpusched.operations.look.reasons import describe_dependencies
from gpusched.operations.look.status import read_attempt
from gpusched.operations.queues import read_dispatcher
from gpusched.operations.run.resume import resume_command
from gpusched.views.changes import stop_lines
from gpusched.views.words import count

ACK_STEP_S = 0.05
ACK_WAIT_S = 5.0
OPEN_STATES = (JobState.RUNNING, JobState.QUEUED, JobState.HELD)


@dataclass(slots=True)
class ChangeReport:
    """The ids of the jobs by what happened to them. `refused`: those with which nothing could be done.

    `notes`: texts beside. `facts`: values of the queue as a whole, for programs.
    """

    queue: str  # its path
    jobs: dict[str, list[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, job_id: int, text: str, *, refused: bool = False) -> None:
        self.jobs.setdefault(text, []).append(job_id)
        self.refused |= {job_id} if refused else set()

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        texts = ((job_id, text) for text, ids in self.jobs.items() for job_id in ids)
        jobs = [{"id": job_id, "text": text, "refused": job_id in self.refused} for job_id, text in texts]
        return {"queue": self.queue, **self.facts, "jobs": jobs, "notes": self.notes}


def _select(
    store: Store, jobs: Sequence[str], flag: str, states: Sequence[JobState] = (), tag: str | None = None
) -> list[int]:
    """Return the ids of the jobs that are named, or of all in these states (with this tag), which `flag` stands for."""
    if not states:
        if not jobs:
            raise GpuschedError("no job is named", hint=f"ids such as 3 or 3-7, or {flag}")
        return find_jobs(store, jobs, to_change=True)
    if jobs:
        raise GpuschedError(f"{flag} and jobs by id do not go together", hint="name the one or the other")
    return job_table.ids(store, states, [] if tag is None else [tag], dispatched=JobState.RUNNING not in states)


# ---- cancel ----------------------------------------------------------------------------------------


def cancel(queue_dir: QueueDir, jobs: Sequence[str] = (), *, every: bool = False) -> ChangeReport:
    """Cancel these jobs, or every one that waits or runs. Running ones are stopped by the dispatcher."""
    report = ChangeReport(queue_dir.path)
    with queues.open_store(queue_dir, read_only=False) as store:
        ids = _select(store, jobs, "--all", OPEN_STATES if every else ())
        before = {job_id: job_table.get(store, job_id).state for job_id in ids}  # one may be cancelled with another
        after: dict[int, JobState] = {}

        def cancel_one(job_id: int) -> None:
            after[job_id] = job_table.cancel(store, job_id, queues.now())

        store.change_each(ids, cancel_one)
        queue_dir.ring()
        dispatched = queue_dir.dispatcher() is not None
        for job_id in ids:
            if after[job_id] is JobState.RUNNING:
                report.add(job_id, _stop_running(queue_dir, store, job_id, dispatched=dispatched))
            elif before[job_id] is JobState.CANCELLED:
                report.add(job_id, "was cancelled before")
            elif after[job_id] is JobState.CANCELLED:
                report.add(job_id, "cancelled")
            else:
                report.add(job_id, f"has {after[job_id].value} before: nothing to cancel", refused=True)
        for job_id, state, _ in transitions.take_stopped(store):
            if job_id not in before:
                report.add(job_id, f"{state.value} too, for what it waits for")
    report.notes += [] if ids else ["no job waits or runs"]
    return report


def _stop_running(queue_dir: QueueDir, store: Store, job_id: int, *, dispatched: bool) -> str:
    job = job_table.get(store, job_id)
    if dispatched and job.origin != "exec":
        return "is being stopped: TERM, and KILL after the grace time"
    if terminate(queue_dir, job_id, job.attempts):
        alone = " without a dispatcher, since none works on this queue"
        return "is being stopped" + ("" if job.origin == "exec" else alone)
    return "is no longer seen running; the next dispatcher notes the cancellation or the end"


def terminate(queue_dir: QueueDir, job_id: int, number: int) -> bool:
    """Have the shepherd of an open attempt stop it; return False if none is there."""
    attempt = read_attempt(queue_dir, job_id, number)
    return attempt.alive and reaper.terminate(attempt.fields)


# ---- requeue, hold and release ---------------------------------------------------------------------


class JobChange(NamedTuple):
    """A change of one job: `apply` brings it to `state`, unless its dependencies stop it at once.

    `flag` stands for all jobs in the state `before`.
    """

    apply: Callable[[Store, int], JobState]
    before: JobState
    flag: str
    state: JobState
    done: str
    rule: str


REQUEUE = JobChange(
    job_table.requeue,
    JobState.FAILED,
    "--failed",
    JobState.QUEUED,
    done="queued again",
    rule="only failed and cancelled jobs are queued again (--again: succeeded ones too)",
)
REPEAT = REQUEUE._replace(
    apply=partial(job_table.requeue, again=True),
    rule="only jobs that have ended are queued again",
)
HOLD = JobChange(job_table.hold, JobState.QUEUED, "--all", JobState.HELD, "held", "only queued jobs can be held")
RELEASE = JobChange(
    job_table.release, JobState.HELD, "--all", JobState.QUEUED, "released", "only held jobs can be released"
)


def requeue(
    queue_dir: QueueDir, jobs: Sequence[str] = (), *, failed: bool = False, again: bool = False
) -> ChangeReport:
    """Queue these failed or cancelled jobs again, or every failed one, with all their tries.

    With `again`, jobs that have succeeded too.
    """
    return _change_each(queue_dir, jobs, REPEAT if again else REQUEUE, every=failed)


def requeue_failed_among(queue_dir: QueueDir, jobs: Sequence[str]) -> None:
    """Queue those of these jobs again that have failed."""
    with queues.open_store(queue_dir) as store:
        ids = {str(job_id) for job_id in job_table.ids(store, [JobState.FAILED])}
    if failed := [job for job in jobs if job in ids]:
        requeue(queue_dir, failed)


def hold(queue_dir: QueueDir, jobs: Sequence[str] = (), *, every: bool = False, tag: str | None = None) -> ChangeReport:
    """Keep these waiting jobs from starting, or every waiting one, or every one with this tag."""
    return _change_each(queue_dir, jobs, HOLD, every=every or tag is not None, tag=tag)


def release(
    queue_dir: QueueDir, jobs: Sequence[str] = (), *, every: bool = False, tag: str | None = None
) -> ChangeReport:
    """Let these held jobs start again, or every held one, or every one with this tag."""
    return _change_each(queue_dir, jobs, RELEASE, every=every or tag is not None, tag=tag)


def _change_each(
    queue_dir: QueueDir, jobs: Sequence[str], change: JobChange, *, every: bool, tag: str | None = None
) -> ChangeReport:
    """Change each job, and report what was done and what was not."""
    report = ChangeReport(queue_dir.path)
    with queues.open_store(queue_dir, read_only=False) as store:
        ids = _select(store, jobs, change.flag, [change.before] if every else (), tag)
        store.change_each(ids, lambda job_id: _change_one(store, job_id, change, report))
        queue_dir.ring()
        if not ids:
            report.notes.append(f"no job was {change.done}")
        elif change.state is JobState.QUEUED:
            report.notes += have_them_run(queue_dir, store)
    return report


def _change_one(store: Store, job_id: int, change: JobChange, report: ChangeReport) -> None:
    job = job_table.get(store, job_id)
    before = job.state
    if job.origin in ("exec", "lease"):
        whose = "an interactive one, which nobody starts again" if job.origin == "exec" else "one of a cluster's head"
        return report.add(job_id, f"is {whose}", refused=True)
    try:
        state = change.apply(store, job_id)
    except InvalidTransition:
        verb = "has" if before in (JobState.SUCCEEDED, JobState.FAILED) else "is"
        rule = change.rule
        if before is JobState.RUNNING and change.before is JobState.FAILED:
            rule = "`gpusched cancel` stops it, and then it can be queued again"
        report.add(job_id, f"{verb} {before.value}: {rule}", refused=True)
        return
    if state is change.state:
        report.add(job_id, change.done)
        return
    why = describe_dependencies(store, job_table.get(store, job_id))
    report.add(job_id, f"stays {state.value}: it {why}; it is freed by itself once they can end well", refused=True)


def have_them_run(queue_dir: QueueDir, store: Store) -> list[str]:
    """Start a dispatcher of a standing queue that has none; return what people should know, or type to have jobs run.

    Nothing if a dispatcher runs the queued jobs already.
    """
    if meta_table.is_paused(store):
        return [paused_text(queue_dir.name)]
    dispatcher = read_dispatcher(queue_dir)
    closed = dispatcher.board.closed if dispatcher.board is not None else ""
    closed = "" if closed == paused_text(queue_dir.name) else closed  # it has not heard yet that the pause is over
    if not startable_jobs.has_any(store) or (dispatcher.alive and not closed):
        return []
    if not dispatcher.alive and meta_table.source(store) is None:
        from gpusched.operations.run.background import autostart

        notes: list[str] = []
        if autostart(queue_dir, layers.load().settings, notes.append):
            return [*notes, "a dispatcher was started in the background"]
    who = f"its dispatcher is {closed}" if closed else "no dispatcher works on this queue"
    return [f"{who}; to run what is queued: {resume_command(queue_dir, store)}"]


# ---- stop ------------------------------------------------------------------------------------------


def stop(queue_dir: QueueDir, *, at_once: bool = False) -> ChangeReport:
    """Ask the dispatcher of a queue to leave, and wait a moment for its answer. `at_once` stops running jobs too.

    Its answer is nobody (there is no dispatcher), heard, silent (not heard in time), or left (it left before it heard).
    """

    def report(answer: str) -> ChangeReport:
        label, name = queues.queue_label(queue_dir), queues.queue_word(queue_dir)
        lines = stop_lines(pid, running, answer, queue=label, option=name, at_once=at_once, is_pool=is_pool)
        return ChangeReport(queue_dir.path, notes=lines, facts={"pid": pid, "running": running, "answer": answer})

    with queues.open_store(queue_dir, read_only=False) as store:
        if cluster := meta_table.cluster_of(store):
            hint = f"`gpusched cluster down` ends it; `gpusched pause -q {cluster}` lets nothing new start"
            raise GpuschedError(f"is the queue of the cluster {cluster}", where=queue_dir.path, hint=hint)
        pid = queue_dir.dispatcher()
        running = job_table.counts(store)[JobState.RUNNING]
        is_pool = meta_table.maker(store) == "pool"
        if pid is None:
            return report("nobody")
        try:
            request = request_table.add(store, "stop_now" if at_once else "stop", queues.now())
        except TransientError as error:
            if pid:
                signal = "kill" if at_once else "kill -INT"
                remedy = "make room on it" if isinstance(error, DiskFull) else error.hint
                error.hint = f"{remedy}; or use `{signal} {pid}`, which does the same and writes nothing"
            raise
        queue_dir.ring()
        answer = _await_answer(queue_dir, store, request)
        if answer == "silent" and not pid:
            raise GpuschedError(
                "its lock is held by a process that cannot be seen from here (another container?), and nobody answers",
                where=queue_dir.path,
                hint="it stops when it reads the request; run `gpusched stop` where its dispatcher runs",
                exit_code=EXIT_CANNOT_WORK,
            )
        if answer == "left":
            # Nobody is left to hear it, and the next dispatcher must not.
            request_table.acknowledge(store, request, queues.now())
        return report(answer)


def _await_answer(queue_dir: QueueDir, store: Store, request: int) -> str:
    until = time.monotonic() + ACK_WAIT_S
    while not request_table.is_acknowledged(store, request):
        if queue_dir.dispatcher() is None:
            return "heard" if request_table.is_acknowledged(store, request) else "left"
        if time.monotonic() >= until:
            return "silent"
        time.sleep(ACK_STEP_S)
    return "heard"


# ---- pause and resume -----------------------------------------------------------------------------


def set_paused(queue_dir: QueueDir, *, paused: bool) -> ChangeReport:
    """Let nothing new start in this queue, or let it go on; running jobs are left alone."""
    queue, name = f"the queue {queues.queue_label(queue_dir)}", queues.queue_word(queue_dir)
    with queues.open_store(queue_dir, read_only=False) as store:
        with store.transaction():
            was_paused = meta_table.is_paused(store)
            meta_table.write(store, "paused", str(queues.now()) if paused else "")
        queue_dir.ring()
        if not paused:
            notes = [f"{queue} goes on" if was_paused else f"{queue} is not paused", *have_them_run(queue_dir, store)]
        else:
            running = count(job_table.counts(store)[JobState.RUNNING], "job")
            state = "was paused before" if was_paused else "is paused"
            notes = [
                f"{queue} {state}: nothing new starts, what runs goes on ({running})",
                f"to go on: gpusched resume -q {name}",
            ]
    return ChangeReport(queue_dir.path, notes=notes, facts={"paused": paused, "changed": paused is not was_paused})
