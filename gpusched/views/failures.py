"""Failed jobs for people: how each ended, and those that ended alike together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpusched.common.text import clean
from gpusched.core.jobs.failure import without_repetition
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import AttemptRow, JobRow
from gpusched.views.values import JobWithLast
from gpusched.views.words import count, ranges


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Jobs that failed alike. `job` is the first of them, and `last` its newest attempt."""

    job: JobRow
    last: AttemptRow | None
    how: str  # without the reason
    reason: str
    ids: Sequence[int]

    @property
    def sentence(self) -> str:
        """Return how they ended, and how many there are if they are several."""
        text = ", ".join(filter(None, (self.how, self.reason)))
        return text if len(self.ids) == 1 else f"{count(len(self.ids), 'job')}: {text} (jobs {ranges(self.ids)})"


def group_failures(failed: Iterable[JobWithLast]) -> list[FailureGroup]:
    """Group failed jobs of one known cause, or of one reason, in the order of the first ones."""
    groups: dict[object, FailureGroup] = {}
    for job, last in failed:
        outcome = last.outcome if last else None
        how = clean(describe(replace(outcome, note=""))) if outcome else job.cause or "failed"
        reason = clean(without_repetition(outcome).note) if outcome else ""
        cause = outcome.cause if outcome else job.cause
        key = (how, reason) if cause or reason else job.id
        group = groups.get(key) or FailureGroup(job, last, how, reason, ())
        groups[key] = replace(group, ids=(*group.ids, job.id))
    return list(groups.values())
