"""The table of a model as CSV: in our own columns, or in the names and meanings of another tool."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpusched.common.text import safe_cell

Column = str | Callable[[Any, Any], Any]  # the name of our column, or a function of a row and its eigenvalues

_WEAK = 1e-6  # WeightWatcher's WEAK_RANK_LOSS_TOLERANCE


def _or(column: str, missing: float) -> Column:
    """Return a column in which a number that is missing is written as this one."""
    return lambda row, evals: value if math.isfinite(value := getattr(row, column)) else missing


# WeightWatcher 0.7: `details`. N is the longer side, xmin the start of the tail, sigma the error of the exponent.
_WW: Mapping[str, Column] = {
    "layer_id": "layer_id",
    "name": lambda row, evals: row.longname.rpartition(".")[2],
    "D": _or("D", -1.0),
    "M": lambda row, evals: min(row.M, row.N),
    "N": lambda row, evals: max(row.M, row.N),
    "Q": "Q",
    "alpha": _or("alpha", -1.0),
    "alpha_weighted": _or("alpha_weighted", -1.0),
    "entropy": "entropy",
    "has_esd": lambda row, evals: True,
    "lambda_max": "lambda_max",
    "layer_type": lambda row, evals: "conv2d" if row.kind == "conv" else "dense",
    "log_alpha_norm": "log_alpha_norm",
    "log_norm": "log_norm",
    "log_spectral_norm": "log_spectral_norm",
    "longname": "longname",
    "matrix_rank": "matrix_rank",
    "norm": "norm",
    "num_evals": "raw_num_evals",
    "num_pl_spikes": "num_pl_spikes",
    "rank_loss": "rank_loss",
    "rf": lambda row, evals: max(1, row.params // (row.M * row.N)),
    "sigma": _or("sigma", 0.0),
    "spectral_norm": "spectral_norm",
    "stable_rank": "stable_rank",
    "status": lambda row, evals: "success" if row.fit_status == "ok" else "failed",
    "sv_max": lambda row, evals: math.sqrt(row.xmax),
    "sv_min": lambda row, evals: math.sqrt(evals[0]),
    "warning": "warning",
    "weak_rank_loss": lambda row, evals: int((evals < _WEAK).sum()),
    "xmax": "xmax",
    "xmin": _or("fit_xmin", -1.0),
}
# NetESD: M and N as stored, xmin the smallest eigenvalue that was kept, -1 and 1 where there is no fit.
_NETESD: Mapping[str, Column] = {
    "D": _or("D", 1.0),
    "M": "M",
    "N": "N",
    "alpha": _or("alpha", -1.0),
    "alpha_weighted": lambda row, evals: (row.alpha if math.isfinite(row.alpha) else -1.0) * row.log_spectral_norm,
    "entropy": "entropy",
    "log_alpha_norm": _or("log_alpha_norm", -1.0),
    **{name: name for name in ("log_norm", "log_spectral_norm", "longname", "matrix_rank", "norm", "num_evals")},
    **{name: name for name in ("spectral_norm", "stable_rank", "xmax", "xmin", "params")},
}
FORMATS: Mapping[str, Mapping[str, Column]] = {"ww": _WW, "netesd": _NETESD}


def as_csv(rows: Sequence[Any], spectra: Mapping[str, Any], columns: Mapping[str, Column]) -> str:
    """Return rows as CSV with numbers in full. No text begins as a formula does: an apostrophe stands before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            safe_cell(getattr(row, column) if isinstance(column, str) else column(row, spectra[row.longname]))
            for column in columns.values()
        )
    return text.getvalue()
