"""One line for each job of a long list: its state, its newest attempt, how that ended. Reads no clock and no file."""

from __future__ import annotations

from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.core.jobs.failure import without_repetition
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.core.model import AttemptRow, JobRow, JobState
from gpusched.views.report import places
from gpusched.views.words import clock, fit, job_text, line_text, moment, priority, tag_text

HOW_WIDTH = 50  # characters
_UNTRIED = {  # cause -> why a job was not tried
    CAUSE_REMOVED: "its line was removed",
    CAUSE_DEPENDENCY: "a dependency failed",
    CAUSE_NOT_NEEDED: "not needed",
    CAUSE_FAILURES: "its program fails at once",
}


class JobLine(NamedTuple):
    """One job for people. `how` it ended; of one that has not, how it goes or why it waits, where that is known."""

    job_id: int
    line: str
    state: str
    where: str
    attempts: str
    started: str
    ended: str
    time: str
    how: str
    prio: str
    tags: str
    text: str  # its name or its command
    fraction: float | None = None  # of its work, by its own report


def job_line(job: JobRow, last: AttemptRow | None, now: float) -> JobLine:
    """Return the line of a job with its newest attempt."""
    where = how = ""
    if last is not None and job.state is not JobState.QUEUED:
        where = places(last.devices)
        is_plain = job.state is JobState.SUCCEEDED and not (last.outcome and last.outcome.note)
        if last.outcome and not is_plain:
            how = fit(clean(describe(without_repetition(last.outcome))), HOW_WIDTH)
    how = ", ".join(filter(None, (_UNTRIED.get(job.cause, how), _unlisted(job))))
    times = attempt_times(job, last, now)
    texts = (how, priority(job), tag_text(job), job_text(job))
    return JobLine(job.id, line_text(job), job.state.value, where, *times, *texts)


def attempt_times(job: JobRow, last: AttemptRow | None, now: float) -> tuple[str, str, str, str]:
    """Return the number of attempts if there are several; when the last one started and ended, and how long it took.

    A job that was never started has an end alone.
    """
    tries = str(job.attempts) if job.attempts > 1 else ""
    ended = "" if job.ended_at is None else moment(job.ended_at, now)
    if last is None or job.state is JobState.QUEUED:
        return tries, "", ended, ""
    return tries, moment(last.started_at, now), ended, clock((last.ended_at or now) - last.started_at)


def _unlisted(job: JobRow) -> str:
    """Return why a job is in no list any more; empty if it is in one."""
    return "interactive" if job.origin == "exec" else "" if job.listed else "its line is gone"
