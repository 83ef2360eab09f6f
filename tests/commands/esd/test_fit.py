"""Power laws of spectra: reference answers on stored spectra, and the pruned search against trying all."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from gpusched.commands.esd.fit.power_law import Fit, Tails, fit, kept
from gpusched.commands.esd.options import Options
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.paths import TESTS

CASES = TESTS / "cases" / "esd"
MODES = ("xmin_mid", "xmin_peak", "DKS")

Floats = NDArray[np.float64]


def options(row: dict[str, str]) -> Options:
    """The options that a row of a reference table was made with."""
    window = "legacy" if row["variant"] == "legacy" else "near"
    return Options(fix_fingers=row["mode"], peak_window=window)


def reference(name: str) -> list[dict[str, str]]:
    with open(CASES / f"reference_{name}.csv", newline="") as file:
        return list(csv.DictReader(file))


def close(found: float, wanted: str | float, tolerance: float) -> bool:
    expected = float(wanted)
    return (math.isnan(found) and math.isnan(expected)) or math.isclose(found, expected, rel_tol=tolerance)


def naive(evals: Floats, index: int) -> tuple[float, float]:
    """Alpha and D of one tail, as they are defined."""
    tail = evals[index:]
    n = len(tail)
    total = math.fsum(math.log(value / tail[0]) for value in tail)
    if total == 0:
        return math.inf, math.nan
    alpha = 1 + n / total
    return alpha, max(abs(1 - (value / tail[0]) ** (1 - alpha) - j / n) for j, value in enumerate(tail))


def test_reference_answers_on_stored_spectra() -> None:
    rows = reference("minilm")
    assert len(rows) == 160
    with np.load(CASES / "minilm_evals.npz") as spectra:
        stored = {name: spectra[name] for name in spectra.files}
    for row in rows:
        found = fit(kept(stored[row["name"]], 1e-5), options(row))
        assert found.status == "ok"
        assert (found.index, found.n_tail) == (int(row["fit_index"]), int(row["n_tail"])), row
        assert close(found.alpha, row["alpha"], 1e-9) and close(found.D, row["D"], 1e-9), row
        assert close(found.xmin, row["fit_xmin"], 1e-12)


spectra = st.one_of(
    st.lists(st.floats(1e-6, 1e4), min_size=2, max_size=40),
    st.lists(st.sampled_from([0.0, 1e-300, 0.5, 1.0, 1.0 + 1e-15, 2.0, 3.0, 1e300]), min_size=2, max_size=12),
).map(lambda values: np.sort(np.asarray(values)))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(spectra)
@example(np.array([1.0, 1.0, 1.0]))
@example(np.array([0.0, 0.0, 1.0, 2.0]))
def test_pruned_search_finds_what_trying_all_finds(evals: Floats) -> None:
    if evals[-1] <= 0:
        return
    tails = Tails(evals)
    every = [tails.at(index) for index in range(len(evals) - 1)]
    fitted = [found for found in every if found.status == "ok"]
    best = tails.best(0, len(evals) - 1)
    if fitted:
        assert best == min(fitted, key=lambda found: (found.D, found.index))
    else:
        assert best.status == "flat" or (best.status == "no_candidate" and tails.first >= len(evals) - 1)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=30, unique=True).map(lambda v: np.sort(np.asarray(v))))
def test_tails_are_as_defined(evals: Floats) -> None:
    tails = Tails(evals)
    for index in range(len(evals) - 1):
        alpha, distance = naive(evals, index)
        found = tails.at(index)
        if alpha < 1e6:  # beyond it, the logarithm of a ratio has too few digits in either way
            assert math.isclose(found.alpha, alpha, rel_tol=1e-8)
            assert math.isclose(found.D, distance, abs_tol=1e-7)


@pytest.mark.parametrize("size", [5, 64, 700])
@pytest.mark.parametrize("kind", ["pareto", "uniform", "lognormal"])
def test_pruned_search_on_spectra_as_they_are(size: int, kind: str) -> None:
    random = np.random.default_rng(size)
    drawn = {
        "pareto": random.pareto(1.5, size) + 0.1,
        "uniform": random.random(size),
        "lognormal": np.exp(random.normal(size=size)),
    }
    evals = np.sort(drawn[kind])
    tails = Tails(evals)
    every = [tails.at(index) for index in range(size - 1)]
    assert tails.best(0, size - 1) == min(every, key=lambda found: (found.D, found.index))


def test_the_exponent_of_a_pareto_law_is_found() -> None:
    evals = np.sort(np.random.default_rng(7).pareto(1.5, 20_000) + 1)
    for mode in MODES:
        assert abs(fit(evals, Options(fix_fingers=mode)).alpha - 2.5) < 0.1


@pytest.mark.parametrize(
    ("evals", "mode", "status"),
    [
        ([1.0], "xmin_mid", "too_few"),
        ([0.0, 0.0, 0.0], "DKS", "zeros"),
        ([2.0, 2.0, 2.0, 2.0], "xmin_mid", "flat"),
        ([2.0, 2.0, 2.0, 2.0], "DKS", "flat"),
        ([0.0, 0.0, 0.0, 3.0], "xmin_mid", "zeros"),
        ([0.0, 0.0, 0.0, 3.0], "DKS", "no_candidate"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_why_there_is_no_fit(evals: list[float], mode: str, status: str) -> None:
    found = fit(np.asarray(evals), Options(fix_fingers=mode))
    assert found.status == status
    assert all(math.isnan(value) for value in (found.alpha, found.D, found.xmin))


def test_min_evals_is_a_bound() -> None:
    evals = np.arange(1.0, 11.0)
    assert fit(evals, Options(min_evals=11)) == Fit("too_few")
    assert fit(evals, Options(min_evals=10)).status == "ok"


def test_eigenvalues_at_the_threshold_are_left_out_unless_none_is_above() -> None:
    evals = np.array([0.0, 1e-5, 1.1e-5, 1.0])
    assert list(kept(evals, 1e-5)) == [1.1e-5, 1.0]
    assert list(kept(evals[:2], 1e-5)) == [0.0, 1e-5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"fix_fingers": "median"},
        {"peak_window": "correct"},
        {"solver": "qr"},
        {"evals_thresh": -1.0},
        {"evals_thresh": math.nan},
        {"bins": 0},
        {"min_evals": 1},
        {"device": "tpu"},
        {"layers": "("},
    ],
)
def test_options_that_cannot_be_meant(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give|least|regular"):
        Options(**wrong)
