"""The stage as a job runs it: files, exit codes, resume, and what it says."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import stage
from gpusched.commands.esd.command_line import main
from gpusched.commands.esd.solve.fallback import Poisoned
from gpusched.commands.esd.write.results import COLUMNS
from safetensors.torch import save_file

from gpusched.common.option_table import options_of
from gpusched.esd.model_record import is_of
from gpusched.esd.options import AnalysisOptions
from tests.support.paths import ROOT

torch.set_num_threads(1)  # other tests run beside these


@pytest.fixture
def model(tmp_path: Path) -> Path:
    place = tmp_path / "tiny"
    place.mkdir()
    random = torch.Generator().manual_seed(4)
    tensors = {f"h.{n}.mlp.weight": torch.randn(24, 16 + n, generator=random) for n in range(3)}
    tensors |= {"wte.weight": torch.randn(50, 16), "h.0.bias": torch.zeros(1), "mask": torch.ones(3, 3).bool()}
    save_file(tensors, place / "model.safetensors")
    return place


def run(model: Path | str, out: Path, *words: str) -> int:
    try:
        return int(main(["--model", str(model), "--output-dir", str(out), *words]))
    except SystemExit as ended:
        return int(ended.code or 0)


def record(out: Path, stem: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "records" / f"{stem}.json").read_text(), parse_constant=pytest.fail)
    return found


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file() and ".spectra" not in str(p)}


@pytest.mark.slow
def test_as_a_job_runs_it(model: Path, tmp_path: Path) -> None:
    out, progress = tmp_path / "out", tmp_path / "progress.json"
    command = [sys.executable, "-m", "gpusched.commands.esd", "--model", str(model), "--output-dir", str(out)]
    environment = {**os.environ, "GPUSCHED_PROGRESS": str(progress), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "--name", "lab/tiny", "--dtype-report"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "lab/tiny: 3 layers, 2 tensors skipped, mean alpha" in ended.stdout
    assert "stored in float32: converted without loss, solved by gram in float64" in ended.stdout
    assert json.loads(progress.read_text()) == {"done": 3, "total": 3, "unit": "layers"}
    assert set(files(out)) == {
        "per_model_csv/lab--tiny.csv",
        "spectra/lab--tiny.npz",
        "records/lab--tiny.json",
    }


def test_a_gpu_that_is_held_for_nothing_is_warned_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("GPUSCHED_JOB_ID", "1"), ("CUDA_VISIBLE_DEVICES", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GPUSCHED_SIMULATION", raising=False)
    assert run(model, tmp_path / "auto", "--device", "auto") == 0
    (note,) = [text for text in record(tmp_path / "auto", "tiny")["notes"] if text.startswith("warning: ")]
    assert note.endswith("--device cpu takes no GPU")
    monkeypatch.setenv("GPUSCHED_SIMULATION", "4")
    assert run(model, tmp_path / "played", "--device", "auto") == 0
    assert not any(text.startswith("warning: ") for text in record(tmp_path / "played", "tiny")["notes"])


def test_what_it_leaves(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(model, out, "--fix-fingers", "DKS", "--revision", "main") == 0
    text = (out / "per_model_csv" / "tiny.csv").read_bytes()
    with open(out / "per_model_csv" / "tiny.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and [row["longname"] for row in rows] == [f"h.{n}.mlp" for n in range(3)]
    left = record(out, "tiny")
    assert left["success"] and is_of(left, revision="main", options=AnalysisOptions(fix_fingers="DKS").as_record())
    assert left["csv"] == {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    assert (left["name"], left["layers"], left["fitted"], left["error"]) == ("tiny", 3, 3, None)
    assert left["alpha_mean"] == pytest.approx(sum(float(row["alpha"]) for row in rows) / 3, rel=1e-15)
    assert {skip["tensor"]: skip["reason"] for skip in left["skipped"]} == {
        "mask": "bool, not weights",
        "wte.weight": "an embedding (analysed with --embeddings)",
    }
    assert left["dtypes"]["float32"] == {"tensors": 4, "elements": 24 * 51 + 800}
    assert left["peak_memory_bytes"] > 1 << 20 and left["seconds"] >= 0 and left["device"] == "cpu"
    with np.load(out / "spectra" / "tiny.npz") as spectra:
        assert spectra.files == [row["longname"] for row in rows]
        for row in rows:
            evals = spectra[row["longname"]]
            assert len(evals) == int(row["raw_num_evals"]) and evals[-1] == float(row["spectral_norm"])


@pytest.mark.parametrize("is_same", [True, False])
def test_a_stored_head_is_tied_only_if_it_is_the_embedding(tmp_path: Path, is_same: bool) -> None:
    place = tmp_path / "tied"
    place.mkdir()
    words = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    head = words.clone() if is_same else words.flip(0)
    tensors = {"model.embed_tokens.weight": words, "lm_head.weight": head, "h.mlp.weight": words[:20].clone()}
    save_file(tensors, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    assert run(place, tmp_path / "out") == 0
    reasons = {skip["tensor"]: skip["reason"] for skip in record(tmp_path / "out", "tied")["skipped"]}
    assert reasons.get("lm_head.weight", "").startswith("tied to model.embed_tokens.weight" if is_same else "")
    assert ("lm_head.weight" in reasons) == is_same  # one that differs is a layer


def test_done_is_done_until_something_else_is_asked(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(model, out) == 0
    before = files(out)
    assert run(model, out) == 0
    assert "done already" in capsys.readouterr().out and files(out) == before
    assert run(model, out, "--overwrite") == 0
    assert "done already" not in capsys.readouterr().out
    after = files(out)
    del before["records/tiny.json"], after["records/tiny.json"]  # holds seconds
    assert after == before
    for words in (["--bins", "50"], ["--revision", "v2"], ["--relation", "lora", "--source-model", "lab/other"]):
        run(model, out, *words)
        assert "done already" not in capsys.readouterr().out
    (out / "per_model_csv" / "tiny.csv").write_text("cut")
    assert run(model, out, *words) == 0
    assert "done already" not in capsys.readouterr().out


def test_a_model_that_is_overwritten_in_place_is_analysed_again(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, weights = tmp_path / "out", model / "model.safetensors"
    assert run(model, out) == 0
    first, status = record(out, "tiny"), weights.stat()
    assert [Path(file["path"]).name for file in first["files"]] == ["model.safetensors"]
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert run(model, out) == 0
    assert "done already" not in capsys.readouterr().out
    assert record(out, "tiny")["csv"]["sha256"] != first["csv"]["sha256"]


def test_verify_compares_contents_and_nothing_else(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, weights = tmp_path / "out", model / "model.safetensors"
    assert run(model, out) == 0
    assert run(model, out, "--verify") == 0  # nothing to compare with yet
    assert "done already" not in capsys.readouterr().out
    os.utime(weights)
    assert run(model, out, "--verify") == 0
    assert "done already" in capsys.readouterr().out


def test_a_result_of_an_older_version_stays_done(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(model, out) == 0
    path = out / "records/tiny.json"
    path.write_text(json.dumps({**record(out, "tiny"), "convention": 1}))
    assert run(model, out) == 0
    assert "done already" in capsys.readouterr().out
    assert run(model, out, "--overwrite") == 0
    assert record(out, "tiny")["convention"] == 2


def test_the_base_of_an_adapter_is_among_its_files(tmp_path: Path) -> None:
    make_models(tmp_path)
    out = tmp_path / "out"
    words = ("--source-model", str(tmp_path / "base"), "--relation", "adapter")
    assert run(tmp_path / "lora", out, *words) == 0
    places = {Path(file["path"]).parent.name for file in record(out, "lora")["files"]}
    assert places == {"base", "lora"}
    with open(out / "per_model_csv/lora.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["model_id"], row["is_adapter"], row["source_model"]) for row in rows} == {("lora", "True", words[1])}


def make_models(directory: Path) -> None:
    """Make a base and an adapter on it."""
    random = torch.Generator().manual_seed(1)
    for name in ("base", "lora"):
        (directory / name).mkdir()
    place = "model.layers.0.self_attn.q_proj"
    save_file({f"{place}.weight": torch.randn(16, 12, generator=random)}, directory / "base/model.safetensors")
    (directory / "base/config.json").write_text('{"model_type": "llama"}')
    factors = {"lora_A": torch.randn(2, 12, generator=random), "lora_B": torch.randn(16, 2, generator=random)}
    tensors = {f"base_model.model.{place}.{part}.weight": values for part, values in factors.items()}
    save_file(tensors, directory / "lora/adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (directory / "lora/adapter_config.json").write_text(json.dumps(config))


def test_half_of_a_model_is_partial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = torch.full((40, 40), float("nan"))
    save_file({"a.weight": broken, "b.weight": torch.randn(20, 20)}, tmp_path / "half.safetensors")
    assert run(tmp_path / "half.safetensors", tmp_path / "out") == 0
    assert record(tmp_path / "out", "half.safetensors")["coverage"] == 400 / 2000
    assert "partial: only 20% of the elements of its layers are analysed" in capsys.readouterr().out


def test_a_model_that_fails_leaves_its_record_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(model, out) == 0
    os.truncate(model / "model.safetensors", 2000)
    assert run(model, out, "--overwrite") == 1
    assert "tiny: failed to load: model.safetensors is cut" in capsys.readouterr().err
    assert set(files(out)) == {"records/tiny.json"}
    left = record(out, "tiny")
    assert (left["success"], left["error"]["stage"]) == (False, "load") and left[
        "options"
    ] == AnalysisOptions().as_record()


def test_a_model_without_a_single_row_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": torch.full((4, 4), float("nan"))}, tmp_path / "nan.safetensors")
    assert run(tmp_path / "nan.safetensors", tmp_path / "out") == 1
    assert "w: it holds NaN" in capsys.readouterr().err
    assert record(tmp_path / "out", "nan.safetensors")["error"]["stage"] == "analyse"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Poisoned("CUDA error: an illegal memory access was encountered"), "CUDA error: an illegal memory access"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "DefaultCPUAllocator: can't allocate"),
        (MemoryError(), "MemoryError"),
        (RuntimeError("CUDA error: unspecified launch failure\nmore"), "CUDA error: unspecified launch failure"),
    ],
)
def test_what_is_not_the_models_fault_is_not_recorded(
    error: Exception,
    words: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(stage, "analyse", fail)
    assert run(model, tmp_path / "out") == 75
    assert words in capsys.readouterr().err
    assert not files(tmp_path / "out")


@pytest.mark.parametrize(("built", "code", "words"), [(False, 2, "built without CUDA"), (True, 75, "No CUDA GPUs")])
def test_a_card_that_is_not_there(
    built: bool,
    code: int,
    words: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: built)
    monkeypatch.setattr(torch, "zeros", refuse)
    assert run(model, tmp_path / "out", "--device", "cuda") == code
    assert words in capsys.readouterr().err
    assert not files(tmp_path / "out")


def test_ctrl_c_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "analyse", stop)
    assert run(model, tmp_path / "out") == 130
    assert not files(tmp_path / "out")


def test_where_nothing_can_be_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("a file")
    assert run(model, tmp_path / "out") == 1
    assert "cannot write to" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--bins", "0"], ["--layers", "("], ["--device", "tpu"], ["--solver", "qr"], ["--name", "x" * 300]]
)
def test_usage(words: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, tmp_path / "out", *words) == 2
    assert "error:" in capsys.readouterr().err


def test_every_default_is_a_flag(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path, "--help") == 0
    text = capsys.readouterr().out
    assert all(each.flag in text for each in options_of(AnalysisOptions))


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, gpusched.commands.esd; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
