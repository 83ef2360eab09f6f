"""The jobs of an experiment: one for each model, and one for the pictures of a model that was not drawn yet."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.model import Attributes, JobSpec, JobState
from gpusched.esd.config import EsdConfig, absolute
from gpusched.esd.model_list import ModelRow
from gpusched.esd.options import AnalysisOptions, option_words, words_of
from gpusched.esd.order import job_name
from gpusched.esd.todo import EsdTodo, NewestJobs

LIBRARIES = ("torch", "safetensors", "numpy")  # that every analysis needs
_LONGEST_NAME = 120  # characters in the name of a job


def refuse_missing_libraries(config: EsdConfig) -> None:
    """Raise GpuschedError if a library of the analysis is not installed, before each job fails because of it."""
    libraries = [*LIBRARIES, *(["matplotlib"] if config.plots else [])]
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise GpuschedError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here",
            where=sys.executable,
            hint="pip install 'gpusched-lab[esd]'",
            exit_code=EXIT_CANNOT_WORK,
        )


def stage_command(row: ModelRow, config: EsdConfig) -> list[str]:
    """Return the words of the command that analyses one model."""
    words = [sys.executable, "-m", "gpusched.commands.esd", "--model", row.model, "--output-dir", config.output]
    for flag, value in (
        ("--name", row.name),
        ("--source-model", row.source),
        ("--relation", row.relation),
        ("--revision", row.revision),
    ):
        words += option_words(flag, value) if value else []
    return words + words_of(replace(config, cache_dir=absolute(config.cache_dir)), AnalysisOptions)


def model_jobs(
    todo: EsdTodo, commands: Mapping[ModelRow, str], budgets: Mapping[ModelRow, int], threads: int | None
) -> Iterator[JobSpec]:
    """Make the jobs that analyse models. `threads`: CPU threads for each of them, None where the user has set it."""
    prefix = b"" if threads is None else b"OMP_NUM_THREADS=%d " % threads
    for row in todo.rows:
        text = _encode(commands[row])
        attributes = Attributes(mem_bytes=budgets.get(row), name=job_name(row))
        yield JobSpec(prefix + text, text, row.line, todo.occurrences[row], attributes)


def plot_jobs(todo: EsdTodo, newest: NewestJobs, output: str) -> Iterator[JobSpec]:
    """Make the CPU jobs that draw models which are analysed already."""
    for row in todo.plots:
        command = shlex.join(
            [sys.executable, "-m", "gpusched.commands.esd.write.plots", "--output-dir", output, row.stem]
        )
        occurrence, state = newest.find(command)
        text = _encode(command)
        attributes = Attributes(gpus=0, name=f"plots:{job_name(row)}"[:_LONGEST_NAME])
        yield JobSpec(text, text, row.line, occurrence + (state is JobState.SUCCEEDED), attributes)


def threads_per_job(jobs: int, at_once: int) -> int | None:
    """Share the CPU cores between the jobs that run at once; None if the user has set the number of threads."""
    if not jobs or "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
        return None
    return max(1, len(os.sched_getaffinity(0)) // max(1, min(jobs, at_once)))


def _encode(command: str) -> bytes:
    return command.encode("utf-8", "surrogateescape")
