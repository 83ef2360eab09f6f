"""The certainty of a power law: an interval of its exponent, and a test whether it is one. Both repeat to the bit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpusched.esd.options import AnalysisOptions

from .power_law import Fit, fit

Floats = NDArray[np.float64]

_RESAMPLES = 200
_INTERVAL = (2.5, 97.5)  # percentiles
_SIMULATIONS = 500  # p is then known to 0.022 (1/(4 ε²) of them, Clauset, Shalizi, Newman 2009, section 4.1)
_SEED = 1


def interval(evals: Floats, law: Fit) -> dict[str, float]:
    """Return σ = (α - 1)/√n, and percentiles of the exponents of resampled tails, by column; nothing without a fit.

    The start of the tail is kept.
    """
    if law.status != "ok":
        return {}
    logs = np.log(evals[law.index :] / law.xmin)
    sums = np.random.default_rng(_SEED).choice(logs, (_RESAMPLES, law.n_tail)).sum(axis=1)
    with np.errstate(divide="ignore"):
        low, high = np.percentile(1.0 + law.n_tail / sums, _INTERVAL, method="nearest")
    return {
        "sigma": (law.alpha - 1.0) / float(np.sqrt(law.n_tail)),
        "alpha_low": float(low),
        "alpha_high": float(high),
    }


def goodness_of_fit(evals: Floats, law: Fit, options: AnalysisOptions) -> float:
    """Return the share of simulated spectra that lie as far from their own power laws as this one, or farther.

    A simulated spectrum has as many values, each with the probability of the tail from the fitted law, else one of
    those below the tail; it is fitted in the same way (Clauset, Shalizi, Newman 2009, section 4.1). They rule the power
    law out below p = 0.1. NaN without a fit.
    """
    if law.status != "ok":
        return math.nan
    random = np.random.default_rng(_SEED)
    total, farther = len(evals), 0
    for _ in range(_SIMULATIONS):
        n_tail = int(random.binomial(total, law.n_tail / total)) if law.index else total
        tail = law.xmin * (1.0 - random.random(n_tail)) ** (-1.0 / (law.alpha - 1.0))
        body = random.choice(evals[: law.index], total - n_tail) if law.index else evals[:0]
        simulated = fit(np.sort(np.concatenate([body, tail])), options)
        farther += simulated.status == "ok" and simulated.D >= law.D
    return farther / _SIMULATIONS
