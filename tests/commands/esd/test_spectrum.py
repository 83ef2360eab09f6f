"""Eigenvalues of matrices: reference answers, all ways alike, what is no number, and what is cut out of a matrix."""

from __future__ import annotations

import csv
import json
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd.fit.metrics import entropy, matrix_rank, norms
from gpusched.commands.esd.fit.power_law import fit, kept
from gpusched.commands.esd.read.tensors import LazyTensor
from gpusched.commands.esd.solve import spectrum
from gpusched.commands.esd.solve.randomized import bulk_edges
from gpusched.commands.esd.solve.spectrum import NotFinite, Spectrum
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.esd.options import AnalysisOptions
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "esd"
CPU = torch.device("cpu")

torch.set_num_threads(1)  # other tests run beside these


def solve(tensor: torch.Tensor, *, convolution: bool = False, **options: Any) -> Spectrum:
    lazy = LazyTensor(lambda: tensor)
    return spectrum.spectrum(lazy, AnalysisOptions(**options), convolution=convolution, device=CPU)


def matrices() -> dict[str, torch.Tensor]:
    with np.load(CASES / "synthetic_matrices.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def test_reference_answers_from_matrices() -> None:
    found = {name: solve(matrix, convolution=matrix.ndim > 2).evals for name, matrix in matrices().items()}
    with open(CASES / "reference_synthetic.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    for row in rows:
        options = AnalysisOptions(
            fix_fingers=row["mode"],
            peak_window="legacy" if row["variant"] == "legacy" else "near",
        )
        evals = kept(found[row["name"]], options.evals_thresh)
        assert (len(found[row["name"]]), len(evals)) == (int(row["num_evals_raw"]), int(row["num_evals"]))
        tail = fit(evals, options)
        rank = matrix_rank(evals, max(int(row["rows"]), int(row["cols"])))
        values = {"alpha": tail.alpha, "D": tail.D, "fit_xmin": tail.xmin, **norms(evals, tail.alpha)}
        values |= {"lambda_min": evals[0], "lambda_max": evals[-1], "entropy_eps1e-10": entropy(evals, rank)}
        assert (tail.n_tail, rank) == (int(row["n_tail"]), int(row["matrix_rank_f32tol"])), row
        for name, value in values.items():
            wanted = float(row[name])
            if row["name"] == "zeros_32x48" and name == "spectral_norm":
                wanted = 0.0
            tolerance = 1e-6 if name.startswith("entropy") else 1e-8
            np.testing.assert_allclose(value, wanted, rtol=tolerance, err_msg=f"{name} of {row['name']}")


def test_what_is_known_of_matrices() -> None:
    known = json.loads((CASES / "synthetic_known.json").read_text())
    found = {name: solve(matrix).evals for name, matrix in matrices().items() if matrix.ndim == 2}
    low, high = bulk_edges(known["gauss_192x768"]["sigma"] ** 2, 192, 768)
    assert (low, high) == pytest.approx((known["gauss_192x768"]["mp_lower"], known["gauss_192x768"]["mp_upper"]))
    assert low * 0.95 < found["gauss_192x768"][0] and found["gauss_192x768"][-1] < high * 1.05
    assert matrix_rank(found["low_rank_8_of_128"], 160) == 8
    np.testing.assert_allclose(found["tiny_2x3"], [4.0, 9.0])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    block=st.integers(1, 80),
    panel=st.integers(1, 80),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_blocks_and_panels_change_nothing(rows: int, columns: int, block: int, panel: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * 71 + columns)).to(dtype)
    wanted = np.sort(np.linalg.svd(matrix.double().numpy(), compute_uv=False) ** 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spectrum, "PANEL", panel)
        patch.setattr(spectrum, "BLOCK_ROWS", block)
        found = solve(matrix).evals
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12 * max(rows, columns))


@pytest.mark.parametrize("solver", ["gram", "svd", "auto"])
def test_transposed_and_strided_matrices_have_the_same_spectrum(solver: str) -> None:
    wide = torch.randn(40, 90, generator=torch.Generator().manual_seed(3))
    wanted = solve(wide, solver=solver).evals
    np.testing.assert_allclose(solve(wide.T, solver=solver).evals, wanted, rtol=1e-12)
    np.testing.assert_allclose(solve(wide.T.contiguous(), solver=solver).evals, wanted, rtol=1e-12)
    assert solve(wide, solver=solver).solver == ("svd" if solver == "svd" else "gram")


def test_fast_is_float32_and_says_where_it_is_unsafe() -> None:
    matrix = torch.randn(50, 60, generator=torch.Generator().manual_seed(1))
    small, large = solve(matrix * 0.1, solver="fast"), solve(matrix * 10, solver="fast")
    np.testing.assert_allclose(small.evals, solve(matrix * 0.1).evals, rtol=1e-3, atol=1e-6)
    assert (small.solver, small.note) == ("fast", "")
    assert "too great" in large.note


def test_auto_turns_to_svd_where_a_gram_matrix_cannot_resolve_the_threshold() -> None:
    left, right = (torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64))[0] for _ in range(2))
    steep = left @ torch.diag(torch.logspace(-2, 6, 20, dtype=torch.float64)) @ right
    found = solve(steep)
    assert found.solver == "svd" and "too great" in found.note
    np.testing.assert_allclose(found.evals[0], 1e-4, rtol=1e-3)
    assert "too great" in solve(steep, solver="gram").note and solve(steep, solver="gram").solver == "gram"


@pytest.mark.parametrize("solver", ["auto", "svd", "fast"])
@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "Inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_number_is_said(solver: str, value: float, word: str, dtype: torch.dtype) -> None:
    matrix = torch.ones(6, 9, dtype=dtype)
    matrix[2, 7] = value
    with pytest.raises(NotFinite, match=word):
        solve(matrix, solver=solver)


def test_entries_whose_squares_overflow_are_solved_by_svd() -> None:
    found = solve(torch.eye(3, dtype=torch.float64) * 1e160, solver="gram")
    assert found.solver == "svd" and "overflow" in found.note


@pytest.mark.parametrize("kernel", [(3,), (2, 3), (2, 2, 2)])
def test_convolutions_are_pooled_over_kernel_positions(kernel: tuple[int, ...]) -> None:
    weight = torch.randn(8, 5, *kernel, generator=torch.Generator().manual_seed(5))
    before = weight.clone()
    parts = weight.reshape(8, 5, -1).unbind(-1)
    wanted = np.sort(np.concatenate([torch.linalg.svdvals(part * 0.5**0.5).square().numpy() for part in parts]))
    np.testing.assert_allclose(solve(weight, convolution=True).evals, wanted, rtol=1e-4)
    transposed = weight.transpose(0, 1).contiguous()
    np.testing.assert_allclose(
        solve(transposed, convolution=True).evals, solve(weight, convolution=True).evals, rtol=1e-9
    )
    assert torch.equal(weight, before)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(1, 90), st.integers(1, 90))
def test_windows_are_square_alike_and_cover_the_matrix(rows: int, columns: int) -> None:
    matrix = torch.zeros(rows, columns, dtype=torch.int8)
    found = spectrum.windows(matrix)
    for window in found:
        window += 1
    assert int(matrix.min()) >= 1
    assert len({tuple(window.shape) for window in found}) == 1
    if min(rows, columns) >= 4:
        assert found[0].shape[0] == found[0].shape[1] == min(rows, columns) // 2


def test_farms_pools_the_spectra_of_the_windows() -> None:
    matrix = torch.randn(20, 50, generator=torch.Generator().manual_seed(2))
    parts = [torch.linalg.svdvals(window).square() for window in spectrum.windows(matrix)]
    np.testing.assert_allclose(solve(matrix, farms=True).evals, np.sort(torch.cat(parts).numpy()), rtol=1e-3, atol=1e-6)


def test_a_single_matrix_is_let_go_before_its_eigenvalues_are_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def made() -> torch.Tensor:
        tensor = torch.eye(4)
        read.append(weakref.ref(tensor))
        return tensor

    real = spectrum._eigenvalues

    def eigenvalues(gram: torch.Tensor) -> torch.Tensor:
        alive.append(read[-1]() is not None)
        return real(gram)

    monkeypatch.setattr(spectrum, "_eigenvalues", eigenvalues)
    lazy = LazyTensor(made)
    spectrum.spectrum(lazy, AnalysisOptions(), convolution=False, device=CPU)
    assert alive == [False]
    assert torch.equal(lazy.get(), torch.eye(4))  # and it comes back for whoever needs it


@pytest.mark.parametrize(
    ("variable", "threads", "size", "is_numpy"),
    [
        ("1", 1, 60, True),
        ("2", 1, 60, False),
        ("1", 2, 60, False),
        ("1", 1, 1100, False),
    ],
)
def test_small_matrices_of_one_thread_are_numpys(
    variable: str, threads: int, size: int, is_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = torch.randn(size, size + 30, dtype=torch.float64)
    calls = []
    real = np.linalg.eigvalsh

    def eigenvalues(product: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        calls.append(len(product))
        found: np.ndarray[Any, Any] = real(product)
        return found

    monkeypatch.setattr(np.linalg, "eigvalsh", eigenvalues)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = spectrum._eigenvalues(spectrum.gram(matrix, torch.float64, CPU))
    finally:
        torch.set_num_threads(before)
    assert bool(calls) == is_numpy
    wanted = torch.linalg.svdvals(matrix).square().flip(0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13 * float(wanted[-1]))
