"""The spectral analysis of many models: a list of models, a job for each of them, and a summary. Prints nothing.

from gpusched.api import EsdConfig, EsdExperiment
exit_code = EsdExperiment(EsdConfig(model_list="atlas.csv", output_dir="esd_results")).run()
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing, nullcontext
from copy import copy
from functools import cached_property
from typing import Any

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.common.libraries import install_command
from gpusched.common.text import clean, first_few
from gpusched.config.layers import load
from gpusched.dispatcher import Observer
from gpusched.esd import model_list, records
from gpusched.esd.backend import EsdBackend
from gpusched.esd.budgets import find_budgets
from gpusched.esd.config import EsdConfig
from gpusched.esd.jobs import (
    encode,
    job_name,
    model_jobs,
    refuse_missing_libraries,
    stage_command,
    threads_per_job,
)
from gpusched.esd.layers_table import LAYERS, write_layers
from gpusched.esd.model_list import ModelList, ModelRow
from gpusched.esd.records import EsdSummary
from gpusched.esd.todo import EsdTodo, compare
from gpusched.lists.joblist import JobFile
from gpusched.operations.run.run import RunSession


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

    def build_command(self, row: ModelRow) -> list[str] | str:
        """Return the command that analyses one model: its words, or a text for the shell."""
        return stage_command(row, self.config)

    def summarise(self) -> EsdSummary:
        """Write the results of all models beside them, and return them."""
        outcomes = self.backend.read_outcomes()
        of_rows = {row: outcomes[name] for row in self.models.rows if (name := job_name(row)) in outcomes}
        summary = records.summarise(self.config.output, self.options, of_rows, again=self.config.overwrite)
        summary.write(self.config.output)
        try:
            write_layers(self.config.output, summary.results)
        except ImportError:
            self.backend.notify(f"no {LAYERS}: {install_command(['pyarrow'])} installs what writes it")
        except (ValueError, TypeError) as error:
            self.backend.notify(f"no {LAYERS}: the tables of the models do not go together ({clean(str(error))})")
        return summary

    # ---- the whole of it ----

    def run(self, todo: EsdTodo | None = None) -> int:
        """Analyse what is not done yet and return the exit code. The summary is written even if this fails."""
        with closing(self.backend):
            todo = todo or self.find_todo()
            records.make_directory(self.config.output)
            self.announce(todo)
            code = EXIT_OK
            try:
                if todo.run:
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
        return model_list.read(config.model_list)

    @cached_property
    def options(self) -> Mapping[ModelRow, Mapping[str, Any]]:
        """The options that the record of each model must have to count as its result."""
        rows = self.models.rows
        return {row: self.config.as_record(source_model=row.source, relation=row.relation) for row in rows}

    def find_todo(self) -> EsdTodo:
        """Compare the list with the output directory and the queue. Raises GpuschedError for missing libraries."""
        backend = self.backend
        commands = self._commands()
        plain = copy(self)
        plain.config = self.config.plain()
        texts = plain._commands()  # a job is the same one with --plots, added later
        todo = compare(self.models.rows, texts, self.options, backend.stored_jobs(), self.config)
        threads = threads_per_job(len(todo.run), backend.jobs_at_once()) if todo.run else None
        if todo.run:
            refuse_missing_libraries(todo.run, self.config)
        budgets = find_budgets(todo.run, self.config, backend)
        todo.jobs = JobFile(tuple(model_jobs(todo, commands, texts, budgets, threads)))
        return todo

    def _commands(self) -> dict[ModelRow, bytes]:
        """Return the command of each row without a fault."""
        built = ((row, self.build_command(row)) for row in self.models.rows if not row.fault)
        return {row: encode(text if isinstance(text, str) else shlex.join(text)) for row, text in built}

    def announce(self, todo: EsdTodo) -> None:
        """Report what is odd in the list, and what is not run again."""
        notify = self.backend.notify
        for note in first_few(self.models.notes):
            notify(note)
        total = len(self.models.rows)
        if todo.done:
            notify(f"done already: {len(todo.done)} of {total} (--overwrite analyses them again)")
        if todo.changed:
            files = "; ".join(first_few([f"{clean(row.name)}: {clean(path)}" for row, path in todo.changed.items()]))
            notify(f"changed since the analysis, which is done again: {len(todo.changed)} of {total} ({files})")
        if before := sum(not row.fault for row in todo.failed):
            notify(f"failed before and not retried: {before} of {total} (--retry-failed does that)")
