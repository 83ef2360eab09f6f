"""Norms, ranks and entropy of a spectrum. Fits nothing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_SINGLE = float(np.finfo(np.float32).eps)  # no stored weight is more precise in a way that matters for a rank


def norms(evals: NDArray[np.float64], alpha: float) -> dict[str, float]:
    """Return λmax, Σλ, log10 Σλ, the stable rank Σλ/λmax, α log10 λmax and log10 Σ λ^α, by column.

    `evals`: ascending. NaN where a logarithm has no value (Martin, Peng, Mahoney, Nature Communications 2021).
    """
    largest, total = float(evals[-1]), float(evals.sum())
    logarithm = math.log10(largest) if largest > 0 else math.nan
    alpha_norm = math.nan
    if largest > 0 and math.isfinite(alpha):
        alpha_norm = alpha * logarithm + math.log10(float(np.sum((evals / largest) ** alpha)))
    return {
        "spectral_norm": largest,
        "lambda_max": largest,
        "log_spectral_norm": logarithm,
        "norm": total,
        "log_norm": math.log10(total) if total > 0 else math.nan,
        "stable_rank": total / largest if largest > 0 else math.nan,
        "alpha_weighted": alpha * logarithm,
        "log_alpha_norm": alpha_norm,
    }


def matrix_rank(evals: NDArray[np.float64], longest: int) -> int:
    """Return the number of singular values above σmax · longest side · eps of float32."""
    singular = np.sqrt(evals)
    return int(np.count_nonzero(singular > singular[-1] * longest * _SINGLE))


def entropy(evals: NDArray[np.float64], rank: int) -> float:
    """Return -Σ p ln p / ln rank with p = λ/Σλ: 1 if all directions weigh the same, NaN for a rank below 2."""
    total = float(evals.sum())
    if rank < 2 or not total > 0:
        return math.nan
    shares = evals[evals > 0] / total
    return float(-np.sum(shares * np.log(shares)) / math.log(rank))
