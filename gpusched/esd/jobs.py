"""The jobs of an experiment, one for each model, in their order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpusched.common.libraries import refuse_missing
from gpusched.common.option_table import option_words, options_of, words_of
from gpusched.core.model import Attributes, JobSpec
from gpusched.esd.config import EsdConfig, absolute
from gpusched.esd.model_list import ModelRow
from gpusched.esd.options import AnalysisOptions
from gpusched.esd.todo import EsdTodo
from gpusched.lists.attributes import parse_value


def refuse_missing_libraries(rows: Iterable[ModelRow], config: EsdConfig) -> None:
    """Raise GpuschedError if a library that these models need is not installed, before each job fails because of it."""
    libraries = ["torch", "safetensors", "numpy"]
    libraries += ["matplotlib"] if config.plots else []
    libraries += ["huggingface_hub"] if any(not os.path.exists(row.model) for row in rows) else []
    refuse_missing("gpusched esd", libraries)


def stage_command(row: ModelRow, config: EsdConfig) -> list[str]:
    """Return the words of the command that analyses one model."""
    words = [sys.executable, "-m", "gpusched.commands.esd", "--model", row.model, "--output-dir", config.output]
    for field in ("name", "source", "relation", "revision"):
        flag = "--source-model" if field == "source" else f"--{field}"
        value = getattr(row, field)
        words += option_words(flag, value) if value else []
    overwrite = config.overwrite or config.redo_old
    return words + words_of(
        replace(config, cache_dir=absolute(config.cache_dir), overwrite=overwrite), options_of(AnalysisOptions)
    )


def model_jobs(
    todo: EsdTodo,
    commands: Mapping[ModelRow, bytes],
    texts: Mapping[ModelRow, bytes],
    budgets: Mapping[ModelRow, int],
    threads: int | None,
) -> Iterator[JobSpec]:
    """Make the jobs that analyse models, those that failed before last.

    `texts`: what each job is known by in its queue. `threads`: CPU threads for each of them, None where the user has
    set it.
    """
    prefix = b"" if threads is None else b"OMP_NUM_THREADS=%d " % threads
    running = set(todo.run)
    for row in (*group_by_base(todo.run), *(row for row in todo.occurrences if row not in running)):
        attributes = Attributes(mem_bytes=budgets.get(row), name=job_name(row))
        yield JobSpec(prefix + commands[row], texts[row], row.line, todo.occurrences[row], attributes)


def group_by_base(rows: Iterable[ModelRow]) -> list[ModelRow]:
    """Return the rows in the order of their jobs: models of one base are neighbours, the base is the first of them.

    No model waits for another. Jobs that run at the same time share the work on their base tensor by tensor: each
    reads what another one has computed (commands/esd/solve/cache.py). If they waited for the base, the other GPUs
    would be idle until it is done.
    """
    groups: dict[str, list[ModelRow]] = {}
    for row in rows:
        groups.setdefault(row.source or row.model, []).append(row)
    return [row for base, group in groups.items() for row in sorted(group, key=lambda row: row.model != base)]


def job_name(row: ModelRow) -> str:
    """Return the name of the job of a model: the model's name, if a job may have it."""
    try:
        return str(parse_value("name", encode(row.name)))
    except ValueError:
        return f"model-of-line-{row.line}"


def threads_per_job(jobs: int, at_once: int) -> int | None:
    """Share the CPU cores between the jobs that run at once; None if the user has set the number of threads."""
    if not jobs or "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ:
        return None
    return max(1, len(os.sched_getaffinity(0)) // max(1, min(jobs, at_once)))


def encode(text: str) -> bytes:
    """Return the bytes of text that may hold stray bytes of a file."""
    return text.encode("utf-8", "surrogateescape")
