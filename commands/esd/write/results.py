"""What an analysis leaves of one model: rows, table, spectra, record, whole or not at all. Computes no spectrum."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gpusched.common.text import one_line
from gpusched.esd.model_record import CONVENTION, RECORDS, SPECTRA, TABLES, file_stem

from ..read.layers import Skip

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Row:
    """One layer. What could not be had is NaN, and `fit_status` says why there is no fit.

    Everything but raw_num_evals is of the eigenvalues that were kept (docs/esd-method.md).
    """

    longname: str
    shape: str  # as stored, "4096x11008"
    dtype: str  # as stored
    alpha: float
    D: float
    fit_xmin: float
    n_tail: int
    fit_status: str
    xmin: float
    xmax: float
    spectral_norm: float
    norm: float
    log_norm: float
    stable_rank: float
    alpha_weighted: float
    log_alpha_norm: float
    matrix_rank: int
    entropy: float
    num_evals: int
    raw_num_evals: int
    solver: str
    device: str
    convention: int = CONVENTION
    note: str = ""
    rand_xmax: float = NAN  # of the same entries in random order (--randomize)
    rand_bulk_min: float = NAN  # where Marchenko and Pastur let chance begin
    rand_bulk_max: float = NAN  # and end
    rand_num_spikes: int | None = None  # eigenvalues of the layer above that


COLUMNS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True, slots=True)
class Table:
    """The analysis of one model: a row for each layer, a skip for each tensor without one, all in the model's order."""

    rows: Sequence[Row]
    skipped: Sequence[Skip]
    spectra: Mapping[str, NDArray[np.float64]]  # longname -> all eigenvalues, ascending
    notes: Sequence[str] = ()

    def as_columns(self) -> dict[str, list[Any]]:
        """Column -> values: what a data frame is made of."""
        return {name: [getattr(row, name) for row in self.rows] for name in COLUMNS}

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table as CSV, numbers in full; written there too, if a path is given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(["" if value is None else value for value in astuple(row)] for row in self.rows)
        if path is not None:
            written = text.getvalue()
            replace(Path(path), lambda file: file.write(written.encode()))
        return text.getvalue()

    def statistics(self) -> dict[str, float | None]:
        """Means and medians over the layers that have a fit; None where there is none."""
        fitted = [row for row in self.rows if row.fit_status == "ok"]

        def over(what: Callable[[Sequence[float]], float], name: str) -> float | None:
            values = [value for value in (getattr(row, name) for row in fitted) if math.isfinite(value)]
            return float(what(values)) if values else None

        found = {}
        for name in ("alpha", "D", "alpha_weighted", "log_alpha_norm", "log_norm", "spectral_norm", "stable_rank"):
            found[f"{name}_mean"] = over(statistics.fmean, name)
            found[f"{name}_median"] = over(statistics.median, name)
        return found


def skip_record(skip: Skip) -> dict[str, str]:
    return {
        "tensor": one_line(skip.tensor.name),
        "shape": "x".join(map(str, skip.tensor.shape)),
        "dtype": skip.tensor.dtype,
        "reason": one_line(skip.reason),
    }


def save(directory: Path, name: str, table: Table, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write table, spectra, and last the record, of which `about` is a part. OSError where nothing can be written."""
    stem = file_stem(name)
    text = table.to_csv().encode()
    replace(directory / TABLES / f"{stem}.csv", lambda file: file.write(text))
    replace(directory / SPECTRA / f"{stem}.npz", lambda file: _write_spectra(file, table.spectra))
    record = {
        **_head(name, about),
        "success": True,
        "layers": len(table.rows),
        "fitted": sum(row.fit_status == "ok" for row in table.rows),
        "skipped": [skip_record(skip) for skip in table.skipped],
        **table.statistics(),
        "notes": [one_line(note) for note in table.notes],
        "csv": {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()},
        "error": None,
    }
    _write_record(directory, stem, record)
    return record


def save_failure(directory: Path, name: str, stage: str, reason: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a model that cannot be analysed, and nothing else: what an older analysis left is taken away."""
    stem = file_stem(name)
    for room, suffix in ((TABLES, "csv"), (SPECTRA, "npz")):
        (directory / room / f"{stem}.{suffix}").unlink(missing_ok=True)
    record = {**_head(name, about), "success": False, "error": {"stage": stage, "reason": one_line(reason)}}
    _write_record(directory, stem, record)
    return record


def read_record(directory: Path, name: str) -> dict[str, Any]:
    """The record of that model, if it is there whole, with its spectra and the table that it names; else empty."""
    stem = file_stem(name)
    try:
        record = json.loads((directory / RECORDS / f"{stem}.json").read_bytes())
        if record.get("success"):
            text = (directory / TABLES / f"{stem}.csv").read_bytes()
            whole = hashlib.sha256(text).hexdigest() == record["csv"]["sha256"]
            if not (whole and (directory / SPECTRA / f"{stem}.npz").exists()):
                return {}
        return dict(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file by temporary name, fsync and rename, so that it is there whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _head(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "convention": CONVENTION, **about}


def _write_record(directory: Path, stem: str, record: Mapping[str, Any]) -> None:
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    replace(directory / RECORDS / f"{stem}.json", lambda file: file.write(text.encode()))


def _write_spectra(file: IO[bytes], spectra: Mapping[str, NDArray[np.float64]]) -> None:
    """An npz file, as numpy.load reads it; with no time in it, so that the same spectra make the same file."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, evals in spectra.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, evals, allow_pickle=False)
