"""The spectral analysis of many models: a list of models, a job for each of them, and a summary. Prints nothing.

from gpusched.api import EsdConfig, EsdExperiment
exit_code = EsdExperiment(EsdConfig(model_list="atlas.csv", output_dir="esd_results")).run()
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.config.layers import load
from gpusched.core.model import JobSpec
from gpusched.dispatcher import Observer
from gpusched.esd import model_list, records
from gpusched.esd.backend import EsdBackend
from gpusched.esd.budgets import find_budgets
from gpusched.esd.config import EsdConfig
from gpusched.esd.jobs import model_jobs, plot_jobs, stage_command, threads_per_job
from gpusched.esd.model_list import ModelList, ModelRow
from gpusched.esd.order import job_name
from gpusched.esd.records import EsdSummary, ExpectedRecord
from gpusched.esd.todo import EsdTodo, NewestJobs, compare
from gpusched.lists.joblist import JobFile
from gpusched.operations.run import RunSession

_SHOWN_NOTES = 5


class EsdExperiment:
    """The spectral analysis of many models on the GPUs of this box: `EsdExperiment(EsdConfig(…)).run()`.

    Override `build_command` or `summarise` to change what it does. `run` returns an exit code and sets `summary`.
    """

    def __init__(
        self, config: EsdConfig, backend: EsdBackend | None = None, *, observer: Observer | None = None
    ) -> None:
        """Raise GpuschedError for a configuration that makes no sense."""
        config.check()
        self.config = config
        session = RunSession(watch=lambda queue: nullcontext(observer))
        self.backend = backend or EsdBackend(config, load(config.flags), session=session)
        self.summary = EsdSummary(())

    # ---- what may be overridden ----

    def build_command(self, row: ModelRow) -> list[str]:
        """Return the words of the command that analyses one model."""
        return stage_command(row, self.config)

    def summarise(self) -> EsdSummary:
        """Write the results of all models beside them, and return them."""
        outcomes = self.backend.read_outcomes()
        of_rows = {row: outcomes[name] for row in self.models.rows if (name := job_name(row)) in outcomes}
        summary = records.summarise(self.config.output, self.expected, of_rows, again=self.config.overwrite)
        for path, text in summary.files(self.config.output):
            records.write_file(path, text)
        return summary

    # ---- the whole of it ----

    def run(self, todo: EsdTodo | None = None) -> int:
        """Analyse what is not done yet and return the exit code. The summary is written even if this fails."""
        with self.backend:
            todo = todo or self.find_todo()
            records.make_directory(self.config.output)
            self.announce(todo)
            code = EXIT_OK
            try:
                if todo.has_work:
                    code = self.backend.run_jobs(todo.jobs, complete=bool(self.config.model_list))
            finally:
                self.summary = self.summarise()
        return EXIT_SOME_FAILED if code == EXIT_OK and self.summary.failed else code

    @cached_property
    def models(self) -> ModelList:
        """The models to analyse. Raises GpuschedError for a list that cannot be read."""
        config = self.config
        if config.single_model:
            return model_list.single(
                config.single_model, source=config.source_model, relation=config.relation, revision=config.revision
            )
        try:
            with open(config.model_list, "rb") as file:
                data = file.read()
        except OSError as error:
            hint = "a CSV file with a column full_name (or model_id)"
            raise GpuschedError(f"cannot be read: {error.strerror}", where=config.model_list, hint=hint) from None
        return model_list.parse(data, config.model_list)

    @cached_property
    def expected(self) -> Mapping[ModelRow, ExpectedRecord]:
        """The content that the record of each model must have to count as its result."""
        return {
            row: ExpectedRecord(row.revision, self.config.as_record(source_model=row.source, relation=row.relation))
            for row in self.models.rows
        }

    def find_todo(self) -> EsdTodo:
        """Compare the list with the output directory and the queue."""
        newest = NewestJobs(self.backend.stored_jobs())
        commands = {row: shlex.join(self.build_command(row)) for row in self.models.rows if not row.fault}
        todo = compare(self.models.rows, commands, self.expected, newest, self.config)
        return replace(todo, jobs=JobFile(tuple(self._jobs(todo, commands, newest))))

    def _jobs(self, todo: EsdTodo, commands: Mapping[ModelRow, str], newest: NewestJobs) -> Iterator[JobSpec]:
        budgets = find_budgets(todo.run, self.config, self.backend)
        threads = threads_per_job(len(todo.run), self.backend.jobs_at_once()) if todo.run else None
        yield from model_jobs(todo, commands, budgets, threads)
        yield from plot_jobs(todo, newest, self.config.output)

    def announce(self, todo: EsdTodo) -> None:
        """Report what is odd in the list, and what is not run again."""
        notify = self.backend.notify
        notes = self.models.notes
        for note in notes[:_SHOWN_NOTES]:
            notify(note)
        if len(notes) > _SHOWN_NOTES:
            notify(f"and {len(notes) - _SHOWN_NOTES} more lines of the list that are repeated or left out")
        total = len(self.models.rows)
        if todo.done:
            notify(f"{len(todo.done)} of {total} {_are(todo.done)} done (--overwrite analyses them again)")
        before = [row for row in todo.failed if not row.fault]
        if before:
            notify(f"{len(before)} of {total} failed before and {_are(before)} not retried (--retry-failed does that)")


def _are(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"
