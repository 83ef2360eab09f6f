"""How certain a power law is: against what Clauset, Shalizi and Newman (2009) state, and against simulation."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.fit.certainty import goodness_of_fit, interval
from gpusched.commands.esd.fit.power_law import Fit, fit, fit_without_fingers
from numpy.typing import NDArray

from gpusched.esd.options import AnalysisOptions

DKS = AnalysisOptions(fix_fingers="DKS")


def pareto(seed: int, size: int, alpha: float = 2.5) -> NDArray[np.float64]:
    return np.sort((1 - np.random.default_rng(seed).random(size)) ** (-1 / (alpha - 1)))


def whole(evals: NDArray[np.float64]) -> Fit:
    """The law of all values: the start of the tail is known, as in the example of the paper."""
    logs = np.log(evals / evals[0]).sum()
    return Fit("ok", 1 + len(evals) / logs, 0.01, float(evals[0]), 0, len(evals))


def test_the_papers_example() -> None:
    """Section 3.3 and figure 3.1: 10,000 draws of α = 2.5 give 2.50 with an error of 0.02 (0.015, rounded up)."""
    evals = pareto(1, 10_000)
    law = whole(evals)
    found = interval(evals, law)
    assert abs(law.alpha - 2.5) < 0.03 and found["sigma"] == (law.alpha - 1) / 100
    assert found["alpha_low"] == pytest.approx(law.alpha - 1.96 * found["sigma"], abs=0.01)
    assert found["alpha_high"] == pytest.approx(law.alpha + 1.96 * found["sigma"], abs=0.01)


def test_the_interval_holds_the_exponent_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        evals = pareto(seed, 300)
        found = interval(evals, whole(evals))
        hits += found["alpha_low"] <= 2.5 <= found["alpha_high"]
    assert 180 <= hits <= 199  # 95 % of 200, less three standard errors


@pytest.mark.slow
def test_p_is_even_for_power_laws_and_small_for_others() -> None:
    """As in section 4.1: of true power laws one in ten is ruled out by p < 0.1; exponential values all are."""
    shares = [goodness_of_fit(evals, fit(evals, DKS), DKS) for evals in (pareto(seed, 120) for seed in range(30))]
    assert sum(p < 0.1 for p in shares) <= 8 and max(shares) > 0.6 and np.mean(shares) == pytest.approx(0.5, abs=0.2)
    middle = AnalysisOptions()
    for seed in range(3):
        evals = np.sort(15 + np.random.default_rng(seed).exponential(8.0, 2000))
        assert goodness_of_fit(evals, fit(evals, middle), middle) < 0.1


def test_fingers_are_left_out() -> None:
    evals = np.append(np.sort(1 + 0.2 * np.random.default_rng(3).random(20)), [1e4, 2e4])
    clip = AnalysisOptions(clip_xmax=True, fix_fingers="DKS")
    assert fit_without_fingers(evals, DKS) == (fit(evals, DKS), 0)
    law, fingers = fit_without_fingers(evals, clip)
    assert (law, fingers) == (fit(evals, clip), 0)  # without them alpha is greater, not smaller
    middle = AnalysisOptions(clip_xmax=True)
    step = np.concatenate([np.geomspace(0.1, 5.0, 9), np.linspace(10, 11, 9)])
    law, fingers = fit_without_fingers(step, middle)  # one value less, and the tail begins below the step
    assert (law, fingers) == (fit(step[:-1], middle), 1) and law.alpha + 1 < fit(step, middle).alpha
    table = analyze({"w": torch.diag(torch.from_numpy(step).sqrt())}, clip_xmax=True)
    assert table.rows[0].num_fingers == 1 and table.rows[0].n_tail == law.n_tail
    assert table.rows[0].lambda_max == pytest.approx(11)  # all else is of the whole spectrum


def test_the_columns() -> None:
    weights = {"w": torch.randn(400, 300, generator=torch.Generator().manual_seed(1)), "zero": torch.zeros(5, 6)}
    table = analyze(weights, fit_tests=True)
    row, zero = table.rows
    assert row.alpha_low < row.alpha < row.alpha_high and row.sigma == (row.alpha - 1) / math.sqrt(row.n_tail)
    assert 0 <= row.p_value < 0.1 and row.num_fingers == 0  # noise is no power law
    assert all(math.isnan(value) for value in (zero.sigma, zero.alpha_low, zero.alpha_high, zero.p_value))
    again = analyze(weights, fit_tests=True)
    assert again.to_csv() == table.to_csv()
    assert math.isnan(analyze(weights).rows[0].p_value)
    assert float(next(csv.DictReader(io.StringIO(table.to_csv())))["alpha_low"]) == row.alpha_low


def test_results_without_the_tests_stay_done() -> None:
    assert "fit_tests" not in AnalysisOptions().as_record()
    assert AnalysisOptions(fit_tests=True, clip_xmax=True).as_record()["clip_xmax"] is True
