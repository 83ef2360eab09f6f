"""Lists of models -> one job of spectral analysis a model, what is left to do of them, and a summary.

Looks at no GPU, reads no tensor and runs nothing: that is the workshop's, which is injected.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.tensor_headers import Shapes
from gpusched.common.text import clean
from gpusched.core.jobs.reconcile import StoredJob
from gpusched.core.model import ENDED_STATES, MIB, Attributes, JobSpec, JobState
from gpusched.core.plan.planner import round_budget
from gpusched.esd import model_list, records
from gpusched.esd.config import EsdConfig
from gpusched.esd.gpu_memory import GpuNeed, gpu_need
from gpusched.esd.model_list import ModelList, ModelRow
from gpusched.esd.options import AnalysisOptions, option_words, words_of
from gpusched.esd.order import OPEN, EsdOrder, in_groups, job_name
from gpusched.esd.records import Expected, Summary
from gpusched.lists.joblist import JobFile

_DEPTH = 4  # adapters of adapters of …
_NAMED_ROWS = 5

Model = tuple[str, str]  # its name or path, and its revision


class EsdBackend(Protocol):
    """What the experiment has done by others."""

    def tell(self, text: str) -> None:
        """One line for people."""

    def held(self) -> Sequence[StoredJob]:
        """The jobs that the queue holds already."""

    def budgets(self) -> Sequence[int]:
        """For each allowed GPU, the bytes that a job can have of it; none where no GPU is known or wanted."""

    def at_once(self) -> int:
        """How many jobs may run beside each other."""

    def shapes(self, models: Collection[Model]) -> Mapping[Model, Shapes]:
        """The tensors of each of these, or why they are not known."""

    def run(self, jobs: JobFile, *, complete: bool) -> int:
        """Run the jobs to their end; the exit code. `complete`: what is not among them has left the list."""

    def outcomes(self) -> Mapping[str, str]:
        """By the names of jobs: how those that did not succeed ended or where they stand, in words."""

    def prepare(self, directory: str) -> None:
        """Have a directory that can be written to, or raise GpuschedError."""

    def write(self, path: str, text: str) -> None:
        """Replace a file, whole or not at all, or raise GpuschedError."""


@dataclass(frozen=True, slots=True)
class EsdTodo:
    """What is to be done: `run` will, `done` has been, `failed` failed before and is not tried again."""

    jobs: JobFile
    has_work: bool = False  # whether any of the jobs is going to run
    run: tuple[ModelRow, ...] = ()
    done: tuple[ModelRow, ...] = ()
    failed: tuple[ModelRow, ...] = ()


class EsdExperiment:
    """The spectral analysis of many models. Override `build_command` or `summarise` to change what it does."""

    def __init__(self, config: EsdConfig, workshop: EsdBackend) -> None:
        """Raises GpuschedError for a configuration that cannot be meant."""
        config.check()
        self.config = config
        self.workshop = workshop
        self.output = _absolute(config.output_dir)

    # ---- what may be overridden ----

    def build_command(self, row: ModelRow) -> list[str]:
        """The words of the command that analyses one model."""
        config = self.config
        words = [sys.executable, "-m", "gpusched.commands.esd", "--model", row.model, "--output-dir", self.output]
        for flag, value in (
            ("--name", row.name),
            ("--source-model", row.source),
            ("--relation", row.relation),
            ("--revision", row.revision),
        ):
            words += option_words(flag, value) if value else []
        return words + words_of(replace(config, cache_dir=_absolute(config.cache_dir)), AnalysisOptions)

    def summarise(self) -> Summary:
        """What all models have come to, written beside their results."""
        outcomes = self.workshop.outcomes()
        told = {row.name: outcomes[name] for row, name in self._job_names.items() if name in outcomes}
        summary = records.summarise(self.output, self.expected, told, again=self.config.overwrite)
        for path, text in summary.files(self.output):
            self.workshop.write(path, text)
        return summary

    # ---- the whole of it ----

    def run(self, plan: EsdTodo | None = None) -> int:
        """Analyse what is not done yet, and write the summary whatever happens; the exit code."""
        plan = plan or self.plan()
        self.workshop.prepare(self.output)
        self.tell(plan)
        code = EXIT_OK
        try:
            if plan.has_work:
                code = self.workshop.run(plan.jobs, complete=bool(self.config.model_list))
        finally:
            self.summary = self.summarise()
        return EXIT_SOME_FAILED if code == EXIT_OK and self.summary.failed else code

    summary: Summary

    @cached_property
    def models(self) -> ModelList:
        """The models that are asked for. Raises GpuschedError for a list that cannot be read."""
        config = self.config
        if config.single_model:
            one = config.single_model
            return model_list.single(
                one, source=config.source_model, relation=config.relation, revision=config.revision
            )
        try:
            with open(config.model_list, "rb") as file:
                data = file.read()
        except OSError as error:
            hint = "a CSV file with a column full_name (or model_id)"
            raise GpuschedError(f"cannot be read: {error.strerror}", where=config.model_list, hint=hint) from None
        return model_list.parse(data, config.model_list)

    @cached_property
    def expected(self) -> dict[ModelRow, Expected]:
        """What the record of each model must say, so that it counts."""
        return {
            row: Expected(row.revision, self.config.as_record(source_model=row.source, relation=row.relation))
            for row in self.models.rows
        }

    # ---- what is left to do ----

    def plan(self) -> EsdTodo:
        """Compare the list with what lies in the output directory and what the queue holds."""
        held = EsdOrder(self.workshop.held())
        texts = {row: shlex.join(self.build_command(row)) for row in self.models.rows if not row.fault}
        again = self.config.overwrite and not any(held.is_open(text) for text in texts.values())
        occurrences: dict[ModelRow, int] = {}
        done: list[ModelRow] = []
        failed: list[ModelRow] = [row for row in self.models.rows if row.fault]
        for row, text in texts.items():
            number, state = held.newest(text)
            if self.config.overwrite:
                finished = state is JobState.SUCCEEDED and not again
                broken = state is JobState.FAILED and not again
            else:
                record, expected = records.read(self.output, row.stem), self.expected[row]
                finished = expected.is_met(record) and records.is_whole(self.output, row.stem, record)
                broken = state is JobState.FAILED or (state not in OPEN and expected.is_failed(record))
            if finished:
                done.append(row)
            elif broken and not self.config.retry_failed:
                failed.append(row)
                if state is JobState.FAILED:  # stays in the list of the queue, as failed
                    occurrences[row] = number
            else:
                new = state is JobState.SUCCEEDED or (again and state in ENDED_STATES)
                occurrences[row] = number + new
        left = set(failed)
        run = [row for row in occurrences if row not in left]
        kept = [row for row in occurrences if row in left]
        jobs = tuple(self._jobs((*in_groups(run), *kept), run, texts, occurrences))
        plots = tuple(self._plots(done, held))
        has_work = bool(run or plots)
        return EsdTodo(JobFile(jobs + plots), has_work, tuple(run), tuple(done), tuple(failed))

    def _jobs(
        self,
        rows: Sequence[ModelRow],
        run: Sequence[ModelRow],
        texts: Mapping[ModelRow, str],
        occurrences: Mapping[ModelRow, int],
    ) -> Iterator[JobSpec]:
        """The jobs of these rows in their order; those in `run` are going to run."""
        budgets = self._budgets(run) if run else {}
        threads = self._threads(len(run)) if run else b""
        for row in rows:
            text = texts[row].encode("utf-8", "surrogateescape")
            attributes = Attributes(mem_bytes=budgets.get(row), name=self._job_names[row])
            yield JobSpec(threads + text, text, row.line, occurrences[row], attributes)

    def _plots(self, done: Iterable[ModelRow], held: EsdOrder) -> Iterator[JobSpec]:
        """CPU jobs that draw what was analysed before pictures were asked for."""
        for row in done if self.config.plots else ():
            if records.has_plots(self.output, row.stem):
                continue
            words = [sys.executable, "-m", "gpusched.commands.esd.write.plots", "--output-dir", self.output, row.stem]
            text = shlex.join(words)
            number, state = held.newest(text)
            raw = text.encode("utf-8", "surrogateescape")
            name = f"plots:{self._job_names[row]}"[:120]
            yield JobSpec(raw, raw, row.line, number + (state is JobState.SUCCEEDED), Attributes(gpus=0, name=name))

    def _threads(self, jobs: int) -> bytes:
        """What keeps jobs beside each other from taking each other's cores; nothing where the user has said it."""
        if "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
            return b""
        share = len(os.sched_getaffinity(0)) // max(1, min(jobs, self.workshop.at_once()))
        return b"OMP_NUM_THREADS=%d " % max(1, share)

    @cached_property
    def _job_names(self) -> dict[ModelRow, str]:
        return {row: job_name(row) for row in self.models.rows}

    # ---- memory ----

    def _budgets(self, rows: Sequence[ModelRow]) -> dict[ModelRow, int]:
        """The GPU memory of each model whose shapes are known and that fits; tells of those that do not."""
        cards = self.workshop.budgets()
        if not cards:
            return {}
        needs, unknown = self._needs(rows)
        found: dict[ModelRow, int] = {}
        for row, (size, tensor) in needs.items():
            size = -(-size // MIB) * MIB
            if round_budget(size) <= max(cards):
                found[row] = size
                continue
            shape = "×".join(map(str, tensor.shape))
            self.workshop.tell(
                f"{clean(row.name)}: its largest layer, {clean(tensor.name)} ({shape}), needs {size // MIB} MiB of a "
                f"GPU, and the largest here can give {max(cards) // MIB}: it gets a GPU alone, and such layers are "
                "computed on the CPU"
            )
        if unknown:
            shown = "; ".join(f"{clean(row.name)}: {clean(why)}" for row, why in unknown[:_NAMED_ROWS])
            more = f"; and {len(unknown) - _NAMED_ROWS} more" if len(unknown) > _NAMED_ROWS else ""
            self.workshop.tell(f"not known how much GPU memory these need, so each has its GPU alone ({shown}{more})")
        return found

    def _needs(self, rows: Sequence[ModelRow]) -> tuple[dict[ModelRow, GpuNeed], list[tuple[ModelRow, str]]]:
        """What each row needs, and the rows of which nobody knows; adapters need what their bases need."""
        config = self.config
        ask = {row: (row.base, "" if row.is_adapter and row.source else row.revision) for row in rows}
        known: dict[Model, Shapes] = {}
        for _ in range(_DEPTH):
            known.update(self.workshop.shapes({model for model in ask.values() if model not in known}))
            before = dict(ask)
            for row, model in ask.items():
                base = known[model].base
                if base:
                    ask[row] = (base, "")
            if ask == before or all(model in known for model in ask.values()):
                break
        found: dict[ModelRow, GpuNeed] = {}
        unknown: list[tuple[ModelRow, str]] = []
        for row, model in ask.items():
            shapes = known.get(model, Shapes(why_not="its base is not known"))
            needed = gpu_need(shapes.tensors, solver=config.solver, parallel=config.parallel_gpu, layers=config.layers)
            if needed is None:
                unknown.append((row, shapes.why_not or "it has no matrix"))
            else:
                found[row] = needed
        return found, unknown

    # ---- telling ----

    def tell(self, plan: EsdTodo) -> None:
        """What a person should know before it begins."""
        tell = self.workshop.tell
        notes = self.models.notes
        for note in notes[:_NAMED_ROWS]:
            tell(note)
        if len(notes) > _NAMED_ROWS:
            tell(f"and {len(notes) - _NAMED_ROWS} more lines of the list that are repeated or left out")
        total = len(self.models.rows)
        if plan.done:
            tell(f"{len(plan.done)} of {total} {'are' if total > 1 else 'is'} done (--overwrite does them again)")
        before = [row for row in plan.failed if not row.fault]
        if before:
            tell(
                f"{len(before)} of {total} failed before and {_are(before)} not tried again (--retry-failed does that)"
            )


def _are(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path)) if path else ""
