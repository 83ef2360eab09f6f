"""What `gpusched esd` says at its end: how many models are done, their exponents, and what has failed. Runs nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusched.api import EsdWorkshop
    from gpusched.experiments.esd import EsdExperiment
    from gpusched.experiments.esdrecords import Result
    from gpusched.views.tables import Line, Row

SHOWN_MODELS = 25
SHOWN_FAILED = 20
_REASON_WIDTH = 200


def page(experiment: EsdExperiment, workshop: EsdWorkshop) -> list[Line]:
    """The end for people: counts, the first models, the failed ones with their reasons, where all of it lies."""
    from gpusched.core.masking import clean
    from gpusched.experiments.esdrecords import SUMMARY
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
    for result in failed[:SHOWN_FAILED]:
        reason = fit(f"{result.stage}: {clean(result.reason)}", _REASON_WIDTH)
        lines.append(tables.line("  ", (clean(result.name), tables.STATES["failed"]), f"  {reason}"))
    if len(failed) > SHOWN_FAILED:
        lines.append(tables.line(f"  … and {len(failed) - SHOWN_FAILED} more"))
    cwd = os.getcwd()
    paths: list[Row] = [["summary", short_path(f"{experiment.output}/{SUMMARY}", cwd)]]
    if workshop.place.exists():
        paths.append(["logs", short_path(workshop.place.logs, cwd) + "/"])
    steps = ["the same command goes on with what is not done"] if waiting else []
    if any(result.stage != "list" for result in failed):
        steps.append("the same command with --retry-failed tries the failed ones again")
    paths += [["next" if n == 0 else "", step] for n, step in enumerate(steps)]
    return lines + tables.grid(["", ""], paths)


def _row(result: Result) -> Row:
    from gpusched.core.masking import clean

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
    from gpusched.experiments.esdrecords import SKIPPED, SUMMARY

    summary = experiment.summary
    columns = summary.columns
    return {
        "exit_code": code,
        "output": experiment.output,
        "summary": f"{experiment.output}/{SUMMARY}",
        "skipped": f"{experiment.output}/{SKIPPED}",
        "queue": workshop.place.path,
        "models": [{column: result.cell(column) for column in columns} for result in summary.results],
    }
