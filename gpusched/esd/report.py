"""The results of an experiment as values for people and for programs, and report.html over all models."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from typing import Any

from gpusched.common.option_table import options_of
from gpusched.core.model import MIB
from gpusched.esd import records
from gpusched.esd.compare.charts import charts
from gpusched.esd.experiment import EsdExperiment
from gpusched.esd.model_record import PLOTS, TABLES, file_stem
from gpusched.esd.options import AnalysisOptions
from gpusched.esd.records import OLD_RULES, SKIPPED, SUMMARY, ModelResult, has_plots
from gpusched.views.html.page import ModelLine, ModelReport, render

REPORT = "report.html"
COLUMNS = {  # of numbers: the field of the record, its head, and its digits behind the point
    "alpha_mean": ("α mean", 3),
    "alpha_median": ("α median", 3),
    "D_median": ("D median", 4),
    "under_trained": ("α > 6", 0),
    "over_trained": ("α < 2", 0),
    "layers": ("Layers", 0),
    "coverage": ("Coverage", 2),
    "skipped": ("Skipped", 0),
    "seconds": ("Seconds", 1),
    "peak_memory_bytes": ("Peak MiB", 0),
}


def read_results(experiment: EsdExperiment) -> tuple[list[ModelLine], list[tuple[str, str]]]:
    """Return the results of the models of the list, and labels with the paths of files."""
    output, summary = experiment.config.output, experiment.summary
    files = [("summary", f"{output}/{SUMMARY}"), ("report", f"{output}/{REPORT}")]
    if experiment.backend.queue_dir.exists():
        files.append(("logs", f"{experiment.backend.queue_dir.logs}/"))
    if any(result.flag == OLD_RULES for result in summary.listed):
        words = shlex.join(["gpusched", *experiment.config.words, "--redo-old"])
        files.append((OLD_RULES, f"{words} analyses these again"))
    return [_line(result, output) for result in summary.listed], files


def document(experiment: EsdExperiment, code: int) -> dict[str, Any]:
    """Return the results of all models, also those that are not in the list, as a JSON document."""
    output = experiment.config.output
    return {
        "exit_code": code,
        "output": output,
        "summary": f"{output}/{SUMMARY}",
        "skipped": f"{output}/{SKIPPED}",
        "report": f"{output}/{REPORT}",
        "queue": experiment.backend.queue_dir.path,
        "models": experiment.summary.table(),
    }


def write_report(experiment: EsdExperiment, now: float) -> None:
    """Write report.html over all models beside their results."""
    config, output = experiment.config, experiment.config.output
    options = [
        f"{each.name.replace('_', ' ')} {getattr(config, each.name)}"
        for each in options_of(AnalysisOptions)
        if each.changes_numbers and (each.name == "fix_fingers" or getattr(config, each.name) != each.default)
    ]
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    models = tuple(_line(result, output) for result in experiment.summary.results)
    report = ModelReport(
        title=os.path.basename(output),
        about=f"{', '.join(options)}; written {written}; {output}",
        columns=tuple(COLUMNS.values()),
        word_columns=("Device", "Relation", "Source"),
        models=models,
        charts=tuple(charts(experiment.summary.results, output)),
    )
    records.write_file(f"{output}/{REPORT}", render(report))


def _line(result: ModelResult, output: str) -> ModelLine:
    """Return one model as the page and the report show it."""
    if not result.success:
        state, reason = ("waiting", "") if result.success is None else ("failed", f"{result.stage}: ")
        return ModelLine(result.name, state, reason=reason + result.reason, notes=result.notes)
    cells = result.cells()
    numbers = {column: float(cells[column]) if cells.get(column) else None for column in COLUMNS}
    if numbers["peak_memory_bytes"] is not None:
        numbers["peak_memory_bytes"] /= MIB
    coverage = numbers["coverage"]
    missing = f"{coverage:.1%} of the elements of its layers" if coverage is not None and coverage < 1.0 else ""
    return ModelLine(
        result.name,
        "done",
        numbers=tuple(numbers.values()),
        words=tuple(cells.get(column, "") for column in ("device", "relation", "source_model")),
        links=tuple(_links(output, file_stem(result.name))),
        notes=result.notes,
        flag=result.flag,
        missing="; ".join(filter(None, (missing, result.flag))),
    )


def _links(output: str, stem: str) -> Iterator[tuple[str, str]]:
    """Return labels and paths, relative to the report, of the table of a model and of the pictures of that table."""
    yield "table", f"{TABLES}/{stem}.csv"
    if has_plots(output, stem):
        yield "α", f"{PLOTS}/{stem}-alpha.png"
        page, path = 1, f"{PLOTS}/{stem}-esd.png"
        while os.path.exists(f"{output}/{path}"):
            yield "spectra" if page == 1 else str(page), path
            page, path = page + 1, f"{PLOTS}/{stem}-esd-{page + 1}.png"
