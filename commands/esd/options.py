"""What one analysis is told to do, as a value. Reads no argv, knows no model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from gpusched.esd.model_record import DEFAULTS, options_of

Fingers = Literal["xmin_mid", "xmin_peak", "DKS"]
PeakWindow = Literal["near", "legacy"]
Solver = Literal["auto", "gram", "svd", "fast"]


@dataclass(frozen=True, slots=True)
class Options:
    """The first ten change numbers (core.modelrecord.DEFAULTS); the others only how they are come by.

    fix_fingers   where the tail begins: xmin_mid, xmin_peak, DKS
    evals_thresh  eigenvalues at or below it are left out, unless none is above
    bins          of xmin_peak's histogram
    peak_window   near: tails begin at 0.95 to 1.5 times the peak; legacy: at log10(0.95 peak) and up, as in other code
    solver        gram (float64), svd (float64), fast (float32 Gram); auto: gram, and svd where a Gram cannot resolve
    layers        only tensors whose name this regular expression finds; empty: all
    embeddings    embeddings too
    min_evals     fewer eigenvalues are not fitted
    farms         spectra of submatrices of one aspect ratio instead of the whole matrix's
    randomize     also the spectrum of the same entries in random order
    device        auto, cpu, cuda, cuda:N
    parallel      reading, Gram and eigensolver of consecutive layers overlap
    """

    fix_fingers: Fingers = DEFAULTS["fix_fingers"]
    evals_thresh: float = DEFAULTS["evals_thresh"]
    bins: int = DEFAULTS["bins"]
    peak_window: PeakWindow = DEFAULTS["peak_window"]
    solver: Solver = DEFAULTS["solver"]
    layers: str = DEFAULTS["layers"]
    embeddings: bool = DEFAULTS["embeddings"]
    min_evals: int = DEFAULTS["min_evals"]
    farms: bool = DEFAULTS["farms"]
    randomize: bool = DEFAULTS["randomize"]
    device: str = "auto"
    parallel: bool = True

    def __post_init__(self) -> None:
        """ValueError for what cannot be meant."""
        if self.fix_fingers not in ("xmin_mid", "xmin_peak", "DKS"):
            raise ValueError(f"fix_fingers is {self.fix_fingers!r}; give xmin_mid, xmin_peak or DKS")
        if self.peak_window not in ("near", "legacy"):
            raise ValueError(f"peak_window is {self.peak_window!r}; give near or legacy")
        if self.solver not in ("auto", "gram", "svd", "fast"):
            raise ValueError(f"solver is {self.solver!r}; give auto, gram, svd or fast")
        if not 0 <= self.evals_thresh < float("inf"):
            raise ValueError(f"evals_thresh is {self.evals_thresh}; give a number from 0 up")
        if self.bins < 1 or self.min_evals < 2:
            raise ValueError("bins is at least 1 and min_evals at least 2, the fewest that a tail can have")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device is {self.device!r}; give auto, cpu, cuda or cuda:N")
        try:
            re.compile(self.layers)
        except re.error as error:
            raise ValueError(f"layers is no regular expression: {error}") from None

    def as_record(self, *, source_model: str = "", relation: str = "") -> dict[str, Any]:
        """The `options` of this model's record."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return options_of(given, source_model=source_model, relation=relation)

    @property
    def wanted(self) -> Callable[[str], bool]:
        """Whether `layers` finds a name."""
        search = re.compile(self.layers).search
        return lambda name: search(name) is not None
