"""The models of a list that are left to analyse: the list compared with the output directory and the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpusched.core.jobs.reconcile import StoredJob, identity
from gpusched.core.model import ENDED_STATES, JobSpec, JobState
from gpusched.esd import records
from gpusched.esd.config import EsdConfig
from gpusched.esd.model_list import ModelRow
from gpusched.esd.order import group_by_base
from gpusched.esd.records import ExpectedRecord
from gpusched.lists.joblist import JobFile

_OPEN_STATES = frozenset({JobState.QUEUED, JobState.HELD, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class EsdTodo:
    """The work that is left: the models to run, those that are done, and those that failed and are not retried."""

    run: tuple[ModelRow, ...] = ()
    done: tuple[ModelRow, ...] = ()
    failed: tuple[ModelRow, ...] = ()
    occurrences: Mapping[ModelRow, int] = field(default_factory=dict)  # job occurrences, also of failed jobs
    plots: tuple[ModelRow, ...] = ()  # models that are done, but not drawn
    jobs: JobFile = field(default_factory=JobFile)

    @property
    def has_work(self) -> bool:
        """Return True if one of the jobs is going to run."""
        return bool(self.run or self.plots)

    @property
    def rows(self) -> list[ModelRow]:
        """The rows that have a job, in the order of their jobs: those that run, then those that failed before."""
        running = set(self.run)
        return [*group_by_base(self.run), *(row for row in self.occurrences if row not in running)]


class NewestJobs:
    """The newest job of each command in the queue."""

    def __init__(self, jobs: Iterable[StoredJob]) -> None:
        self._newest: dict[bytes, StoredJob] = {}
        for job in jobs:
            if job.identity not in self._newest or job.occurrence > self._newest[job.identity].occurrence:
                self._newest[job.identity] = job

    def find(self, command: str) -> tuple[int, JobState | None]:
        """Return the occurrence of the newest job of a command, from 1, and its state; None if there is no job."""
        raw = command.encode("utf-8", "surrogateescape")
        job = self._newest.get(identity(JobSpec(raw, raw, 1)))
        return (1, None) if job is None else (job.occurrence, job.state)


def compare(
    rows: Iterable[ModelRow],
    commands: Mapping[ModelRow, str],
    expected: Mapping[ModelRow, ExpectedRecord],
    newest: NewestJobs,
    config: EsdConfig,
) -> EsdTodo:
    """Find what is left to do. `commands` has the rows without a fault; the jobs of the result are not made yet."""
    states = {row: newest.find(command) for row, command in commands.items()}
    # With --overwrite all models run again, unless an earlier start with --overwrite is still at work.
    again = config.overwrite and not any(state in _OPEN_STATES for _, state in states.values())
    done: list[ModelRow] = []
    failed = [row for row in rows if row.fault]
    run: list[ModelRow] = []
    occurrences: dict[ModelRow, int] = {}
    for row, (occurrence, state) in states.items():
        if config.overwrite:
            is_done = state is JobState.SUCCEEDED and not again
            is_failed = state is JobState.FAILED and not again
        else:
            record = records.read_record(config.output, row.stem)
            is_done = expected[row].is_met(record) and records.is_whole(config.output, row.stem, record)
            is_failed = state is JobState.FAILED or (state not in _OPEN_STATES and expected[row].is_failed(record))
        if is_done:
            done.append(row)
        elif is_failed and not config.retry_failed:
            failed.append(row)
            if state is JobState.FAILED:  # the job stays in the queue, as failed
                occurrences[row] = occurrence
        else:
            run.append(row)
            is_new = state is JobState.SUCCEEDED or (again and state in ENDED_STATES)
            occurrences[row] = occurrence + is_new
    return EsdTodo(tuple(run), tuple(done), tuple(failed), occurrences, _undrawn(done, config))


def _undrawn(done: Iterable[ModelRow], config: EsdConfig) -> tuple[ModelRow, ...]:
    """Return the models that were analysed before pictures were asked for."""
    return tuple(row for row in done if config.plots and not records.has_plots(config.output, row.stem))
