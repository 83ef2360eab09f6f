"""The end of `gpusched esd` as a page of text: counts, models with their exponents, failures, and files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpusched.common.text import clean
from gpusched.views import tables
from gpusched.views.html.page import ModelLine
from gpusched.views.tables import Line, Row
from gpusched.views.words import count, fit, short_path

SHOWN_MODELS = 25
SHOWN_FAILED = 20
WARNING = "warning: "  # what begins with it among the notes of a model is shown
_REASON_WIDTH = 200
_HEAD = ("MODEL", "ALPHA", "MEDIAN", ">6", "<2", "LAYERS", "COVERAGE", "SKIPPED", "SECONDS", "DEVICE")


def page(models: Sequence[ModelLine], files: Sequence[tuple[str, str]], cwd: str) -> list[Line]:
    """Lay out the results of models, and labels with paths; those below `cwd` are shown relative to it."""
    done = [model for model in models if model.state == "done"]
    failed = [model for model in models if model.state == "failed"]
    waiting = len(models) - len(done) - len(failed)
    parts: list[tables.Cell] = [(f"{len(done)} done", tables.STATES["succeeded"] if done else ""), ", "]
    parts.append((f"{len(failed)} failed", tables.STATES["failed"] if failed else ""))
    total = count(len(models), "model")
    lines = [tables.line(*parts, f", {waiting} not yet" if waiting else "", f" of {total}")]
    if done:
        rows = [_row(model) for model in done[:SHOWN_MODELS]]
        lines += tables.grid(_HEAD, rows, right="ALPHA MEDIAN >6 <2 LAYERS COVERAGE SKIPPED SECONDS", indent=2)
        lines += _rest(done, SHOWN_MODELS)
    if failed:
        broken: list[Row] = [
            [(clean(model.name), tables.STATES["failed"]), fit(clean(model.reason), _REASON_WIDTH)]
            for model in failed[:SHOWN_FAILED]
        ]
        lines += tables.grid(["FAILED", "AT STAGE: WHY"], broken, indent=2)
        lines += _rest(failed, SHOWN_FAILED)
    lines += _warnings(done)
    last: list[Row] = [[label, short_path(path, cwd)] for label, path in files]
    if waiting:
        last.append(["next", "the same command goes on with what is not done"])
    if failed:
        last.append(["" if waiting else "next", "the same command with --retry-failed tries the failed ones again"])
    return lines + tables.labelled(last)


def _row(model: ModelLine) -> Row:
    mean, median, _, under, over, layers, coverage, skipped, seconds, _ = model.numbers
    values = ((mean, 3), (median, 3), (under, 0), (over, 0), (layers, 0), (skipped, 0), (seconds, 1))
    numbers = ["" if value is None else f"{value:.{digits}f}" for value, digits in values]
    share = "" if coverage is None else f"{math.floor(coverage * 100)} %"
    numbers.insert(5, " ".join(filter(None, (share, model.flag))))
    return [clean(model.name), *numbers, model.words[0]]


def _warnings(models: Sequence[ModelLine]) -> list[Line]:
    """Lay out what the notes of models warn of."""
    found: list[Row] = [
        [clean(model.name), fit(clean(note.removeprefix(WARNING)), _REASON_WIDTH)]
        for model in models
        for note in model.notes.split("; ")
        if note.startswith(WARNING)
    ]
    rest = [tables.line(f"  … and {len(found) - SHOWN_FAILED} more")] if len(found) > SHOWN_FAILED else []
    return tables.grid(["WARNING", ""], found[:SHOWN_FAILED], indent=2) + rest if found else []


def _rest(models: Sequence[ModelLine], limit: int) -> list[Line]:
    return [tables.line(f"  … and {len(models) - limit} more")] if len(models) > limit else []
