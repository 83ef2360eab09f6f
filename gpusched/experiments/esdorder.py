"""Which models of a list go together, which goes first, and which jobs of theirs a queue holds. Submits nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gpusched.core.attributes import parse_value
from gpusched.core.model import JobSpec, JobState
from gpusched.core.reconcile import Held, identity
from gpusched.experiments.modellist import ModelRow

OPEN = frozenset({JobState.QUEUED, JobState.HELD, JobState.RUNNING})


class Queue:
    """What a queue holds of the jobs of an experiment."""

    def __init__(self, held: Iterable[Held]) -> None:
        self._newest: dict[bytes, Held] = {}
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

    def _find(self, text: str) -> Held | None:
        raw = text.encode("utf-8", "surrogateescape")
        return self._newest.get(identity(JobSpec(raw, raw, 1)))


def job_name(row: ModelRow) -> str:
    """What the job of a model is called: as the model, where that can be a name."""
    try:
        return str(parse_value("name", row.name.encode("utf-8", "surrogateescape")))
    except ValueError:
        return f"model-of-line-{row.line}"


# ---- who goes first --------------------------------------------------------------------------------


def groups(rows: Iterable[ModelRow]) -> dict[str, list[ModelRow]]:
    """The rows by the model whose spectra they share. Only adapters share any: with their base and each other."""
    found: dict[str, list[ModelRow]] = {}
    for row in rows:
        found.setdefault(row.base, []).append(row)
    return found


def in_groups(rows: Sequence[ModelRow]) -> list[ModelRow]:
    """The rows as they are to run: groups together, the largest first, a base before its adapters.

    The largest first, since what waits in a group while its first job runs must not be left for the end, when
    nothing else keeps the other GPUs busy.
    """
    found = sorted(groups(rows).values(), key=len, reverse=True)
    return [row for group in found for row in sorted(group, key=lambda row: row.is_adapter)]


def leaders_of(run: Sequence[ModelRow], done: Collection[ModelRow]) -> dict[ModelRow, ModelRow]:
    """Which row waits for which: those of a group for its first one, unless the spectra of their base are there.

    While the first one runs, GPUs may idle. That costs no time: without waiting, each of them would compute the
    spectra of the same base meanwhile, and be ready no sooner.
    """
    there = {row.base for row in done}
    found: dict[ModelRow, ModelRow] = {}
    for base, group in groups(run).items():
        if base not in there:
            first, *others = sorted(group, key=lambda row: row.is_adapter)
            found.update(dict.fromkeys((row for row in others if row.is_adapter), first))
    return found
