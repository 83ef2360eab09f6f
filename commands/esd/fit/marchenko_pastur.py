"""Fit the law of Marchenko and Pastur to the bulk of a spectrum, and find the spikes above it.

A matrix of independent entries with standard deviation s has eigenvalues of WᵀW between s² (√M ∓ √N)². What a layer has
learned lies above (Martin and Mahoney, Implicit self-regularization in deep neural networks, JMLR 2021).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..solve.randomized import bulk_edges

Floats = NDArray[np.float64]

_STEPS = 20_000
_TRACY_WIDOM = 2.0234  # its 0.99 quantile for real matrices: noise alone has a spike in one layer of a hundred


def fit_bulk(evals: Floats, rows: int, columns: int) -> dict[str, float]:
    """Return the bulk of all eigenvalues, ascending, of matrices with these sides, and what lies above it, by column.

    The scale is that of the median: s² = median / (M · median of the law), M the longer side, so that a few spikes do
    not move it (Gavish and Donoho, The optimal hard threshold for singular values is 4/√3, 2014, section III-E). A
    spike is farther above the edge than the greatest eigenvalue of noise in 99 of 100 matrices (Johnstone, On the
    distribution of the largest eigenvalue in principal components analysis, 2001). Nothing where there is no bulk: half
    of the eigenvalues are zero.
    """
    short, long = sorted((rows, columns))
    middle = float(np.median(evals))
    if short < 2 or len(evals) < short or not 0 < middle < math.inf:  # fewer: those of a small equivalent
        return {}
    variance = middle / (long * median_of_law(short / long))
    sides = math.sqrt(long - 1) + math.sqrt(short)
    width = sides * (1 / math.sqrt(long - 1) + 1 / math.sqrt(short)) ** (1 / 3)
    spikes = evals[evals > variance * (sides**2 + _TRACY_WIDOM * width)]
    low, high = bulk_edges(variance, rows, columns)
    return {
        "mp_scale": math.sqrt(variance),  # the standard deviation of entries with this bulk
        "mp_bulk_min": low,
        "mp_bulk_max": high,
        "mp_num_spikes": len(spikes),  # eigenvalues that noise does not explain
        "mp_spike_share": float(spikes.sum() / evals.sum()),
    }


@cache
def median_of_law(ratio: float) -> float:
    """Return the median of the law with this ratio of the sides, 0 < ratio ≤ 1, for s²M = 1."""
    angles = (np.arange(_STEPS) + 0.5) * (math.pi / _STEPS)  # x = 1 + ratio + 2 √ratio cos(angle)
    values = 1 + ratio + 2 * math.sqrt(ratio) * np.cos(angles)
    masses = np.sin(angles) ** 2 / values
    return float(np.interp(masses.sum() / 2, np.cumsum(masses) - masses / 2, values))


def density_of_law(values: Floats, low: float, high: float) -> Floats:
    """Return the density of the law with these edges: √((high-λ)(λ-low)) / (2π λ s²N), √high - √low = 2 s √N."""
    inside = np.clip((high - values) * (values - low), 0, None)
    density: Floats = np.sqrt(inside) / (2 * math.pi * values * ((math.sqrt(high) - math.sqrt(low)) / 2) ** 2)
    return density
