"""The power law in the tail of a spectrum: where it begins, its exponent, how well it fits. Knows no matrix.

For the N eigenvalues λ in ascending order, the tail at index i has n = N - i of them and the exponent of greatest
likelihood α = 1 + n / Σ_{j≥i} ln(λj/λi). Its distance from the power law is the Kolmogorov-Smirnov distance
D = max_{j≥i} |1 - (λj/λi)^(1-α) - (j-i)/n| (Clauset, Shalizi, Newman: Power-law distributions in empirical data, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..options import Options

Floats = NDArray[np.float64]

NAN = float("nan")
_PROBES = np.arange(1, 9) / 8.0  # where in a tail the first lower bound of its D is looked up
_SLACK = 1e-13  # a bound and a distance are the same sum in another order; nothing this close is ruled out


@dataclass(frozen=True, slots=True)
class Fit:
    """`status`: ok; or why alpha, D and xmin are NaN: too_few, zeros, flat, no_candidate."""

    status: str
    alpha: float = NAN
    D: float = NAN
    xmin: float = NAN  # the smallest eigenvalue of the tail
    index: int = -1  # its place among the eigenvalues that were kept
    n_tail: int = 0


def kept(evals: Floats, threshold: float) -> Floats:
    """The eigenvalues above the threshold; all, if none is. Ascending, as given."""
    first = int(np.searchsorted(evals, threshold, side="right"))
    return evals[first:] if first < len(evals) else evals


def fit(evals: Floats, options: Options) -> Fit:
    """The power law of these eigenvalues: ascending, not negative, those to be kept."""
    if len(evals) < options.min_evals:
        return Fit("too_few")
    if evals[-1] <= 0:
        return Fit("zeros")
    tails = Tails(evals)
    if options.fix_fingers == "xmin_mid":
        return tails.at(min(len(evals) // 2, len(evals) - 2))
    if options.fix_fingers == "DKS":
        return tails.best(0, len(evals) - 1)
    low, high = peak_window(evals[tails.first :], options)
    return tails.best(int(np.searchsorted(evals, low, "left")), int(np.searchsorted(evals, high, "right")))


def peak_window(evals: Floats, options: Options) -> tuple[float, float]:
    """The least and the greatest eigenvalue at which xmin_peak lets the tail begin.

    The peak is the left edge of the fullest of `bins` equal bins of log10 λ, the first of several.
    """
    counts, edges = np.histogram(np.log10(evals), options.bins)
    peak = 10.0 ** float(edges[int(np.argmax(counts))])
    low = 0.95 * peak
    return float(np.log10(low)) if options.peak_window == "legacy" else low, 1.5 * peak


class Tails:
    """All tails of one spectrum."""

    def __init__(self, evals: Floats) -> None:
        """`evals`: ascending; the last is greater than 0."""
        self.evals = evals
        self.first = int(np.searchsorted(evals, 0.0, side="right"))  # a tail has a logarithm
        self.logs = np.zeros(len(evals))
        self.logs[self.first :] = np.log(evals[self.first :])
        self.sizes = len(evals) - np.arange(len(evals), dtype=np.float64)
        # Σ_{j≥i} ln(λj/λi), as a sum of what is not negative: no tail, however narrow, loses digits by cancelling.
        sums = np.zeros(len(evals))
        with np.errstate(divide="ignore", over="ignore"):
            steps = np.log(evals[self.first + 1 :] / evals[self.first : -1])
            steps = np.where(np.isfinite(steps), steps, np.diff(self.logs[self.first :]))
            sums[self.first : -1] = np.cumsum((steps * self.sizes[self.first + 1 :])[::-1])[::-1]
            self.alphas = 1.0 + self.sizes / sums

    def at(self, index: int) -> Fit:
        """The tail that begins there."""
        if index < self.first:
            return Fit("zeros")
        alpha = float(self.alphas[index])
        if not 1.0 < alpha < float("inf"):
            return Fit("flat")
        return Fit("ok", alpha, self._distance(index)[0], float(self.evals[index]), index, len(self.evals) - index)

    def best(self, low: int, high: int) -> Fit:
        """The tail of the smallest D among those that begin at low ≤ i < high and have two values; the first of equals.

        The same answer as trying all, found sooner: D at a few points is less than D. Whoever's bound is above the
        smallest D so far is out; and where one tail is farthest from its law, its neighbours are far from theirs, so
        that each D found sharpens the bounds of those left.
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
            place = int(np.argmin(bounds))
            index = int(left[place])
            found, farthest = self._distance(index)
            if (found, index) < (smallest, winner):
                winner, smallest = index, found
            bounds[place] = float("inf")
            reach = int(np.searchsorted(left, farthest, side="right"))
            np.maximum(bounds[:reach], self._gap(left[:reach], farthest), out=bounds[:reach])
            stay = bounds <= smallest + _SLACK
            left, bounds = left[stay], bounds[stay]
        return self.at(winner)

    def _distance(self, index: int) -> tuple[float, int]:
        """D of a tail, and the index at which the tail is so far from its law."""
        law = -np.expm1((1.0 - self.alphas[index]) * (self.logs[index:] - self.logs[index]))
        gaps = np.abs(law - np.arange(len(law)) / len(law))
        farthest = int(np.argmax(gaps))
        return float(gaps[farthest]), index + farthest

    def _gap(self, tails: NDArray[np.int64], points: NDArray[np.int64] | int) -> Floats:
        """How far each tail is from its law at one of its points."""
        law = -np.expm1((1.0 - self.alphas[tails]) * (self.logs[points] - self.logs[tails]))
        gap: Floats = np.abs(law - (points - tails) / self.sizes[tails])
        return gap
