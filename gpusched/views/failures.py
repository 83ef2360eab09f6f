"""Failed jobs for people: how each ended, those that ended alike together, and what may help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpusched.common.text import clean, ranges, without_numbers
from gpusched.core.jobs.failure import without_repetition
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import AttemptRow, JobRow, OutcomeKind
from gpusched.views.values import JobWithLast
from gpusched.views.words import count


class FailureGroup(NamedTuple):
    """Jobs that failed alike. `job` is the first of them, and `last` its newest attempt."""

    job: JobRow
    last: AttemptRow | None
    how: str  # without the reason
    reason: str  # of the first
    ids: Sequence[int]
    is_equal: bool = True  # all have this very reason; else theirs differ in numbers

    @property
    def sentence(self) -> str:
        """Return how they ended, and how many there are if they are several."""
        reason = self.reason if self.is_equal else f"such as {self.reason}"
        text = ", ".join(filter(None, (self.how, reason)))
        return text if len(self.ids) == 1 else f"{count(len(self.ids), 'job')}: {text} (jobs {ranges(self.ids)})"


def group_failures(failed: Iterable[JobWithLast]) -> list[FailureGroup]:
    """Group failed jobs of one known cause, or of one reason but for its numbers, in the order of the first ones."""
    groups: dict[object, FailureGroup] = {}
    for job, last in failed:
        outcome = last.outcome if last else None
        how = clean(describe(replace(outcome, note=""))) if outcome else job.cause or "failed"
        reason = clean(without_repetition(outcome).note) if outcome else ""
        cause = outcome.cause if outcome else job.cause
        key = (how, without_numbers(reason)) if cause or reason else job.id
        group = groups.get(key) or FailureGroup(job, last, how, reason, ())
        is_equal = group.is_equal and reason == group.reason
        groups[key] = group._replace(ids=(*group.ids, job.id), is_equal=is_equal)
    return list(groups.values())


_HINTS = {  # cause, kind of outcome (with the origin of the job) or exit code -> advice
    "gpu_oom": "the next try goes to a GPU with more free memory, if there is one; a smaller batch needs less",
    "budget": "the next try gets a larger budget than its mem, if a GPU can give that; a smaller batch needs less",
    "crowded_oom": "this spends no try: from now on one job less shares such a GPU; "
    "gpusched set mem.TAG=SIZE says what the jobs of a tag need",
    "suspected_oom": "such an error often means that the GPU's memory was full: a smaller batch needs less; "
    "the next try goes to another GPU, if there is one",
    "host_oom": "the box ran out of main memory, not the GPU: fewer jobs at once or fewer data loaders help",
    "gpu_busy": "another user took the GPU; this spends no try, and the job is repeated on another GPU",
    "gpu_lost": "the driver lost the GPU; this spends no try, and the job is repeated on another GPU; ask the admin",
    "setup_failed": "its command did not run: the file of --setup must come to its end, with status 0 and without exit",
    "unkillable": "it hangs in the kernel and survived SIGKILL; its GPU stays claimed until it ends",
    "idle": "its log may show why it waited; --idle-action report leaves such jobs running",
    "timed_out submit": "to give it longer: gpusched requeue JOB, then gpusched edit JOB --time TIME",
    "timed_out list": "to give it longer: the same command with --time-limit TIME --retry-failed; time= in its line "
    "counts more, so change that first",
    "lost": "its shepherd was killed too, for example by systemd, logind, docker stop or a reboot",
    "127": "the shell found no such program: the jobs get the environment of gpusched; "
    "--setup FILE sources a file before each",
    "SIGKILL": "SIGKILL often comes from the kernel when main memory is full: see `dmesg | tail`",
}


def hint(job: JobRow, attempt: AttemptRow) -> str:
    """Return advice about the outcome of an attempt, if there is any."""
    if (outcome := attempt.outcome) is None:
        return ""
    cause = "budget" if job.stated_mem_bytes > 0 and outcome.cause == "gpu_oom" else outcome.cause
    is_killed = not cause and 9 in (outcome.signal, (outcome.exit_code or 0) - 128)
    if outcome.kind is OutcomeKind.TIMED_OUT and outcome.note.startswith("the command had ended"):
        return f"{outcome.note}; with --leftovers stop such processes are ended, and the command's own exit code counts"
    kind = outcome.kind.value
    keys = (cause, kind, f"{kind} {job.origin}", str(outcome.exit_code), "SIGKILL" if is_killed else "")
    return next((_HINTS[key] for key in keys if key in _HINTS), "")
