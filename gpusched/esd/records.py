"""The results in an output directory: the records of models, what they say of each of them, and the tables over all."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.text import one_line, safe_cell
from gpusched.esd.model_list import ModelRow
from gpusched.esd.model_record import (
    LEAST_COVERAGE,
    MOST_FIGURES,
    PLOTS,
    READABLE,
    RECORDS,
    TABLES,
    changed_file,
    is_of,
    is_whole,
    layer_picture,
    model_name,
    read_record,
)
from gpusched.esd.old_rules import follows_old_rules

SUMMARY = "esd_results_summary.csv"
SKIPPED = "skipped.csv"

_SKIPPED_COLUMNS = ("model", "tensor", "shape", "dtype", "reason")
SUCCEEDED = "succeeded"  # of a job, in the outcomes
PARTIAL, OLD_RULES = "partial", "old rules"
_MEANS = ("_mean", "_median")
_FIRST = ("name", "success", "alpha_mean", "alpha_median", "D_median")
_LAST = (
    *("under_trained", "over_trained", "flat", "coverage", "status"),
    *("layers", "skipped", "seconds", "peak_memory_bytes", "peak_gpu_bytes", "device", "solver"),
    *("error_stage", "error_reason", "notes", "model", "source_model", "relation", "revision"),
)


def has_plots(output: str, stem: str, wanted: bool | str = True) -> bool:
    """Return True if there are pictures of the table of this model, not of an earlier one; of the wanted layers too."""
    names = [f"{stem}-alpha.png"]
    try:
        made = os.stat(path := f"{output}/{TABLES}/{stem}.csv").st_mtime_ns
        if isinstance(wanted, str):
            with open(path, encoding="utf-8", newline="") as file:
                layers = [row["longname"] for row in csv.DictReader(file)]
            names += [f"{layer_picture(stem, layer)}.pdf" for layer in layers if re.search(wanted, layer)][
                :MOST_FIGURES
            ]
        return all(os.stat(f"{output}/{PLOTS}/{name}").st_mtime_ns >= made for name in names)
    except (OSError, KeyError, ValueError):
        return False


def make_directory(path: str) -> None:
    """Make a directory that can be written to. Raises GpuschedError otherwise."""
    with _writing(path):
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_file(path: str, content: str | bytes) -> None:
    """Replace a file, whole or not at all. Raises GpuschedError if that is impossible."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    with _writing(path):
        write_atomically(path, data, sync=True, mode=0o644)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "finished analyses are kept; make room, or choose another --output-dir, and start the command again"
        problem = f"cannot be written: {error.strerror}"
        raise GpuschedError(problem, where=path, hint=hint, exit_code=EXIT_CANNOT_WORK) from None


# ---- over all models -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one model. `success` None: it is not analysed yet, and `reason` says where it stands."""

    name: str
    success: bool | None
    record: Mapping[str, Any] = field(default_factory=dict)
    stage: str = ""
    reason: str = ""
    row: ModelRow | None = None  # None: it is not in the list
    flag: str = ""  # PARTIAL or OLD_RULES: its means stand for something else, and count nowhere

    @property
    def notes(self) -> str:
        """The notes of its record as one text."""
        return "; ".join([*([] if self.row else ["not in this list"]), *self.record.get("notes", ())])

    def cells(self) -> dict[str, str]:
        """Return the texts of its columns in the summary, and those of further fields of its record."""
        row = self.row
        status = self.flag or {True: "done", False: "failed", None: "waiting"}[self.success]
        values = {
            **{key: len(value) if isinstance(value, list) else value for key, value in self.record.items()},
            **{"name": self.name, "success": self.success, "notes": self.notes, "status": status},
            **{"error_stage": self.stage, "error_reason": self.reason},
        }
        if row is not None:
            values |= {"model": row.model, "source_model": row.source}
            values |= {"relation": row.relation, "revision": row.revision}
        hidden = _MEANS if self.flag else ()
        return {key: "" if key.endswith(hidden) else _text(value) for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class EsdSummary:
    """All models: those of the list in its order, then others in the output directory."""

    results: tuple[ModelResult, ...]

    @property
    def listed(self) -> list[ModelResult]:
        """The models of the list."""
        return [result for result in self.results if result.row is not None]

    @property
    def failed(self) -> list[ModelResult]:
        """The models of the list that failed."""
        return [result for result in self.listed if result.success is False]

    def table(self) -> list[dict[str, str]]:
        """Return the rows of the summary: the usual columns, and all other means and medians of the records."""
        fields = {key for result in self.results for key in result.record}
        more = sorted(key for key in fields.difference(_FIRST) if key.endswith(_MEANS))
        cells = [result.cells() for result in self.results]
        return [{column: each.get(column, "") for column in (*_FIRST, *more, *_LAST)} for each in cells]

    def write(self, output: str) -> None:
        """Write the two tables over all models."""
        skipped = [
            [_text(result.name), *(_text(item.get(key)) for key in _SKIPPED_COLUMNS[1:])]
            for result in self.results
            for item in result.record.get("skipped", ())
        ]
        table = self.table()
        columns = list(table[0]) if table else [*_FIRST, *_LAST]
        write_file(f"{output}/{SKIPPED}", _csv(_SKIPPED_COLUMNS, skipped))
        write_file(f"{output}/{SUMMARY}", _csv(columns, (each.values() for each in table)))


def summarise(
    output: str,
    options: Mapping[ModelRow, Mapping[str, Any]],
    outcomes: Mapping[ModelRow, str],
    *,
    again: bool = False,
) -> EsdSummary:
    """Read the result of each model. `outcomes`: how jobs have ended or where they stand.

    `options`: those in the record of each model. `again`: all models were to be analysed again, so a record of success
    says nothing about a job without success.
    """
    results = [_listed(output, row, options[row], outcomes.get(row, ""), again) for row in options]
    listed = {row.stem for row in options if not row.fault}
    return EsdSummary((*results, *_others(output, listed)))


def _listed(output: str, row: ModelRow, options: Mapping[str, Any], outcome: str, again: bool) -> ModelResult:
    if row.fault:
        return ModelResult(row.name, False, stage="list", reason=row.fault, row=row)
    record = read_record(output, row.stem)
    is_old = again and outcome not in ("", SUCCEEDED) and record.get("success")
    if is_of(record, revision=row.revision, options=options) and not is_old:
        return _result(output, row.stem, row.name, record, row)
    if outcome.startswith("failed"):
        return ModelResult(row.name, False, stage="job", reason=outcome, row=row)
    if outcome == SUCCEEDED:
        reason = "its command has succeeded and left no record of this analysis, as the stage of gpusched does"
        return ModelResult(row.name, False, stage="job", reason=reason, row=row)
    return ModelResult(row.name, None, stage="waiting", reason=outcome or "not analysed yet", row=row)


def _others(output: str, listed: set[str]) -> Iterator[ModelResult]:
    """Read the results of models that the list does not name."""
    folder = f"{output}/{RECORDS}"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for stem in (name.removesuffix(".json") for name in names if name.endswith(".json")):
        record = read_record(output, stem) if stem not in listed else {}
        if record.get("convention") in READABLE:
            yield _result(output, stem, model_name(stem), record)


def _result(output: str, stem: str, name: str, record: Mapping[str, Any], row: ModelRow | None = None) -> ModelResult:
    if not record.get("success"):
        error = record.get("error") or {"stage": "unknown", "reason": "its record does not say why"}
        return ModelResult(name, False, record, error["stage"], error["reason"], row)
    if not is_whole(output, stem, record):
        return ModelResult(name, None, stage="waiting", reason="its table is missing or was changed", row=row)
    if row and (path := changed_file(record)):
        return ModelResult(name, None, stage="waiting", reason=f"{path} has changed since the analysis", row=row)
    is_old = follows_old_rules(output, stem, record)
    flag = OLD_RULES if is_old else PARTIAL if record.get("coverage", 1.0) < LEAST_COVERAGE else ""
    return ModelResult(name, True, record, row=row, flag=flag)


def _text(value: object) -> str:
    """Return a value as one line that can be shown anywhere."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, (int, float)) else one_line(value)


def _csv(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[safe_cell(cell) for cell in row] for row in rows])
    return out.getvalue()
