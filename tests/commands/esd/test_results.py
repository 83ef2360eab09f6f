"""The table of a model: its columns and those of other tools, on a screen, as a data frame, as a picture."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.command_line import main
from gpusched.commands.esd.read.tensors import ModelError
from safetensors.torch import save_file

torch.set_num_threads(1)


def state() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    names = [f"model.layers.{n}.{part}.weight" for n in range(2) for part in ("self_attn.q_proj", "mlp.down_proj")]
    made = {name: torch.randn(48, 20, generator=random) * 0.1 for name in names}
    return {**made, "model.conv.weight": torch.randn(6, 5, 3, 2, generator=random)}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns() -> None:
    table = analyze(state(), fix_fingers="DKS")
    first, conv = rows(table.to_csv())[0], table.rows[-1]
    evals = np.sort(np.linalg.svd(state()["model.layers.0.self_attn.q_proj.weight"].double(), compute_uv=False)) ** 2
    expected: dict[str, Any] = {
        **{"longname": "model.layers.0.self_attn.q_proj", "layer_id": 0, "block": 0, "kind": "q", "shape": "48x20"},
        **{"M": 48, "N": 20, "Q": 2.4, "params": 960, "rank_loss": 0, "status": "success", "is_adapter": False},
        **{"model_id": "", "source_model": "", "num_pl_spikes": table.rows[0].n_tail},
    }
    assert {name: first[name] for name in expected} == {name: str(value) for name, value in expected.items()}
    assert float(first["lambda_max"]) == pytest.approx(evals[-1], rel=1e-12)
    assert float(first["log_spectral_norm"]) == pytest.approx(math.log10(evals[-1]), rel=1e-12)
    assert (conv.kind, conv.block, conv.layer_id, conv.M, conv.N, conv.params) == ("conv", None, 4, 6, 5, 180)
    warnings = {"over-trained": lambda a: a < 2, "under-trained": lambda a: a > 6, "": lambda a: 2 <= a <= 6}
    assert all(warnings[row.warning](row.alpha) for row in table.rows)


def test_a_matrix_of_lower_rank_has_lost_some() -> None:
    table = analyze({"w": torch.outer(torch.arange(1.0, 9), torch.arange(1.0, 6))})
    assert (table.rows[0].matrix_rank, table.rows[0].rank_loss) == (1, 4)


def test_weightwatchers_columns_have_its_meanings() -> None:
    table = analyze(state(), fix_fingers="DKS")
    ours, theirs = table.rows[0], rows(table.to_csv(columns="ww"))[0]
    assert {"layer_id", "name", "rf", "sv_max", "weak_rank_loss", "has_esd", "layer_type"} < set(theirs)
    assert (theirs["M"], theirs["N"], theirs["Q"], theirs["name"]) == ("20", "48", "2.4", "q_proj")
    assert (float(theirs["xmin"]), float(theirs["xmax"])) == (ours.fit_xmin, ours.xmax)
    assert float(theirs["sigma"]) == (ours.alpha - 1) / math.sqrt(ours.n_tail)
    assert float(theirs["sv_max"]) == math.sqrt(ours.xmax) and theirs["status"] == "success"
    assert rows(table.to_csv(columns="ww"))[-1]["rf"] == "6"


def test_netesds_columns_have_its_meanings() -> None:
    table = analyze({**state(), "zero.weight": torch.zeros(5, 6)}, fix_fingers="DKS")
    theirs, none = rows(table.to_csv(columns="netesd"))[0], rows(table.to_csv(columns="netesd"))[-1]
    assert (theirs["M"], theirs["N"], theirs["params"]) == ("48", "20", "960")
    assert (float(theirs["xmin"]), float(theirs["xmax"])) == (table.rows[0].xmin, table.rows[0].xmax)
    assert (none["alpha"], none["D"], none["log_alpha_norm"]) == ("-1.0", "1.0", "-1.0")


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["own", "ww", "netesd"])
def test_pictures_of_any_columns(columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    save_file(state(), tmp_path / "m.safetensors")
    words = ["--model", str(tmp_path / "m.safetensors"), "--output_dir", str(tmp_path / "out"), "--name", "m"]
    assert main([*words, "--columns", columns, "--plots"]) == 0
    assert not capsys.readouterr().err
    assert (tmp_path / "out/plots/m-alpha.png").exists() and (tmp_path / "out/plots/m-esd.png").exists()


def test_a_damaged_field_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    save_file(state(), tmp_path / "m.safetensors")
    words = ["--model", str(tmp_path / "m.safetensors"), "--output-dir", str(tmp_path / "out"), "--name", "m"]
    assert main(words) == 0
    table = tmp_path / "out/per_model_csv/m.csv"
    size, lines = table.stat().st_size, table.read_text().splitlines()
    lines[2] = lines[2].replace(lines[2].split(",")[10], "x" * len(lines[2].split(",")[10]))
    table.write_text("\n".join(lines) + "\n")
    assert table.stat().st_size == size
    assert main([*words, "--plots"]) == 0
    assert "m.csv, line 3: alpha is no number: 'xxx" in capsys.readouterr().err


def test_a_table_fits_a_screen() -> None:
    many = {f"model.layers.{n}.self_attn.q_proj.weight": torch.randn(9, 8) for n in range(40)}
    lines = str(analyze(many)).splitlines()
    assert len(lines) == 23 and max(map(len, lines)) <= 100
    assert lines[1].startswith("model.layers.0.self_attn.q_proj ")
    assert lines[-2] == "… and 20 more" and lines[-1].startswith("40 layers, 0 skipped, coverage 100%, mean alpha ")


def test_the_summary_and_the_data_frame() -> None:
    table = analyze({**state(), "wte.weight": torch.randn(9, 8), "q.weight": torch.eye(12)})
    summary = table.summary()
    assert (summary["layers"], summary["skipped"], summary["coverage"], summary["flat"]) == (6, 1, 1.0, 1)
    alphas = [row.alpha for row in table.rows if row.fit_status == "ok"]
    assert summary["alpha_mean"] == pytest.approx(np.mean(alphas)) and len(alphas) == 5
    assert summary["under_trained"] == sum(alpha > 6 for alpha in alphas)
    frame = pytest.importorskip("pandas") and table.to_pandas()
    assert list(frame["longname"]) == [row.longname for row in table.rows]


@pytest.mark.slow
def test_a_picture_of_a_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    layers = {f"h.{n}.weight": torch.randn(9, 8) for n in range(40)}
    figure = analyze({**layers, "x.weight": torch.eye(12) + 1e-4 * torch.randn(12, 12)}).plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "1 on the upper edge are greater, up to" in figure.axes[0].get_xlabel()


def test_names_that_a_spreadsheet_takes_for_formulas() -> None:
    text = analyze({"=cmd|' /C calc'!A0": torch.randn(6, 5), "-a": torch.randn(6, 5)}).to_csv()
    assert [row["longname"] for row in rows(text)] == ["'=cmd|' /C calc'!A0", "'-a"]
    assert all(float(row["log_norm"]) for row in rows(text))


@pytest.mark.parametrize("scale", [1e160, 1e155])
def test_eigenvalues_beyond_float64_are_no_row(scale: float) -> None:
    table = analyze({"huge.weight": torch.randn(6, 5).double() * scale, "w.weight": torch.randn(6, 5)})
    assert [row.longname for row in table.rows] == ["w"]
    assert table.skipped[0].reason == "its eigenvalues are too great for float64"
    assert table.coverage == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (256, 64), (200, 200)])
@pytest.mark.parametrize("how", ["xmin_mid", "DKS", "xmin_peak"])
def test_orthogonal_matrices_are_flat(dtype: torch.dtype, shape: tuple[int, int], how: str) -> None:
    matrix = torch.nn.init.orthogonal_(torch.empty(*shape), generator=torch.Generator().manual_seed(1))
    table = analyze(
        {"w": matrix.to(dtype), "v": torch.randn(shape, generator=torch.Generator().manual_seed(2))}, fix_fingers=how
    )
    assert [row.fit_status for row in table.rows] == ["flat", "ok"]
    assert math.isnan(table.rows[0].alpha) and table.statistics()["alpha_mean"] == table.rows[1].alpha


def test_arrays_are_models() -> None:
    array = np.random.default_rng(1).normal(size=(20, 12))
    by_name = analyze({"w": array}).rows[0]
    assert analyze(array).rows[0].alpha == by_name.alpha == analyze(torch.from_numpy(array)).rows[0].alpha


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_refused() -> None:
    packed = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.qint8)
    with pytest.raises(ModelError, match=r"w is quantised .*dequantise it first"):
        analyze({"w": packed})


def test_a_head_that_comes_before_its_embedding_is_no_layer() -> None:
    weight = torch.randn(9, 8)
    table = analyze({"lm_head.weight": weight, "model.embed_tokens.weight": weight, "h.0.q.weight": torch.randn(8, 8)})
    assert [row.longname for row in table.rows] == ["h.0.q"]


def test_a_packed_head_is_compared_with_the_embedding(tmp_path: Path) -> None:
    """Its packed rows are not those of the head, and there may be a whole number of them for each."""
    packed = {"qweight": torch.ones(4, 32).int(), "qzeros": torch.ones(1, 4).int(), "scales": torch.ones(1, 32)}
    state = {f"lm_head.{name}": part for name, part in packed.items()}
    table = analyze({**state, "model.embed_tokens.weight": torch.zeros(32, 32), "h.0.q.weight": torch.randn(8, 8)})
    assert [(row.longname, row.shape) for row in table.rows] == [("lm_head", "32x32"), ("h.0.q", "8x8")]
    half = {"lm_head.weight": torch.ones(9, 8).half(), "model.embed_tokens.weight": torch.ones(9, 8)}
    assert [row.longname for row in analyze(half).rows] == ["lm_head"]


def test_an_adapter_that_unties_has_a_head(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    weight, changed = torch.randn(9, 8), torch.randn(9, 8)
    save_file(
        {"model.embed_tokens.weight": weight, "model.layers.0.q_proj.weight": torch.randn(8, 8)},
        base / "model.safetensors",
    )
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
    (base / "config.json").write_text(json.dumps(config))
    assert [row.longname for row in analyze(base).rows] == ["model.layers.0.q_proj"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    place = "base_model.model.model.layers.0.q_proj"
    factors = {f"{place}.lora_A.weight": torch.randn(2, 8), f"{place}.lora_B.weight": torch.randn(8, 2)}
    save_file({**factors, "base_model.model.lm_head.weight": changed}, adapter / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
        "modules_to_save": ["lm_head"],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    table = analyze(adapter, source_model=str(base))
    assert [row.longname for row in table.rows] == ["model.layers.0.q_proj", "lm_head"]
    assert {(row.is_adapter, row.source_model) for row in table.rows} == {(True, str(base))}
    assert table.rows[1].xmax == analyze(changed).rows[0].xmax


def test_a_stray_tensor_does_not_hide_the_model(tmp_path: Path) -> None:
    torch.save({"mean_image": torch.randn(3, 4), "model": {"fc.weight": torch.randn(8, 8)}}, tmp_path / "m.pt")
    assert [row.longname for row in analyze(tmp_path / "m.pt").rows] == ["fc"]
