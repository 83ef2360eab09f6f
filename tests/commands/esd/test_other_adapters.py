"""AdaLoRA, LoHa, LoKr and (IA)³ merged tensor by tensor, against peft's own merge, bit for bit."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.adapt.adapters import MergedSource
from gpusched.commands.esd.find.hub import Hub
from gpusched.commands.esd.find.open_model import open_model
from gpusched.commands.esd.read.sources import open_local
from gpusched.commands.esd.read.tensors import ModelError
from safetensors.torch import load_file, save_file

from tests.commands.esd.test_adapters import (
    ATTENTION,
    BRAIN,
    DOUBLE,
    HALF,
    SINGLE,
    adapter,
    assert_same_bits,
    load,
    make_base,
    merged_by_peft,
    names,
)

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

GPT2 = ["c_attn", "c_proj", "c_fc"]
ALL = [*ATTENTION, "gate_proj", "down_proj"]
PATTERNS = {"rank_pattern": {"q_proj": 3, "layers.1.mlp.down_proj": 5}, "alpha_pattern": {"k_proj": 7}}


def make(directory: Path, base: Path, config: Any, dtype: torch.dtype) -> Path:
    """An adapter with random weights in all its tensors; with a rank pattern, AdaLoRA has cut them before."""
    torch.manual_seed(1)
    model = peft.get_peft_model(load(base), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(mean=1.0 if config.peft_type == "IA3" else 0.0, std=0.2)
    model.save_pretrained(directory)
    file = directory / "adapter_model.safetensors"
    save_file({key: value.to(dtype) for key, value in load_file(file).items()}, file, {"format": "pt"})
    return directory


def adalora(targets: list[str], **more: Any) -> Any:
    return peft.AdaLoraConfig(target_modules=targets, total_step=10, **{"init_r": 6, "target_r": 4, **more})


CASES: dict[str, tuple[str, torch.dtype, torch.dtype, Any]] = {
    "adalora": ("llama", SINGLE, SINGLE, lambda: adalora(ALL, lora_alpha=9)),
    "adalora bf16": ("llama", BRAIN, BRAIN, lambda: adalora(ALL, init_r=7)),
    "adalora fp16": ("llama", HALF, SINGLE, lambda: adalora(["lm_head", "q_proj"], init_r=12)),
    "adalora fp64": ("llama", DOUBLE, SINGLE, lambda: adalora(ATTENTION)),
    "adalora gpt2": ("gpt2", BRAIN, SINGLE, lambda: adalora(GPT2)),
    "adalora saved": ("gpt2", SINGLE, SINGLE, lambda: adalora(GPT2, modules_to_save=["lm_head"])),
    "loha": ("llama", SINGLE, SINGLE, lambda: peft.LoHaConfig(target_modules=ALL, r=3, alpha=5)),
    "loha bf16": ("llama", BRAIN, BRAIN, lambda: peft.LoHaConfig(target_modules=ALL, r=4, alpha=11, **PATTERNS)),
    "loha fp16": ("llama", HALF, SINGLE, lambda: peft.LoHaConfig(target_modules=["lm_head"], r=4, alpha=7)),
    "loha fp64": ("llama", DOUBLE, SINGLE, lambda: peft.LoHaConfig(target_modules=ALL, r=3, alpha=7)),
    "lokr": ("llama", SINGLE, SINGLE, lambda: peft.LoKrConfig(target_modules=ALL, r=3, alpha=5)),
    "lokr bf16": ("llama", BRAIN, SINGLE, lambda: peft.LoKrConfig(target_modules=ALL, r=2, alpha=7, **PATTERNS)),
    "lokr both": (
        "llama",
        HALF,
        HALF,
        lambda: peft.LoKrConfig(target_modules=ALL, r=2, alpha=7, decompose_both=True, decompose_factor=8),
    ),
    "lokr full": ("llama", BRAIN, BRAIN, lambda: peft.LoKrConfig(target_modules=ALL, r=60, alpha=7)),
    "lokr fp64": ("llama", DOUBLE, SINGLE, lambda: peft.LoKrConfig(target_modules=ALL, r=2, alpha=7)),
    "ia3": ("llama", SINGLE, SINGLE, lambda: peft.IA3Config(target_modules=ALL, feedforward_modules=["down_proj"])),
    "ia3 bf16": ("llama", BRAIN, BRAIN, lambda: peft.IA3Config(target_modules=ALL, feedforward_modules=["down_proj"])),
    "ia3 gpt2": ("gpt2", BRAIN, SINGLE, lambda: peft.IA3Config(target_modules=GPT2, feedforward_modules=["c_fc"])),
    "ia3 fp64": ("gpt2", DOUBLE, SINGLE, lambda: peft.IA3Config(target_modules=GPT2, feedforward_modules=["c_proj"])),
    "ia3 opt": (
        "opt",
        HALF,
        SINGLE,
        lambda: peft.IA3Config(target_modules=["q_proj", "fc2"], feedforward_modules=["fc2"]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_merge_has_the_bits_of_peft(name: str, tmp_path: Path) -> None:
    family, dtype, stored, config = CASES[name]
    base = make_base(tmp_path / "base", family, dtype)
    path = make(tmp_path / "adapter", base, config(), stored)
    source = MergedSource(open_local(base), adapter(path))
    assert_same_bits(source, merged_by_peft(tmp_path / "merged", base, path))
    before = open_local(base)
    new = names(source) - names(before)
    changed = {each for each in names(before) if not torch.equal(before.read(each), source.read(each))}
    assert set(source.changes) == changed | new and changed | new


def test_ranks_that_adalora_has_cut(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", SINGLE)
    path = make(tmp_path / "adapter", base, adalora(["q_proj", "v_proj"]), SINGLE)
    config = json.loads((path / "adapter_config.json").read_text())
    tensors, pattern = load_file(path / "adapter_model.safetensors"), {}
    for key in [key for key in tensors if key.endswith("lora_E")]:
        kept = [n % 3 != 0 for n in range(6)]
        module = key.removesuffix(".lora_E")
        pattern[f"{module.removeprefix('base_model.model.')}.lora_E"] = kept
        for part in ("lora_E", "lora_A"):
            tensors[f"{module}.{part}"] = tensors[f"{module}.{part}"][kept]
        tensors[f"{module}.lora_B"] = tensors[f"{module}.lora_B"][:, kept].contiguous()
    save_file(tensors, path / "adapter_model.safetensors", {"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({**config, "rank_pattern": pattern}))
    assert_same_bits(MergedSource(open_local(base), adapter(path)), merged_by_peft(tmp_path / "merged", base, path))


class Convolutions(torch.nn.Module):  # type: ignore[misc]  # torch is not looked into
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(6, 10, 3)
        self.second = torch.nn.Conv2d(6, 10, (3, 2))
        self.point = torch.nn.Conv2d(6, 10, 1)
        self.straight = torch.nn.Linear(8, 12)


@pytest.mark.parametrize("effective", [False, True])
@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig"])
@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_convolutions(dtype: torch.dtype, kind: str, effective: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Convolutions().to(dtype)
    (tmp_path / "base").mkdir()
    save_file(model.state_dict(), tmp_path / "base" / "model.safetensors")
    targets = ["first", "second", "point", "straight"]
    config = getattr(peft, kind)(target_modules=targets, r=2, alpha=3, use_effective_conv2d=effective)
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    source = MergedSource(open_local(tmp_path / "base"), adapter(tmp_path / "adapter"))
    for name, tensor in adapted.merge_and_unload().state_dict().items():
        assert torch.equal(source.read(name), tensor), name
    assert set(source.changes) == {f"{name}.weight" for name in targets}


def test_the_change_of_another_adapter_is_that_of_its_merge(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", SINGLE)
    path = make(tmp_path / "ad", base, peft.LoHaConfig(target_modules=["q_proj"], r=3), SINGLE)
    table = analyze(path, source_model=str(base), relation="adapter", delta=True)
    merged, before = (open_local(each) for each in (merged_by_peft(tmp_path / "merged", base, path), base))
    name = table.rows[0].longname
    values = torch.linalg.svdvals(merged.read(f"{name}.weight").double() - before.read(f"{name}.weight").double())
    torch.testing.assert_close(torch.from_numpy(table.spectra[name]), values.square().flip(0), rtol=1e-6, atol=1e-12)


def _refused(base: Path, path: Path) -> str:
    with pytest.raises(ModelError) as refusal:
        MergedSource(open_local(base), adapter(path))
    return str(refusal.value)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", SINGLE)
    path = make(tmp_path / "ad", base, peft.LoHaConfig(target_modules=["q_proj"], r=3), SINGLE)
    settings, file = path / "adapter_config.json", path / "adapter_model.safetensors"
    config, tensors = json.loads(settings.read_text()), load_file(file)
    settings.write_text(json.dumps({**config, "r": 4}))
    assert "its factors have the rank 3, but its settings say 4" in _refused(base, path)
    settings.write_text(json.dumps(config))
    key = next(key for key in tensors if key.endswith("hada_w2_b"))
    save_file({name: value for name, value in tensors.items() if name != key}, file)
    assert "make no change of the shape (64, 64)" in _refused(base, path)
    save_file({**tensors, key: tensors[key][:, :-1].contiguous()}, file)
    assert "make no change of the shape (64, 64)" in _refused(base, path)
    save_file({**tensors, key.replace("hada_w2_b", "lokr_w1"): tensors[key].clone()}, file)
    assert "lokr_w1 in its file is no plain" in _refused(base, path)


def test_models_in_subfolders(tmp_path: Path) -> None:
    base = make_base(tmp_path / "pipe" / "unet", "llama", SINGLE)
    path = make(tmp_path / "ad" / "unet", base, peft.LoKrConfig(target_modules=["q_proj"], r=2), SINGLE)
    with closing(Hub()) as hub, open_model(str(path), hub, source_model=str(base), relation="adapter") as model:
        assert len([note for note in model.source.notes if "merged into 2 tensors" in note]) == 1
