"""The results of one model: rows, table, spectra and record, each file written whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusched.common.text import one_line
from gpusched.esd.model_record import CONVENTION, RECORDS, SPECTRA, TABLES, file_stem

from ..weights.layers import Skip
from .files import write_file
from .tables import FORMATS, as_csv

OVER_TRAINED, UNDER_TRAINED = "over-trained", "under-trained"
_USUAL = (2.0, 6.0)  # where the exponents of well-trained layers mostly lie (Martin, Peng, Mahoney 2021)
_LINES, _NAME = 20, 40  # of a printed table: layers, and characters of a name
_MEASURES = ("alpha", "D", "alpha_weighted", "log_alpha_norm", "log_norm", "spectral_norm", "stable_rank")


@dataclass(frozen=True, slots=True)
class Row:
    """One layer. A missing number is NaN; `fit_status` says why there is no fit.

    All columns but raw_num_evals are of the eigenvalues above the threshold (docs/esd-method.md).
    """

    longname: str  # without ".weight"
    layer_id: int  # in the order of depth, from 0
    block: int | None
    kind: str
    shape: str  # as stored, "4096x11008"
    dtype: str  # as stored, or how it is packed
    M: int  # rows and columns of the matrix
    N: int
    Q: float  # the longer side over the shorter one
    params: int
    alpha: float
    D: float
    fit_xmin: float
    n_tail: int
    num_pl_spikes: int  # WeightWatcher's name of n_tail
    fit_status: str
    warning: str
    xmin: float
    xmax: float
    spectral_norm: float
    lambda_max: float
    log_spectral_norm: float
    norm: float
    log_norm: float
    stable_rank: float
    alpha_weighted: float
    log_alpha_norm: float
    matrix_rank: int
    rank_loss: int
    entropy: float
    num_evals: int
    raw_num_evals: int
    solver: str
    device: str
    status: str = "success"
    model_id: str = ""
    is_adapter: bool = False
    source_model: str = ""
    convention: int = CONVENTION
    note: str = ""
    rand_xmax: float = math.nan  # of the same entries in random order (--randomize)
    rand_bulk_min: float = math.nan  # the edges of a random matrix's spectrum (Marchenko and Pastur)
    rand_bulk_max: float = math.nan
    rand_num_spikes: int | None = None  # eigenvalues of the layer above the upper edge
    sigma: float = math.nan  # the standard error of alpha
    alpha_low: float = math.nan  # a 95 % interval of alpha
    alpha_high: float = math.nan
    p_value: float = math.nan  # of the test whether the tail is a power law (--fit-tests)
    num_fingers: int = 0  # of the greatest eigenvalues, how many the fit leaves out (--clip-xmax)
    mp_scale: float = (
        math.nan
    )  # the fit of Marchenko and Pastur's law: standard deviation of the entries, edges, spikes
    mp_bulk_min: float = math.nan
    mp_bulk_max: float = math.nan
    mp_num_spikes: int | None = None
    mp_spike_share: float = math.nan  # of the sum of all eigenvalues, the part of the spikes
    delta_base: str = ""  # the base of the change that is analysed (--delta)
    delta_norm: float = math.nan  # ‖ΔW‖, the root of the sum of its eigenvalues
    overlap_1: float = math.nan  # of the leading singular vectors before and after the change (--delta-vectors)
    overlap_8: float = math.nan
    overlap_64: float = math.nan
    intruders: int | None = None  # of the ten leading vectors after it, those that are unlike all before


def warning_of(alpha: float) -> str:
    """Return what an exponent warns of, in the words of WeightWatcher; "" for nothing, and without a fit."""
    return OVER_TRAINED if alpha < _USUAL[0] else UNDER_TRAINED if alpha > _USUAL[1] else ""


COLUMNS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True, slots=True)
class Table:
    """The analysis of one model: a row for each layer, a skip for each other tensor, both in the model's order."""

    rows: Sequence[Row]
    skipped: Sequence[Skip]
    spectra: Mapping[str, NDArray[np.float64]]  # longname, or with SHUFFLED -> all eigenvalues, ascending
    notes: Sequence[str] = ()

    def as_columns(self) -> dict[str, list[Any]]:
        """Return the values by column, as for a data frame."""
        return {name: [getattr(row, name) for row in self.rows] for name in COLUMNS}

    def to_csv(self, path: str | os.PathLike[str] | None = None, *, columns: str = "own") -> str:
        """Return the table as CSV with numbers in full; write it to `path`, if there is one.

        `columns`: own, ww or netesd, for the names and meanings of WeightWatcher and NetESD.
        """
        text = as_csv(self.rows, self.spectra, FORMATS.get(columns) or {name: name for name in COLUMNS})
        if path is not None:
            write_file(Path(path), text.encode())
        return text

    def to_pandas(self) -> Any:
        """Return the table as a data frame."""
        import pandas

        return pandas.DataFrame(self.as_columns())

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return the figure of alpha by layer; save it to `path`, if there is one."""
        from .plots import alpha_figure

        layers = list(csv.DictReader(io.StringIO(self.to_csv())))
        figure = alpha_figure(self.rows[0].model_id if self.rows else "", layers)
        if path is not None:
            figure.savefig(path)
        return figure

    def summary(self) -> dict[str, float | int | None]:
        """Return the statistics with the numbers of layers and of skipped tensors, and the coverage."""
        counts = {"layers": len(self.rows), "skipped": len(self.skipped), "coverage": self.coverage}
        return {**counts, **self.statistics()}

    def __str__(self) -> str:
        """Return the first layers in a few columns, as fits a screen."""
        cells = [("layer", "kind", "shape", "alpha", "D", "fit")]
        cells += [
            (row.longname[-_NAME:], row.kind, row.shape, f"{row.alpha:.3f}", f"{row.D:.3f}", row.fit_status)
            for row in self.rows[:_LINES]
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
        if len(self.rows) > _LINES:
            lines.append(f"… and {len(self.rows) - _LINES} more")
        mean = self.statistics()["alpha_mean"]
        counts = f"{len(self.rows)} layers, {len(self.skipped)} skipped, coverage {self.coverage:.0%}"
        return "\n".join([*lines, counts + (f", mean alpha {mean:.3f}" if mean is not None else "")])

    @property
    def coverage(self) -> float:
        """The share of the elements of all layers that is analysed; 0 if there is no layer."""
        analysed = sum(row.params for row in self.rows)
        return analysed / max(1, analysed + sum(skip.missing for skip in self.skipped))

    def statistics(self) -> dict[str, float | int | None]:
        """Return means and medians over the layers that have a fit, None if there is none; and counts of layers."""
        warnings = Counter(row.warning for row in self.rows)
        result: dict[str, float | int | None] = {
            "under_trained": warnings[UNDER_TRAINED],
            "over_trained": warnings[OVER_TRAINED],
            "flat": sum(row.fit_status == "flat" for row in self.rows),
        }
        for name in _MEASURES:
            values = [getattr(row, name) for row in self.rows if row.fit_status == "ok"]
            finite = [value for value in values if math.isfinite(value)]
            result[f"{name}_mean"] = math.fsum(finite) / len(finite) if finite else None
            result[f"{name}_median"] = float(np.median(finite)) if finite else None
        return result


def save(directory: Path, name: str, table: Table, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write table, spectra, and last the record, which contains `about`; return it. Raises OSError."""
    stem = file_stem(name)
    text = table.to_csv(columns=about["options"].get("columns", "own")).encode()
    write_file(directory / TABLES / f"{stem}.csv", text)
    spectra: dict[str, Any] = {**table.spectra}
    data = io.BytesIO()
    np.savez(data, **spectra)  # has no times in it: the same spectra make the same bytes
    write_file(directory / SPECTRA / f"{stem}.npz", data.getvalue())
    record = {
        "success": True,
        "layers": len(table.rows),
        "fitted": sum(row.fit_status == "ok" for row in table.rows),
        "coverage": table.coverage,
        "skipped": [_skip_record(skip) for skip in table.skipped],
        **table.statistics(),
        "notes": [one_line(note) for note in table.notes],
        "csv": {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()},
        "error": None,
    }
    return _write_record(directory, name, about, record)


def save_failure(directory: Path, name: str, stage: str, reason: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the record of a model that cannot be analysed, and remove the results of an earlier analysis."""
    stem = file_stem(name)
    for room, suffix in ((TABLES, "csv"), (SPECTRA, "npz")):
        (directory / room / f"{stem}.{suffix}").unlink(missing_ok=True)
    error = {"stage": stage, "reason": one_line(reason)}
    return _write_record(directory, name, about, {"success": False, "error": error})


def _skip_record(skip: Skip) -> dict[str, str]:
    return {
        "tensor": one_line(skip.tensor.name),
        "shape": "x".join(map(str, skip.tensor.shape)),
        "dtype": skip.tensor.dtype,
        "reason": one_line(skip.reason),
    }


def _write_record(directory: Path, name: str, about: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    record = {"name": name, "convention": CONVENTION, **about, **result}
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    write_file(directory / RECORDS / f"{file_stem(name)}.json", text.encode())
    return record
