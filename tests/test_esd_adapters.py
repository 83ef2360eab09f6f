"""Adapters merged tensor by tensor, against peft's own merge of whole small models, bit for bit."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpusched.commands.esd import adapterconfig
from gpusched.commands.esd.adapters import Adapter, MergedSource
from gpusched.commands.esd.tensors import ModelError, TensorInfo

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what the libraries have to say of their own
]


class Files:
    """The tensors of the safetensors files of a directory."""

    def __init__(self, directory: Path, pattern: str = "model*.safetensors") -> None:
        self.where = {}
        for path in sorted(directory.glob(pattern)):
            with safe_open(path, "pt") as file:
                self.where |= {key: path for key in file.keys()}  # noqa: SIM118
        config = directory / "config.json"
        self.config: Mapping[str, Any] = json.loads(config.read_text()) if config.exists() else {}
        self.notes: Sequence[str] = ()

    def infos(self) -> Sequence[TensorInfo]:
        found = []
        for name in self.where:
            tensor = self.read(name)
            found.append(TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))
        return found

    def read(self, name: str) -> torch.Tensor:
        with safe_open(self.where[name], "pt") as file:
            return file.get_tensor(name).clone()

    def close(self) -> None: ...


def adapter(directory: Path) -> Adapter:
    config = json.loads((directory / "adapter_config.json").read_text())
    return Adapter("lab/ad", adapterconfig.parse(config, "lab/ad"), Files(directory, "adapter_model.safetensors"))


SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 32},
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 96,
    },
    "mixtral": {
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 96,
        "num_local_experts": 3,
    },
}
CLASSES = {"gpt2": "GPT2", "llama": "Llama", "mixtral": "Mixtral"}


def make_base(directory: Path, family: str, dtype: torch.dtype, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = getattr(transformers, CLASSES[family] + "Config")(**SIZES[family], **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
    model.save_pretrained(directory)
    return directory


def load(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")


def make_adapter(
    directory: Path, base: Path, dtype: torch.dtype = torch.float32, seed: int = 1, **settings: Any
) -> Path:
    """An adapter with random weights in all its tensors."""
    torch.manual_seed(seed)
    model = peft.get_peft_model(load(base), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude_vector" in name:
                parameter.mul_(1 + 0.1 * torch.rand_like(parameter))
            elif parameter.requires_grad:
                parameter.normal_(std=0.2)
    model.save_pretrained(directory)
    file = directory / "adapter_model.safetensors"
    save_file({key: value.to(dtype) for key, value in load_file(file).items()}, file, {"format": "pt"})
    return directory


def merged_by_peft(directory: Path, base: Path, *adapters: Path) -> Path:
    model = load(base)
    for path in adapters:
        model = peft.PeftModel.from_pretrained(model, path).merge_and_unload()
    model.save_pretrained(directory)
    return directory


def assert_same_bits(ours: MergedSource, theirs: Path) -> None:
    expected = Files(theirs)
    shapes = {info.name: (info.shape, info.dtype) for info in ours.infos()}
    assert set(shapes) == set(expected.where)
    for name in expected.where:
        wanted, got = expected.read(name), ours.read(name)
        assert shapes[name] == (tuple(got.shape), str(got.dtype).removeprefix("torch."))
        assert got.dtype == wanted.dtype and torch.equal(got, wanted), name


ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64

CASES: dict[str, tuple[str, torch.dtype, torch.dtype, dict[str, Any], dict[str, Any]]] = {
    # name: family, dtype of the base, dtype of the adapter, settings of the base, settings of the adapter
    "gpt2": ("gpt2", SINGLE, SINGLE, {}, {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 4, "lora_alpha": 7}),
    "gpt2 bf16": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["c_attn", "c_proj"], "lora_alpha": 3}),
    "gpt2 fp16": ("gpt2", HALF, HALF, {}, {"target_modules": ["c_attn", "c_proj"], "use_rslora": True, "r": 3}),
    "gpt2 dora": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["c_attn", "c_proj"], "use_dora": True}),
    "gpt2 embedding": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["wte", "wpe", "c_attn"], "r": 4}),
    "gpt2 embedding dora": ("gpt2", SINGLE, SINGLE, {}, {"target_modules": ["wte"], "use_dora": True}),
    "gpt2 head": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["lm_head", "c_fc"], "r": 4}),
    "gpt2 head and embedding": ("gpt2", BRAIN, BRAIN, {}, {"target_modules": ["lm_head", "wte"], "r": 4}),
    "gpt2 saved embedding": ("gpt2", SINGLE, SINGLE, {}, {"target_modules": ["c_attn"], "modules_to_save": ["wte"]}),
    "gpt2 saved head": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]}),
    "gpt2 biases": ("gpt2", BRAIN, SINGLE, {}, {"target_modules": ["c_attn"], "bias": "all"}),
    "llama": ("llama", SINGLE, SINGLE, {}, {"target_modules": [*ATTENTION, "down_proj"], "r": 5, "lora_alpha": 9}),
    "llama bf16": ("llama", BRAIN, BRAIN, {}, {"target_modules": "all-linear", "r": 5, "lora_alpha": 9}),
    "llama fp16": ("llama", HALF, SINGLE, {}, {"target_modules": [*ATTENTION, "lm_head"], "r": 8, "lora_alpha": 5}),
    "llama fp64": ("llama", DOUBLE, SINGLE, {}, {"target_modules": ATTENTION, "r": 8, "lora_alpha": 5}),
    "llama tied": (
        "llama",
        BRAIN,
        SINGLE,
        {"tie_word_embeddings": True},
        {"target_modules": [*ATTENTION, "lm_head", "embed_tokens"]},
    ),
    "llama dora": ("llama", BRAIN, SINGLE, {}, {"target_modules": [*ATTENTION, "embed_tokens"], "use_dora": True}),
    "llama dora fp32": ("llama", SINGLE, HALF, {}, {"target_modules": ["k_proj", "gate_proj"], "use_dora": True}),
    "llama saved": (
        "llama",
        BRAIN,
        SINGLE,
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "norm"]},
    ),
    "llama patterns": (
        "llama",
        BRAIN,
        SINGLE,
        {},
        {
            "target_modules": [*ATTENTION, "up_proj"],
            "r": 4,
            "lora_alpha": 11,
            "use_rslora": True,
            "rank_pattern": {"layers.0.self_attn.q_proj": 2, "q_proj": 3, r"(model\.)?layers\.1\..*v_proj": 6},
            "alpha_pattern": {"k_proj": 5, r"layers\.(0|1)\.mlp\.up_proj": 13, "proj": 99},
        },
    ),
    "llama regex": ("llama", SINGLE, SINGLE, {}, {"target_modules": r".*\.layers\.1\.(self_attn|mlp)\.\w+_proj"}),
    "mixtral": ("mixtral", BRAIN, SINGLE, {}, {"target_modules": ATTENTION, "r": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_merge_has_the_bits_of_peft(name: str, tmp_path: Path) -> None:
    family, dtype, stored, base_settings, settings = CASES[name]
    base = make_base(tmp_path / "base", family, dtype, **base_settings)
    path = make_adapter(tmp_path / "adapter", base, stored, **settings)
    source = MergedSource(Files(base), adapter(path))
    assert_same_bits(source, merged_by_peft(tmp_path / "merged", base, path))
    before = Files(base)
    assert source.touched() == {
        name
        for name in (info.name for info in source.infos())
        if name not in before.where or not torch.equal(before.read(name), source.read(name))
    }
