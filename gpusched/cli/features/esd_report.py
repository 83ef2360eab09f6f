"""What `gpusched esd` says at its end: how many models are done, their exponents, and what has failed. Runs nothing."""

from __future__ import annotations

import contextlib
import math
import os
import time
from typing import TYPE_CHECKING, Any

from gpusched.core.model import MIB
from gpusched.esd.model_record import TABLES, file_stem
from gpusched.esd.options import AnalysisOptions, options_of
from gpusched.operations import queues

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusched.esd.experiment import EsdWorkshop
    from gpusched.esd.jobs import EsdExperiment
    from gpusched.esd.records import ModelResult
    from gpusched.views.tables import Line, Row

REPORT = "report.html"
SHOWN_MODELS = 25
SHOWN_FAILED = 20
_REASON_WIDTH = 200


def page(experiment: EsdExperiment, workshop: EsdWorkshop) -> list[Line]:
    """The end for people: counts, the first models, the failed ones with their reasons, where all of it lies."""
    from gpusched.common.text import clean
    from gpusched.esd.records import SUMMARY, has_plots
    from gpusched.views import tables
    from gpusched.views.words import count, fit, short_path

    listed = experiment.summary.listed
    done = [result for result in listed if result.success]
    failed = experiment.summary.failed
    waiting = len(listed) - len(done) - len(failed)
    parts: list[tables.Cell] = [(f"{len(done)} done", tables.STATES["succeeded"] if done else ""), ", "]
    parts.append((f"{len(failed)} failed", tables.STATES["failed"] if failed else ""))
    lines = [tables.line(*parts, f", {waiting} not yet" if waiting else "", f" of {count(len(listed), 'model')}")]
    rows: list[Row] = [_row(result) for result in done[:SHOWN_MODELS]]
    if rows:
        head = ["MODEL", "ALPHA", "MEDIAN", "LAYERS", "SKIPPED", "SECONDS", "DEVICE"]
        lines += tables.grid(head, rows, right="ALPHA MEDIAN LAYERS SKIPPED SECONDS", indent=2)
    if len(done) > SHOWN_MODELS:
        lines.append(tables.line(f"  … and {len(done) - SHOWN_MODELS} more"))
    reasons = [fit(f"{result.stage}: {clean(result.reason)}", _REASON_WIDTH) for result in failed[:SHOWN_FAILED]]
    broken: list[Row] = [
        [(clean(result.name), tables.STATES["failed"]), reason] for result, reason in zip(failed, reasons, strict=False)
    ]
    lines += tables.grid(["FAILED", "AT STAGE: WHY"], broken, indent=2) if broken else []
    if len(failed) > SHOWN_FAILED:
        lines.append(tables.line(f"  … and {len(failed) - SHOWN_FAILED} more"))
    cwd = queues.current_directory()
    paths: list[Row] = [
        ["summary", short_path(f"{experiment.output}/{SUMMARY}", cwd)],
        ["report", short_path(f"{experiment.output}/{REPORT}", cwd)],
    ]
    if workshop.place.exists():
        paths.append(["logs", short_path(workshop.place.logs, cwd) + "/"])
    undrawn = [r for r in done if experiment.config.plots and not has_plots(experiment.output, file_stem(r.name))]
    if undrawn:
        which = clean(undrawn[0].name) + (", …" if len(undrawn) > 1 else "")
        paths.append(["pictures", f"of {count(len(undrawn), 'model')} could not be drawn ({which}); the logs say why"])
    steps = ["the same command goes on with what is not done"] if waiting else []
    if undrawn or any(result.stage != "list" for result in failed):
        steps.append("the same command with --retry-failed tries the failed ones again")
    paths += [["next" if n == 0 else "", step] for n, step in enumerate(steps)]
    return lines + tables.grid(["", ""], paths)


def _row(result: ModelResult) -> Row:
    from gpusched.common.text import clean

    return [
        clean(result.name),
        _number(result.record.get("alpha_mean"), 3),
        _number(result.record.get("alpha_median"), 3),
        result.cell("layers"),
        result.cell("skipped"),
        _number(result.record.get("seconds"), 1),
        result.cell("device"),
    ]


def _number(value: object, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else ""


def document(experiment: EsdExperiment, workshop: EsdWorkshop, code: int) -> dict[str, Any]:
    """The same for programs."""
    from gpusched.esd.records import SKIPPED, SUMMARY

    summary = experiment.summary
    columns = summary.columns
    return {
        "exit_code": code,
        "output": experiment.output,
        "summary": f"{experiment.output}/{SUMMARY}",
        "skipped": f"{experiment.output}/{SKIPPED}",
        "report": f"{experiment.output}/{REPORT}",
        "queue": workshop.place.path,
        "models": [{column: result.cell(column) for column in columns} for result in summary.results],
    }


# ---- the page --------------------------------------------------------------------------------------


def write_report(experiment: EsdExperiment, now: float) -> None:
    """Write report.html over all models beside their results."""
    from gpusched.views.html import ModelLine, ModelReport, render

    config = experiment.config
    how = [
        f"{each.name.replace('_', ' ')} {getattr(config, each.name)}"
        for each in options_of(AnalysisOptions)
        if each.changes_numbers and (each.name == "fix_fingers" or getattr(config, each.name) != each.default)
    ]
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(now))
    models: list[ModelLine] = []
    alphas: list[float] = []
    for result in experiment.summary.results:
        if not result.success:
            state = "waiting" if result.success is None else "failed"
            reason = f"{result.stage}: {result.reason}" if state == "failed" else result.reason
            models.append(ModelLine(result.name, state, reason=reason, notes=result.notes))
            continue
        values = [_value(result, key) for key in _KEYS]
        words = tuple(result.cell(key) for key in ("device", "relation", "source_model"))
        links = tuple(_links(experiment.output, file_stem(result.name)))
        models.append(ModelLine(result.name, "done", tuple(values), words, links, notes=result.notes))
        alphas += _alphas(f"{experiment.output}/{links[0][1]}")
    means = tuple(model.numbers[0] for model in models if model.numbers and model.numbers[0] is not None)
    text = render(
        ModelReport(
            os.path.basename(experiment.output),
            f"{', '.join(how)}; written {made}; {experiment.output}",
            _COLUMNS,
            ("Device", "Relation", "Source"),
            tuple(models),
            (("α of each layer", tuple(alphas)), ("mean α of each model", means if len(means) >= _LEAST_MEANS else ())),
        )
    )
    experiment.workshop.write(f"{experiment.output}/{REPORT}", text)


_COLUMNS = (
    ("α mean", 3),
    ("α median", 3),
    ("D median", 4),
    ("Layers", 0),
    ("Skipped", 0),
    ("Seconds", 1),
    ("Peak MiB", 0),
)
_LEAST_MEANS = 8  # of so few models the table says more
_KEYS = ("alpha_mean", "alpha_median", "D_median", "layers", "skipped", "seconds", "peak_memory_bytes")


def _value(result: ModelResult, key: str) -> float | None:
    value = result.record.get(key)
    if isinstance(value, list):
        return float(len(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value / MIB if key.endswith("_bytes") else float(value)


def _links(output: str, stem: str) -> Iterator[tuple[str, str]]:
    """Labels and paths beside the page: the table, and the pictures that were drawn of it."""
    from gpusched.esd.records import PLOTS, has_plots

    yield "table", f"{TABLES}/{stem}.csv"
    if has_plots(output, stem):
        yield "α", f"{PLOTS}/{stem}-alpha.png"
        page, path = 1, f"{PLOTS}/{stem}-esd.png"
        while os.path.exists(f"{output}/{path}"):
            yield "spectra" if page == 1 else str(page), path
            page, path = page + 1, f"{PLOTS}/{stem}-esd-{page + 1}.png"


def _alphas(path: str) -> list[float]:
    """The exponents in the table of a model, as far as it can be read."""
    import csv

    found: list[float] = []
    try:
        with open(path, encoding="utf-8", newline="", errors="replace") as file:
            for row in csv.DictReader(file):
                with contextlib.suppress(ValueError, TypeError):
                    found.append(float(row.get("alpha") or "nan"))
    except (OSError, csv.Error):
        pass
    return [alpha for alpha in found if math.isfinite(alpha)]
