"""The models of a list that are left to analyse: the list compared with the output directory and the queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpusched.core.jobs.reconcile import StoredJob, identity
from gpusched.core.model import ENDED_STATES, JobSpec, JobState
from gpusched.esd.config import EsdConfig
from gpusched.esd.model_list import ModelRow
from gpusched.esd.model_record import changed_file, is_of, is_whole, read_record
from gpusched.esd.old_rules import follows_old_rules
from gpusched.esd.records import has_plots
from gpusched.lists.joblist import JobFile

_OPEN_STATES = frozenset({JobState.QUEUED, JobState.HELD, JobState.RUNNING})


@dataclass(slots=True)
class EsdTodo:
    """The work that is left: the models to run, those that are done, and those that failed and are not retried."""

    run: list[ModelRow] = field(default_factory=list)
    done: list[ModelRow] = field(default_factory=list)
    failed: list[ModelRow] = field(default_factory=list)
    occurrences: dict[ModelRow, int] = field(default_factory=dict)  # of jobs in the queue, also of failed ones
    changed: dict[ModelRow, str] = field(default_factory=dict)  # a file that has changed since the analysis
    jobs: JobFile = field(default_factory=JobFile)


def compare(
    rows: Iterable[ModelRow],
    texts: Mapping[ModelRow, bytes],
    options: Mapping[ModelRow, Mapping[str, Any]],
    jobs: Iterable[StoredJob],
    config: EsdConfig,
) -> EsdTodo:
    """Find what is left to do; the jobs of the result are not made yet.

    `texts` has what the jobs of the rows without a fault are known by, `options` those in the record of each row,
    `jobs` those of the queue. A model that is done but not drawn runs again: its stage only draws it.
    """
    newest = {job.identity: job for job in sorted(jobs, key=lambda job: job.occurrence)}
    job_of = {row: newest.get(identity(JobSpec(text, text, 1))) for row, text in texts.items()}
    # With --overwrite all models run again, unless an earlier start with --overwrite is still at work.
    again = config.overwrite and not any(job and job.state in _OPEN_STATES for job in job_of.values())
    todo = EsdTodo(failed=[row for row in rows if row.fault])
    for row, job in job_of.items():
        occurrence, state = (job.occurrence, job.state) if job else (1, None)
        if config.overwrite:
            is_done = state is JobState.SUCCEEDED and not again
            is_failed = state is JobState.FAILED and not again
        else:
            record = read_record(config.output, row.stem)
            is_same = is_of(record, revision=row.revision, options=options[row])
            is_done = is_same and is_whole(config.output, row.stem, record)
            if is_done and (path := changed_file(record, contents=config.verify)):
                todo.changed[row] = path
            is_old = config.redo_old and follows_old_rules(config.output, row.stem, record)
            is_done = is_done and row not in todo.changed and not is_old
            has_failed = is_same and record["success"] is False
            is_failed = state is JobState.FAILED or (state not in _OPEN_STATES and has_failed)
        is_drawn = not config.plots or has_plots(config.output, row.stem, config.plots)
        if is_done and is_drawn:
            todo.done.append(row)
        elif is_failed and not config.retry_failed:
            todo.failed.append(row)
            if state is JobState.FAILED:  # the job stays in the queue, as failed
                todo.occurrences[row] = occurrence
        else:
            todo.run.append(row)
            is_new = state is JobState.SUCCEEDED or (again and state in ENDED_STATES)
            todo.occurrences[row] = occurrence + is_new
    return todo
