"""Fit a power law to the tail of a spectrum: its start, its exponent, its distance. Knows no matrix.

For N eigenvalues λ in ascending order, the tail at index i has n = N - i of them and the maximum-likelihood exponent
α = 1 + n / Σ_{j≥i} ln(λj/λi). Its distance from the power law is the Kolmogorov-Smirnov distance
D = max_{j≥i} |1 - (λj/λi)^(1-α) - (j-i)/n| (Clauset, Shalizi, Newman: Power-law distributions in empirical data, 2009).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpusched.esd.options import AnalysisOptions

Floats = NDArray[np.float64]

_PROBES = np.arange(1, 9) / 8.0  # places in a tail for the first lower bound of its D
_FLAT, _LEAST_SPREAD = 2.0, 2e-5  # as measured on orthogonal matrices: docs/esd-method.md
_MOST_FINGERS, _LEAST_FALL, _LEAST_ALPHA = 9, 1.0, 2.0  # as in WeightWatcher's clip_xmax
_SLACK = 1e-13  # bounds and distances are sums in different orders: a tail this close is kept


@dataclass(frozen=True, slots=True)
class Fit:
    """A power law. `status`: ok, or why alpha, D and xmin are NaN: too_few, zeros, flat, no_candidate."""

    status: str
    alpha: float = math.nan
    D: float = math.nan
    xmin: float = math.nan  # the smallest eigenvalue of the tail
    index: int = -1  # its index among the eigenvalues above the threshold
    n_tail: int = 0


def kept(evals: Floats, threshold: float) -> Floats:
    """Return the eigenvalues above the threshold; all, if none is. They are ascending."""
    first = int(np.searchsorted(evals, threshold, side="right"))
    return evals[first:] if first < len(evals) else evals


def fit(evals: Floats, options: AnalysisOptions, rounding: float = 0.0) -> Fit:
    """Return the power law of these eigenvalues: ascending, not negative, above the threshold.

    `rounding`: the distance from 1 to the next number of the stored type. A tail that spreads no more than the rounding
    of its weights lets it spread is flat.
    """
    if len(evals) < options.min_evals:
        return Fit("too_few")
    if evals[-1] <= 0:
        return Fit("zeros")
    tails = PowerLawTails(evals, max(_FLAT * rounding, _LEAST_SPREAD))
    if options.fix_fingers == "xmin_mid":
        return tails.at(min(len(evals) // 2, len(evals) - 2))
    if options.fix_fingers == "DKS":
        return tails.best(0, len(evals) - 1)
    low, high = peak_window(evals[tails.first :], options)
    return tails.best(int(np.searchsorted(evals, low, "left")), int(np.searchsorted(evals, high, "right")))


def fit_without_fingers(evals: Floats, options: AnalysisOptions, rounding: float = 0.0) -> tuple[Fit, int]:
    """Return the power law, and how many of the greatest eigenvalues it leaves out: 0 without `clip_xmax`.

    A few eigenvalues far above the others, fingers, raise the exponent. As many are left out, up to nine, as make it
    fall by more than 1; none, if it falls to 2 before.
    """
    first = fit(evals, options, rounding)
    if not options.clip_xmax or first.status != "ok":
        return first, 0
    for fingers in range(1, _MOST_FINGERS + 1):
        law = fit(evals[:-fingers], options, rounding)
        if law.status != "ok":
            break
        if law.alpha + _LEAST_FALL < first.alpha:
            return law, fingers
        if law.alpha <= _LEAST_ALPHA:
            break
    return first, 0


def peak_window(evals: Floats, options: AnalysisOptions) -> tuple[float, float]:
    """Return the least and the greatest eigenvalue at which xmin_peak lets the tail begin.

    The peak is the left edge of the fullest of `bins` equal bins of log10 λ, the first of several.
    """
    counts, edges = np.histogram(np.log10(evals), options.bins)
    peak = 10.0 ** float(edges[int(np.argmax(counts))])
    low = 0.95 * peak
    return float(np.log10(low)) if options.peak_window == "legacy" else low, 1.5 * peak


class PowerLawTails:
    """All tails of one spectrum."""

    def __init__(self, evals: Floats, least_spread: float = 0.0) -> None:
        """`evals`: ascending; the last is greater than 0. A tail with ln(λmax/λi) up to `least_spread` is flat."""
        self.evals = evals
        self.first = int(np.searchsorted(evals, 0.0, side="right"))  # zeros have no logarithm
        self.logs = np.zeros(len(evals))
        self.logs[self.first :] = np.log(evals[self.first :])
        self.sizes = len(evals) - np.arange(len(evals), dtype=np.float64)
        # Σ_{j≥i} ln(λj/λi), as a sum of positive terms: no digits are lost by cancellation.
        sums = np.zeros(len(evals))
        steps = np.diff(self.logs[self.first :])
        sums[self.first : -1] = np.cumsum((steps * self.sizes[self.first + 1 :])[::-1])[::-1]
        sums[self.logs[-1] - self.logs <= least_spread] = 0.0
        with np.errstate(divide="ignore"):
            self.alphas = 1.0 + self.sizes / sums

    def at(self, index: int) -> Fit:
        """Return the fit of the tail that begins at this index."""
        if index < self.first:
            return Fit("zeros")
        alpha = float(self.alphas[index])
        if not 1.0 < alpha < float("inf"):
            return Fit("flat")
        return Fit("ok", alpha, self._distance(index)[0], float(self.evals[index]), index, len(self.evals) - index)

    def best(self, low: int, high: int) -> Fit:
        """Return the fit of the smallest D among the tails that begin at low ≤ i < high and have two values or more.

        Of equal ones, the first. The result is that of trying all tails: the distance at a few points is a lower bound
        of D, and a tail whose bound is above the smallest D so far is dropped. Each D sharpens the other bounds, since
        neighbouring tails are far from their laws at the same place.
        """
        left = np.arange(max(low, self.first), min(high, len(self.evals) - 1))
        if not len(left):
            return Fit("no_candidate")
        left = left[np.isfinite(self.alphas[left]) & (self.alphas[left] > 1.0)]
        if not len(left):
            return Fit("flat")
        bounds = np.zeros(len(left))
        for probe in _PROBES:
            points = np.minimum(left + (self.sizes[left] * probe).astype(np.int64), len(self.evals) - 1)
            np.maximum(bounds, self._gap(left, points), out=bounds)
        winner, smallest = -1, float("inf")
        while len(left):
            best = int(np.argmin(bounds))
            index = int(left[best])
            distance, farthest = self._distance(index)
            if (distance, index) < (smallest, winner):
                winner, smallest = index, distance
            bounds[best] = float("inf")
            reach = int(np.searchsorted(left, farthest, side="right"))
            np.maximum(bounds[:reach], self._gap(left[:reach], farthest), out=bounds[:reach])
            stay = bounds <= smallest + _SLACK
            left, bounds = left[stay], bounds[stay]
        return self.at(winner)

    def _distance(self, index: int) -> tuple[float, int]:
        """Return D of a tail, and the index at which the tail is that far from its law."""
        law = -np.expm1((1.0 - self.alphas[index]) * (self.logs[index:] - self.logs[index]))
        gaps = np.abs(law - np.arange(len(law)) / len(law))
        farthest = int(np.argmax(gaps))
        return float(gaps[farthest]), index + farthest

    def _gap(self, tails: NDArray[np.int64], points: NDArray[np.int64] | int) -> Floats:
        """Return the distance of each tail from its law at one of its points."""
        law = -np.expm1((1.0 - self.alphas[tails]) * (self.logs[points] - self.logs[tails]))
        gap: Floats = np.abs(law - (points - tails) / self.sizes[tails])
        return gap
