"""Changes against a base: adapters by their small equivalent, fine-tunes by their difference, both against NumPy."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.adapt.change import ChangeSource
from gpusched.commands.esd.command_line import main
from gpusched.commands.esd.read.tensors import ModelError
from safetensors.torch import load_file, save_file

from gpusched.common.errors import GpuschedError
from gpusched.esd.options import AnalysisOptions

ROWS, COLUMNS, RANK = 90, 70, 6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_base(directory: Path, size: tuple[int, int] = (ROWS, COLUMNS)) -> dict[str, torch.Tensor]:
    directory.mkdir()
    weights = {f"h.{n}.mlp.weight": random(*size, seed=n).to(torch.bfloat16) for n in range(3)}
    save_file(weights, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return weights


def make_adapter(directory: Path, base: Path, rank: int = RANK, **tensors: torch.Tensor) -> Path:
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 12, "base_model_name_or_path": str(base)}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return directory


def lora(layer: int, size: tuple[int, int] = (ROWS, COLUMNS), rank: int = RANK) -> dict[str, torch.Tensor]:
    prefix = f"base_model.model.h.{layer}.mlp.lora_"
    return {
        f"{prefix}A.weight": random(rank, size[1], seed=10 + layer) * 0.01,
        f"{prefix}B.weight": random(size[0], rank, seed=20 + layer) * 0.01,
    }


def product(tensors: dict[str, torch.Tensor], scale: float) -> np.ndarray[Any, Any]:
    a, b = (value.double() for value in tensors.values())
    matrix: np.ndarray[Any, Any] = (scale * (b @ a)).numpy()
    return matrix


def eigenvalues(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.sort(np.linalg.svd(matrix, compute_uv=False) ** 2)


def test_an_adapter_has_the_spectrum_of_its_product(tmp_path: Path) -> None:
    make_base(tmp_path / "base")
    idle = {key: value * 0 for key, value in lora(2).items()}
    adapter = make_adapter(tmp_path / "ad", tmp_path / "base", **lora(0), **idle)
    table = analyze(adapter, delta=True)
    row, none = table.rows  # the layer that it does not change has no row
    wanted = eigenvalues(product(lora(0), 12 / RANK))
    np.testing.assert_allclose(table.spectra["h.0.mlp"], wanted[-RANK:], rtol=1e-10)
    assert (row.longname, row.M, row.N, row.shape, row.num_evals) == ("h.0.mlp", ROWS, COLUMNS, "90x70", RANK)
    assert row.delta_norm == pytest.approx(math.sqrt(wanted.sum())) and row.matrix_rank == RANK
    assert row.stable_rank == pytest.approx(wanted.sum() / wanted[-1])
    assert row.fit_status == "too_few" and math.isnan(row.alpha) and math.isnan(row.mp_scale)
    assert row.dtype == "change of bfloat16" and row.delta_base == str(tmp_path / "base") and row.is_adapter
    assert none.fit_status == "unchanged" and none.delta_norm == 0
    assert any("change against" in note for note in table.notes)


def test_adapters_on_each_other_add_up(tmp_path: Path) -> None:
    make_base(tmp_path / "base")
    first = make_adapter(tmp_path / "one", tmp_path / "base", **lora(0))
    other = {key: value.flip(0, 1) for key, value in lora(0).items()}
    second = make_adapter(tmp_path / "two", first, **other)
    table = analyze(second, source_model=str(first), relation="adapter", delta=True)
    wanted = eigenvalues(product(lora(0), 2) + product(other, 2))
    np.testing.assert_allclose(table.spectra["h.0.mlp"], wanted[-2 * RANK :], rtol=1e-10)
    assert table.rows[0].delta_base == str(tmp_path / "base")


def test_a_fine_tune_less_its_base(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    tuned = {name: value.clone() for name, value in weights.items()}
    tuned["h.0.mlp.weight"] += random(ROWS, COLUMNS, seed=7) * 0.01
    tuned["h.1.mlp.weight"] += (torch.outer(torch.arange(ROWS), torch.arange(COLUMNS)) * 0.001).to(torch.bfloat16)
    tuned["score.weight"] = random(4, COLUMNS)
    (tmp_path / "tuned").mkdir()
    save_file(tuned, tmp_path / "tuned/model.safetensors")
    table = analyze(tmp_path / "tuned", source_model=str(tmp_path / "base"), relation="finetune", delta=True)
    first, second, third = table.rows
    change = tuned["h.0.mlp.weight"].double().numpy() - weights["h.0.mlp.weight"].double().numpy()
    np.testing.assert_allclose(table.spectra["h.0.mlp"], eigenvalues(change), rtol=1e-8)
    assert (
        first.fit_status == "ok"
        and first.num_evals == COLUMNS
        and first.delta_norm == pytest.approx(np.linalg.norm(change))
    )
    assert first.lambda_max < 1 and not first.is_adapter and first.delta_base == str(tmp_path / "base")
    assert second.stable_rank < 1.5 and third.fit_status == "unchanged" and math.isnan(third.alpha)
    assert "1 matrices have no counterpart" in " ".join(table.notes)


def test_what_is_more_than_low_rank_is_the_difference_of_the_merge(tmp_path: Path) -> None:
    weights = make_base(tmp_path / "base")
    adapter = make_adapter(tmp_path / "ad", tmp_path / "base", **lora(0))
    magnitude = {"base_model.model.h.0.mlp.lora_magnitude_vector": random(ROWS).abs() + 5}
    save_file({**lora(0), **magnitude}, adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))
    save_file(weights, tmp_path / "base/model.safetensors")
    whole = eigenvalues(
        _read_merged(adapter, "h.0.mlp.weight") - weights["h.0.mlp.weight"].double().numpy(),
    )
    np.testing.assert_allclose(analyze(adapter, delta=True).spectra["h.0.mlp"], whole, rtol=1e-8)


def _read_merged(adapter: Path, name: str) -> np.ndarray[Any, Any]:
    from contextlib import closing

    from gpusched.commands.esd.find.hub import Hub
    from gpusched.commands.esd.find.open_model import open_model

    with closing(Hub()) as hub, open_model(str(adapter), hub) as model:
        merged: np.ndarray[Any, Any] = model.source.read(name).double().numpy()
        return merged


def test_a_change_without_a_base_is_refused(tmp_path: Path) -> None:
    make_base(tmp_path / "base")
    with pytest.raises(ModelError, match="source_model names none"):
        analyze(tmp_path / "base", delta=True)
    with pytest.raises(GpuschedError, match="name or path"):
        analyze({"w": random(9, 8)}, delta=True)
    for options in (AnalysisOptions(delta=True, farms=True), AnalysisOptions(delta=True, randomize=True)):
        with pytest.raises(GpuschedError, match="--delta"):
            options.check()
    save_file({"other.weight": random(8, 9)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match="has a counterpart"):
        analyze(tmp_path / "other.safetensors", source_model=str(tmp_path / "base"), delta=True)


def test_the_stage_sees_a_base_that_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = make_base(tmp_path / "base")
    (tmp_path / "tuned").mkdir()
    save_file({name: value * 1.5 for name, value in weights.items()}, tmp_path / "tuned/model.safetensors")
    words = ["--model", str(tmp_path / "tuned"), "--source-model", str(tmp_path / "base"), "--delta"]
    words += ["--output-dir", str(tmp_path / "out"), "--name", "m"]
    assert main(words) == 0 and main(words) == 0
    assert "done already" in capsys.readouterr().out
    time.sleep(0.01)
    save_file({name: value * 1.25 for name, value in weights.items()}, tmp_path / "base/model.safetensors")
    assert main(words) == 0
    assert "done already" not in capsys.readouterr().out
    record = json.loads((tmp_path / "out/records/m.json").read_text())
    assert record["options"]["source_model"] == str(tmp_path / "base") and record["adapters"] == []


def test_the_product_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = (1500, 1400)
    make_base(tmp_path / "base", size)
    adapter = make_adapter(tmp_path / "ad", tmp_path / "base", 16, **lora(0, size, 16))
    shapes = []
    real = ChangeSource.read

    def read(self: ChangeSource, name: str, rows: slice | None = None) -> torch.Tensor:
        found = real(self, name, rows)
        shapes.append(tuple(found.shape))
        return found

    monkeypatch.setattr(ChangeSource, "read", read)
    monkeypatch.setattr("gpusched.commands.esd.adapt.lora.merge", pytest.fail)
    assert analyze(adapter, delta=True).rows[0].num_evals == 16
    assert shapes and set(shapes) == {(16, 16)}


def test_how_singular_vectors_turn(tmp_path: Path) -> None:
    make_base(tmp_path / "base")
    big = {key: value * (9 if ".0." in key else 1e-3) for n in (0, 1) for key, value in lora(n).items()}
    adapter = make_adapter(tmp_path / "ad", tmp_path / "base", **{key: value * 10 for key, value in big.items()})
    turned, same = analyze(adapter, delta_vectors=True).rows
    name = "h.0.mlp.weight"
    before = load_file(tmp_path / "base/model.safetensors")[name].double().numpy()
    old, new = (np.linalg.svd(each)[0] for each in (before, _read_merged(adapter, name)))
    for k in (1, 8, 64):
        wanted = np.linalg.norm(old[:, :k].T @ new[:, :k]) ** 2 / k
        assert getattr(turned, f"overlap_{k}") == pytest.approx(wanted, rel=1e-6)
        assert getattr(same, f"overlap_{k}") == pytest.approx(1, abs=1e-6)
    cosines = np.abs(old[:, :COLUMNS].T @ new[:, :10]).max(axis=0)
    assert turned.intruders == (cosines < 0.5).sum() > 0 and same.intruders == 0
    plain = analyze(adapter, delta=True).rows[0]
    assert math.isnan(plain.overlap_1) and plain.intruders is None and plain.delta_norm == turned.delta_norm
