"""The results in an output directory: the records of models, what they say of each of them, and the tables over all."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.text import clean, mask_secrets
from gpusched.esd.model_list import ModelRow
from gpusched.esd.model_record import CONVENTION, RECORDS, TABLES, file_stem, is_done

SUMMARY = "esd_results_summary.csv"
SKIPPED = "skipped.csv"
PLOTS = "plots"

_RECORD_LIMIT_BYTES = 64 << 20
_LONGEST_TEXT = 500
_SKIPPED_COLUMNS = ("model", "tensor", "shape", "dtype", "reason")
_FIRST = ("name", "success", "alpha_mean", "alpha_median", "D_median")
_LAST = (
    *("layers", "skipped", "seconds", "peak_memory_bytes", "peak_gpu_bytes", "device", "solver"),
    *("error_stage", "error_reason", "notes", "model", "source_model", "relation", "revision"),
)


@dataclass(frozen=True, slots=True)
class ExpectedRecord:
    """The revision and the options that a record must have to belong to the analysis that the user wants."""

    revision: str
    options: Mapping[str, Any]

    def is_met(self, record: Mapping[str, Any]) -> bool:
        """Return True if this very analysis was done."""
        return is_done(record, revision=self.revision, options=self.options)

    def is_failed(self, record: Mapping[str, Any]) -> bool:
        """Return True if this very analysis failed."""
        return record.get("success") is False and self.is_met({**record, "success": True})

    def is_of(self, record: Mapping[str, Any]) -> bool:
        """Return True if this very analysis ended, well or not."""
        return self.is_met(record) or self.is_failed(record)


def read_record(output: str, stem: str) -> dict[str, Any]:
    """Return the record of a model; empty if there is none that can be read."""
    try:
        with open(os.open(f"{output}/{RECORDS}/{stem}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            record = json.loads(file.read(_RECORD_LIMIT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def is_whole(output: str, stem: str, record: Mapping[str, Any]) -> bool:
    """Return True if the table that the record describes is there, with the size that the record states."""
    table = record.get("csv")
    try:
        return isinstance(table, dict) and os.lstat(f"{output}/{TABLES}/{stem}.csv").st_size == table.get("size")
    except OSError:
        return False


def has_plots(output: str, stem: str) -> bool:
    """Return True if there are pictures of the table of this model, not of an earlier one."""
    try:
        drawn = os.stat(f"{output}/{PLOTS}/{stem}-alpha.png").st_mtime_ns
        return drawn >= os.stat(f"{output}/{TABLES}/{stem}.csv").st_mtime_ns
    except OSError:
        return False


def make_directory(path: str) -> None:
    """Make a directory that can be written to. Raises GpuschedError otherwise."""
    try:
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _unwritable(path, error) from None


def write_file(path: str, text: str) -> None:
    """Replace a file, whole or not at all. Raises GpuschedError if that is impossible."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, text.encode("utf-8", "backslashreplace"), sync=True, mode=0o644)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> GpuschedError:
    hint = "finished analyses are kept; make room, or choose another --output-dir, and start the command again"
    return GpuschedError(f"cannot be written: {error.strerror}", where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)


# ---- over all models -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one model. `success` None: it is not analysed yet, and `reason` says where it stands."""

    name: str
    success: bool | None
    record: Mapping[str, Any]
    stage: str = ""
    reason: str = ""
    notes: str = ""
    row: ModelRow | None = None  # None: it is not in the list

    def cell(self, column: str) -> str:
        """Return the text of one column of the summary."""
        if column in ("name", "notes"):
            return _text(getattr(self, column))
        if column == "success":
            return "" if self.success is None else str(self.success).lower()
        if column == "error_stage":
            return _text(self.stage)
        if column == "error_reason":
            return _text(self.reason)
        if column in ("model", "source_model", "relation", "revision"):
            field = "source" if column == "source_model" else column
            return _text(getattr(self.row, field) if self.row is not None else self.record.get(column))
        value = self.record.get(column)
        return _text(len(value) if isinstance(value, list) else value)


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

    @property
    def columns(self) -> list[str]:
        """The columns of the summary: the usual ones, and all other means and medians that the records have."""
        more = {
            key
            for result in self.results
            for key in result.record
            if key.endswith(("_mean", "_median")) and key not in _FIRST
        }
        return [*_FIRST, *sorted(more), *_LAST]

    def files(self, output: str) -> list[tuple[str, str]]:
        """Return the paths and contents of the two tables."""
        columns = self.columns
        rows = ([result.cell(column) for column in columns] for result in self.results)
        return [
            (f"{output}/{SKIPPED}", _csv(_SKIPPED_COLUMNS, self._skipped())),
            (f"{output}/{SUMMARY}", _csv(columns, rows)),
        ]

    def _skipped(self) -> Iterator[list[str]]:
        for result in self.results:
            for item in _list(result.record.get("skipped")):
                if isinstance(item, dict):
                    yield [_text(result.name), *(_text(item.get(key)) for key in _SKIPPED_COLUMNS[1:])]


def summarise(
    output: str, expected: Mapping[ModelRow, ExpectedRecord], outcomes: Mapping[ModelRow, str], *, again: bool = False
) -> EsdSummary:
    """Read the result of each model. `outcomes`: how jobs that did not succeed have ended or where they stand.

    `again`: all models were to be analysed again, so a record of success says nothing about a job without success.
    """
    results = [_listed(output, row, expected[row], outcomes.get(row, ""), again) for row in expected]
    listed = {row.stem for row in expected if not row.fault}
    return EsdSummary((*results, *_others(output, listed)))


def _listed(output: str, row: ModelRow, expected: ExpectedRecord, outcome: str, again: bool) -> ModelResult:
    if row.fault:
        return ModelResult(row.name, False, {}, "list", row.fault, row=row)
    record = read_record(output, row.stem)
    notes = _notes(record)
    if not expected.is_of(record) or (again and outcome and expected.is_met(record)):
        if outcome.startswith("failed"):
            return ModelResult(row.name, False, {}, "job", outcome, row=row)
        return ModelResult(row.name, None, {}, "waiting", outcome or "not analysed yet", row=row)
    if not expected.is_met(record):
        return ModelResult(row.name, False, record, *_error(record), notes=notes, row=row)
    if not is_whole(output, row.stem, record):
        return ModelResult(row.name, None, {}, "waiting", "its table is missing or was changed", row=row)
    return ModelResult(row.name, True, record, notes=notes, row=row)


def _others(output: str, listed: set[str]) -> Iterator[ModelResult]:
    """Read the results of models that the list does not name."""
    try:
        names = sorted(os.listdir(f"{output}/{RECORDS}"))
    except OSError:
        return
    for stem in (name.removesuffix(".json") for name in names if name.endswith(".json")):
        record = read_record(output, stem) if stem not in listed else {}
        name = record.get("name")
        if not isinstance(name, str) or not _is_stem_of(stem, name) or record.get("convention") != CONVENTION:
            continue
        whole = record.get("success") is True and is_whole(output, stem, record)
        notes = "; ".join(filter(None, ["not in this list", _notes(record)]))
        yield ModelResult(name, whole, record, *(("", "") if whole else _error(record)), notes)


def _is_stem_of(stem: str, name: str) -> bool:
    try:
        return file_stem(name) == stem
    except ValueError:
        return False


def _error(record: Mapping[str, Any]) -> tuple[str, str]:
    error = record.get("error")
    if not isinstance(error, dict):
        return "unknown", "its record does not say why"
    return str(error.get("stage", "unknown")), str(error.get("reason", ""))


def _notes(record: Mapping[str, Any]) -> str:
    return "; ".join(map(str, _list(record.get("notes"))))


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a value as one line that can be shown anywhere."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    text = clean(mask_secrets(" ".join(str(value).split())))
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()
