"""What a spectrum says besides its power law: norms, ranks, entropy; and where chance would end. Fits nothing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_SINGLE = float(np.finfo(np.float32).eps)  # no stored weight is more precise in a way that a rank could rest on


def norms(evals: NDArray[np.float64], alpha: float) -> dict[str, float]:
    """Spectral norm λmax, norm Σλ, their logarithms to base 10, stable rank Σλ/λmax, and what alpha weighs.

    alpha_weighted = α log10 λmax; log_alpha_norm = log10 Σ λ^α. NaN where a logarithm has no value.
    """
    largest, total = float(evals[-1]), float(evals.sum())
    logarithm = math.log10(largest) if largest > 0 else math.nan
    alpha_norm = math.nan
    if largest > 0 and math.isfinite(alpha):
        alpha_norm = alpha * logarithm + math.log10(float(np.sum((evals / largest) ** alpha)))
    return {
        "spectral_norm": largest,
        "norm": total,
        "log_norm": math.log10(total) if total > 0 else math.nan,
        "stable_rank": total / largest if largest > 0 else math.nan,
        "alpha_weighted": alpha * logarithm,
        "log_alpha_norm": alpha_norm,
    }


def matrix_rank(evals: NDArray[np.float64], longest: int) -> int:
    """How many singular values are above σmax · longest side · float32's eps."""
    singular = np.sqrt(evals)
    return int(np.count_nonzero(singular > singular[-1] * longest * _SINGLE))


def entropy(evals: NDArray[np.float64], rank: int) -> float:
    """-Σ p ln p / ln rank with p = λ/Σλ: 1 if all directions weigh the same. NaN for a rank below 2."""
    total = float(evals.sum())
    if rank < 2 or not total > 0:
        return math.nan
    shares = evals[evals > 0] / total
    return float(-np.sum(shares * np.log(shares)) / math.log(rank))


def bulk_edges(variance: float, rows: int, columns: int) -> tuple[float, float]:
    """Least and greatest eigenvalue of WᵀW for independent entries of that variance: s² (√rows ∓ √columns)².

    Marchenko and Pastur, Distribution of eigenvalues for some sets of random matrices, 1967, without its 1/N.
    """
    low, high = (variance * (math.sqrt(rows) + sign * math.sqrt(columns)) ** 2 for sign in (-1, 1))
    return low, high
