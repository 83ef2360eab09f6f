"""The analysis on a real card: the numbers of the CPU, one layer at a time and beside each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
]


def state() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(6)
    made = {f"layers.{n}.weight": torch.randn(300 + n, 900 - 50 * n, generator=random) for n in range(6)}
    made["half.weight"] = torch.randn(1500, 700, generator=random).to(torch.bfloat16)
    made["conv.weight"] = torch.randn(64, 32, 3, 3, generator=random)
    return made


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("solver", ["auto", "svd"])
def test_a_card_gives_what_the_cpu_gives(parallel: bool, solver: str) -> None:
    wanted = analyze(state(), device="cpu", solver=solver)
    found = analyze(state(), device="cuda", solver=solver, parallel_gpu=parallel)
    for ours, theirs in zip(found.rows, wanted.rows, strict=True):
        assert (ours.longname, ours.solver, ours.note) == (theirs.longname, theirs.solver, "")
        assert ours.device.startswith("cuda:") and theirs.device == "cpu"
        np.testing.assert_allclose(ours.alpha, theirs.alpha, rtol=1e-6)
        np.testing.assert_allclose(found.spectra[ours.longname], wanted.spectra[ours.longname], rtol=1e-6, atol=1e-9)


def test_a_layer_too_large_for_the_card_is_solved_beside_it() -> None:
    tensor = torch.randn(4096, 2048, generator=torch.Generator().manual_seed(8))
    wanted = analyze({"w": tensor}, device="cpu").rows[0]
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(20e6 / total)
    try:
        found = analyze({"w": tensor}, device="cuda").rows[0]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.note == "out of GPU memory: done with the CPU" and found.device == "cpu"
    np.testing.assert_allclose(found.alpha, wanted.alpha, rtol=1e-6)
