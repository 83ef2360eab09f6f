"""Waiting until jobs have ended. Changes nothing: the jobs go on when a wait is given up."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, EXIT_TIMED_OUT, GpuschedError
from gpusched.common.text import ranges
from gpusched.core.jobs.readiness import CAUSE_NOT_NEEDED
from gpusched.core.jobs.reconcile import COUNTED_NOWHERE
from gpusched.core.model import ENDED_STATES, JobState
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table
from gpusched.host.store.job_table import JobStanding
from gpusched.operations import queues
from gpusched.operations.addresses import find_jobs
from gpusched.operations.look.reasons import wait_reasons
from gpusched.operations.queues import Notify, OpenQueue, ignore, read_dispatcher
from gpusched.operations.run.resume import resume_command
from gpusched.views.changes import change_lines
from gpusched.views.words import count, fit

STEP_S = 0.1  # between two looks at the database's number of changes, which cost next to nothing
SHOWN_IDS = 60  # characters
LOOK_S = 5.0  # between two looks at the dispatcher and at the queue's files


class WaitReport(NamedTuple):
    """The end of a wait: its exit code, and how the jobs stand."""

    code: int
    jobs: Sequence[JobStanding]

    @property
    def sentence(self) -> str:
        states = Counter(job.state.value for job in self.jobs)
        words = [f"{states[state.value]} {state.value}" for state in JobState if states[state.value]]
        return f"{', '.join(words)} of {count(len(self.jobs), 'job')}"

    def document(self) -> dict[str, Any]:
        rows = [{"id": job.id, "state": job.state.value, "cause": job.cause or None} for job in self.jobs]
        return {"exit_code": self.code, "jobs": rows}


def wait_for(
    queue_dir: QueueDir,
    jobs: Sequence[str] = (),
    *,
    first_only: bool = False,
    timeout_s: float | None = None,
    needs_dispatcher: bool = False,
    notify: Notify = ignore,
) -> WaitReport:
    """Wait for these jobs, or all that are there now, to end; with `first_only`, for one of them.

    The code is the one that a run of these jobs would leave with, or EXIT_TIMED_OUT. `notify` gets what keeps jobs from
    starting. Raises GpuschedError for a job that is not there, or is cleaned away meanwhile, and where nobody
    dispatches though it `needs_dispatcher`.
    """
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    with queues.open_store(queue_dir) as store:
        ids = find_jobs(store, jobs, notify=notify) if jobs else job_table.ids(store, dispatched=True)
        said: set[str] = set()
        version, look_at_s, unfinished = -1, 0.0, list(ids)
        while True:
            now_s, newest = time.monotonic(), store.data_version()
            if newest != version or now_s >= look_at_s:
                version, look_at_s = newest, now_s + LOOK_S
                is_alone = needs_dispatcher and queue_dir.dispatcher() is None  # asked first: it may book, and leave
                if _are_over(store, ids, unfinished, first_only=first_only):
                    return _report(queue_dir, store, ids, is_named=bool(jobs), notify=notify)
                if is_alone:
                    raise _nobody(queue_dir, unfinished)
                for text in _hindrances(queue_dir, store, unfinished):
                    if text not in said:
                        notify(text)
                        said.add(text)
            if now_s >= until_s:
                left = sum(job.state not in ENDED_STATES for job in job_table.standings(store, ids))
                notify(f"{count(left, 'job')} of {len(ids)} {'has' if left == 1 else 'have'} not ended in time")
                return WaitReport(EXIT_TIMED_OUT, job_table.standings(store, ids))
            time.sleep(min(STEP_S, until_s - now_s))


def _nobody(queue_dir: QueueDir, unfinished: Sequence[int]) -> GpuschedError:
    problem = f"no dispatcher works on {queue_dir.path}, and job {unfinished[0]} has not ended"
    return GpuschedError(problem, hint="queue.start() or queue.run()", exit_code=EXIT_CANNOT_WORK)


def _are_over(store: Store, ids: Sequence[int], unfinished: list[int], *, first_only: bool) -> bool:
    """Return True if the wait is over. `unfinished` loses, from its end on, the jobs that have ended.

    So a wait for a hundred thousand jobs looks at one of them at a time; at the end it looks at all once more, since
    one may have been queued again.
    """
    if first_only:
        return not ids or any(job.state in ENDED_STATES for job in present(store, ids))
    while unfinished and present(store, unfinished[-1:])[0].state in ENDED_STATES:
        unfinished.pop()
    if not unfinished:
        unfinished += [job.id for job in present(store, ids) if job.state not in ENDED_STATES]
    return not unfinished


def present(store: Store, ids: Sequence[int]) -> list[JobStanding]:
    """Return how these jobs stand. Raises GpuschedError if one is not there."""
    found = job_table.standings(store, ids)
    if len(found) < len(ids):
        gone = ranges(set(ids) - {job.id for job in found})
        raise GpuschedError(f"there is no job {gone} any more: cleaned away", where=os.path.dirname(store.path))
    return found


def _report(queue_dir: QueueDir, store: Store, ids: Sequence[int], *, is_named: bool, notify: Notify) -> WaitReport:
    """Return the end of a wait, and name the jobs for which its code is not 0."""
    found = job_table.standings(store, ids)
    nowhere = (CAUSE_NOT_NEEDED,) if is_named else COUNTED_NOWHERE
    bad = [job for job in found if _is_bad(job, nowhere, is_named=is_named)]
    for state in (JobState.FAILED, JobState.CANCELLED):
        if some := [job.id for job in bad if job.state is state]:
            notify(f"{count(len(some), 'job')} {state.value}: {fit(ranges(some), SHOWN_IDS)}")
    if bad and not is_named and queue_dirs.is_standing(queue_dir):
        name = queues.queue_word(queue_dir)
        remedy = f"name those that are meant, or `gpusched clean -q {name}` removes what has ended"
        notify(f"earlier jobs count, too: {remedy}")
    return WaitReport(EXIT_SOME_FAILED if bad else EXIT_OK, found)


def _is_bad(job: JobStanding, nowhere: Collection[str], *, is_named: bool) -> bool:
    """Return True if a run would count the job as a failure. Who names a job means it, in the list or not."""
    if job.state is JobState.FAILED:
        return is_named or job.listed
    return job.state is JobState.CANCELLED and job.cause not in nowhere


def _hindrances(queue_dir: QueueDir, store: Store, unfinished: Sequence[int]) -> list[str]:
    """Return what keeps the jobs from starting or ending, as far as a person must act."""
    if not queue_dir.exists():
        raise GpuschedError("the queue was removed meanwhile", where=queue_dir.path)
    texts = []
    if job_table.counts(store)[JobState.HELD]:
        held = [job.id for job in job_table.standings(store, unfinished) if job.state is JobState.HELD]
        if held:
            noun, verb = ("job", "is") if len(held) == 1 else ("jobs", "are")
            hint = f"`gpusched release JOB -q {queues.queue_word(queue_dir)}` lets a job start"
            texts.append(f"{noun} {fit(ranges(held), SHOWN_IDS)} {verb} held: {hint}")
    dispatcher = read_dispatcher(queue_dir)
    if not dispatcher.alive:
        texts.append(f"no dispatcher works on this queue; to go on: {resume_command(queue_dir, store)}")
    elif dispatcher.closed:
        texts.append(f"its dispatcher starts nothing now: {dispatcher.closed}")
    else:
        reasons = wait_reasons(OpenQueue(queue_dir, store, dispatcher, queues.now()))
        in_vain: dict[str, list[int]] = {}
        for job_id in sorted(set(unfinished).intersection(reasons)):
            if reasons[job_id][0] == "never":
                in_vain.setdefault(reasons[job_id][1], []).append(job_id)
        texts += change_lines(in_vain)
    return texts
