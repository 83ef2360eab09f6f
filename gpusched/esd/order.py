"""Which models of a list run beside each other, and which jobs of theirs a queue holds. Submits nothing."""

from __future__ import annotations

from collections.abc import Iterable

from gpusched.core.jobs.reconcile import StoredJob, identity
from gpusched.core.model import JobSpec, JobState
from gpusched.esd.model_list import ModelRow
from gpusched.lists.attributes import parse_value

OPEN = frozenset({JobState.QUEUED, JobState.HELD, JobState.RUNNING})


class EsdOrder:
    """What a queue holds of the jobs of an experiment."""

    def __init__(self, held: Iterable[StoredJob]) -> None:
        self._newest: dict[bytes, StoredJob] = {}
        for job in held:
            if job.identity not in self._newest or job.occurrence > self._newest[job.identity].occurrence:
                self._newest[job.identity] = job

    def newest(self, text: str) -> tuple[int, JobState | None]:
        """The last job of this command: its number, from 1, and its state; None if there was none."""
        job = self._find(text)
        return (1, None) if job is None else (job.occurrence, job.state)

    def is_open(self, text: str) -> bool:
        job = self._find(text)
        return job is not None and job.state in OPEN

    def _find(self, text: str) -> StoredJob | None:
        raw = text.encode("utf-8", "surrogateescape")
        return self._newest.get(identity(JobSpec(raw, raw, 1)))


def job_name(row: ModelRow) -> str:
    """What the job of a model is called: as the model, where that can be a name."""
    try:
        return str(parse_value("name", row.name.encode("utf-8", "surrogateescape")))
    except ValueError:
        return f"model-of-line-{row.line}"


# ---- who goes first --------------------------------------------------------------------------------


def in_groups(rows: Iterable[ModelRow]) -> list[ModelRow]:
    """The rows as they are to run: those that share a base beside each other, the base first.

    None waits for another one. Jobs that run at the same time share the work on a base tensor by tensor: what one of
    them computes the others read (commands/esd/cache.py). If they waited, the other GPUs would idle for as long as the
    base takes on one of them.
    """
    groups: dict[str, list[ModelRow]] = {}
    for row in rows:
        groups.setdefault(row.source or row.model, []).append(row)
    return [row for base, group in groups.items() for row in sorted(group, key=lambda row: row.model != base)]
