"""The bulk of a spectrum: against the law's published numbers, random matrices, and planted spikes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.command_line import main
from gpusched.commands.esd.fit.marchenko_pastur import density_of_law, fit_bulk, median_of_law
from safetensors.torch import save_file


def noise(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectrum(matrix: torch.Tensor) -> np.ndarray:
    return np.sort(np.linalg.svd(matrix.numpy(), compute_uv=False)) ** 2


def test_the_thresholds_of_gavish_and_donoho() -> None:
    """Their ω(β) = λ(β)/√median is 2.858 for a square, and 0.56 β³ - 0.95 β² + 1.82 β + 1.43 within 0.02."""
    for ratio in (0.05, 0.2, 0.5, 0.8, 1.0):
        total = ratio + 1 + math.sqrt(ratio**2 + 14 * ratio + 1)
        omega = math.sqrt((2 * (ratio + 1) + 8 * ratio / total) / median_of_law(ratio))
        assert omega == pytest.approx(0.56 * ratio**3 - 0.95 * ratio**2 + 1.82 * ratio + 1.43, abs=0.021)
    assert omega == pytest.approx(2.858, abs=5e-4)


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (120, 480), (480, 120)])
def test_the_scale_of_noise_is_found_and_spikes_do_not_move_it(rows: int, columns: int) -> None:
    matrix = noise(rows, columns) * 0.03
    plain = fit_bulk(spectrum(matrix), rows, columns)
    assert (
        plain["mp_scale"] == pytest.approx(0.03, rel=0.02)
        and plain["mp_num_spikes"] == 0
        and plain["mp_spike_share"] == 0
    )
    left, _, right = torch.linalg.svd(noise(rows, columns, 1), full_matrices=False)
    spiked = matrix + 3.0 * left[:, :5] @ right[:5]
    found = fit_bulk(evals := spectrum(spiked), rows, columns)
    assert found["mp_num_spikes"] == 5 and found["mp_spike_share"] == pytest.approx(evals[-5:].sum() / evals.sum())
    assert found["mp_scale"] == pytest.approx(plain["mp_scale"], rel=0.05)
    assert evals[-6] < found["mp_bulk_max"] * 1.05 < evals[-5]


def test_noise_has_few_spikes() -> None:
    spikes = [fit_bulk(spectrum(noise(50, 80, seed)), 50, 80)["mp_num_spikes"] for seed in range(100)]
    assert sum(map(bool, spikes)) <= 10  # one of a hundred, and the scale is known to a few percent only


def test_the_density_has_the_mass_of_one_and_the_median() -> None:
    low, high = (1 - math.sqrt(0.5)) ** 2, (1 + math.sqrt(0.5)) ** 2
    values = np.linspace(low, high, 200_001)
    mass = np.cumsum(density_of_law(values, low, high)) * (values[1] - values[0])
    assert mass[-1] == pytest.approx(1, abs=1e-4)
    assert np.interp(0.5, mass, values) == pytest.approx(median_of_law(0.5), abs=1e-4)


def test_the_columns() -> None:
    weights = {"a.weight": noise(90, 60).float(), "conv.weight": torch.randn(30, 40, 3, 3), "zero": torch.zeros(6, 5)}
    row, conv, zero = analyze(weights).rows
    assert row.mp_scale == pytest.approx(1, rel=0.05) and row.mp_num_spikes == 0 and row.mp_spike_share == 0
    assert row.mp_bulk_max == pytest.approx((math.sqrt(90) + math.sqrt(60)) ** 2 * row.mp_scale**2)
    assert conv.mp_scale == pytest.approx(math.sqrt(0.5), rel=0.05)
    assert math.isnan(zero.mp_scale) and zero.mp_num_spikes is None
    assert analyze(weights, farms=True).rows[0].mp_scale == pytest.approx(1, rel=0.05)


@pytest.mark.slow
def test_the_shuffled_spectrum_is_kept_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_file({"a.weight": noise(90, 60).float()}, tmp_path / "m.safetensors")
    words = ["--model", str(tmp_path / "m.safetensors"), "--output-dir", str(tmp_path / "out"), "--name", "m"]
    sizes = []
    for more in ([], ["--randomize"]):
        assert main([*words, *more, "--plots"]) == 0
        sizes.append((tmp_path / "out/plots/m-esd.png").read_bytes())
    assert sizes[0] != sizes[1]
    with np.load(tmp_path / "out/spectra/m.npz") as stored:
        assert set(stored) == {"a", "a (shuffled)"} and len(stored["a (shuffled)"]) == 60
