"""Adapters merged tensor by tensor, against peft's own merge of whole small models, bit for bit."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.adapt.adapter_config import parse_adapter_config
from gpusched.commands.esd.adapt.adapters import Adapter, MergedSource
from gpusched.commands.esd.find.hub import Hub
from gpusched.commands.esd.find.open_model import open_model
from gpusched.commands.esd.read.sources import open_local
from gpusched.commands.esd.read.tensors import ModelError, TensorSource
from safetensors.torch import load_file, save_file

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # what the libraries have to say of their own
]


def adapter(directory: Path) -> Adapter:
    config = json.loads((directory / "adapter_config.json").read_text())
    weights = open_local(directory / "adapter_model.safetensors")
    return Adapter("lab/ad", parse_adapter_config(config, "lab/ad"), weights)


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
HEADS = {"num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64}
BOTH = {
    **{f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 1), ("ffn_dim", 48))},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{word}_token_id": 0 for word in ("pad", "bos", "eos", "decoder_start")},
}
SIZES |= {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 64},
    "opt": {**HEADS, "hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
    "neox": {**HEADS, "hidden_size": 32, "intermediate_size": 48},
    "whisper": {**BOTH, "d_model": 32, "vocab_size": 64},
}
CHANGES = ("gpt2", "gpt2 embedding", "llama", "llama patterns", "llama dora fp32")  # stored in float32
CLASSES = {"gpt2": "GPT2", "llama": "Llama", "mixtral": "Mixtral", "t5": "T5", "opt": "OPT", "neox": "GPTNeoX"}
CLASSES["whisper"] = "Whisper"
LOADERS = {"t5": "AutoModelForSeq2SeqLM", "whisper": "AutoModelForSpeechSeq2Seq"}


def loader(family: str) -> Any:
    return getattr(transformers, LOADERS.get(family, "AutoModelForCausalLM"))


def make_base(directory: Path, family: str, dtype: torch.dtype, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = getattr(transformers, CLASSES[family] + "Config")(**SIZES[family], **settings)
    model = loader(family).from_config(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
    model.save_pretrained(directory)
    return directory


def load(directory: Path) -> Any:
    named = json.loads((directory / "config.json").read_text())["model_type"]
    return loader(named).from_pretrained(directory, dtype="auto")


def make_adapter(
    directory: Path, base: Path, dtype: torch.dtype = torch.float32, seed: int = 1, **settings: Any
) -> Path:
    """An adapter with random weights in all its tensors."""
    torch.manual_seed(seed)
    model = peft.get_peft_model(load(base), peft.LoraConfig(**settings))
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


def names(source: TensorSource) -> set[str]:
    return {info.name for info in source.infos()}


def assert_same_bits(ours: MergedSource, theirs: Path) -> None:
    expected = open_local(theirs)
    shapes = {info.name: (info.shape, info.dtype) for info in ours.infos()}
    assert set(shapes) == names(expected)
    for name in shapes:
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
    "llama tied dora": (
        "llama",
        BRAIN,
        SINGLE,
        {"tie_word_embeddings": True},
        {"target_modules": ["lm_head", "embed_tokens"], "use_dora": True},
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
    "t5": ("t5", BRAIN, SINGLE, {}, {"target_modules": ["q", "v", "wo", "shared"], "r": 4}),
    "t5 encoder": ("t5", BRAIN, SINGLE, {}, {"target_modules": ["encoder.embed_tokens"], "use_dora": True}),
    "opt": ("opt", BRAIN, SINGLE, {}, {"target_modules": ["q_proj", "fc2", "lm_head"], "bias": "lora_only"}),
    "gpt-neox": ("neox", HALF, SINGLE, {}, {"target_modules": ["query_key_value", "embed_in", "embed_out"]}),
    "whisper": ("whisper", BRAIN, SINGLE, {}, {"target_modules": ["q_proj", "conv1", "fc1"], "use_dora": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_merge_has_the_bits_of_peft(name: str, tmp_path: Path) -> None:
    family, dtype, stored, base_settings, settings = CASES[name]
    base = make_base(tmp_path / "base", family, dtype, **base_settings)
    path = make_adapter(tmp_path / "adapter", base, stored, **settings)
    source = MergedSource(open_local(base), adapter(path))
    assert_same_bits(source, merged_by_peft(tmp_path / "merged", base, path))
    before = open_local(base)
    assert set(source.changes) == {
        name
        for name in names(source)
        if name not in names(before) or not torch.equal(before.read(name), source.read(name))
    }


def rewrite(path: Path, change: Any) -> None:
    """Store the tensors of a file under the names that `change` gives them."""
    save_file({change(key): value for key, value in load_file(path).items()}, path, {"format": "pt"})


@pytest.mark.parametrize("lacking", ["base", "adapter"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_prefix_may_lack_on_either_side(family: str, lacking: str, tmp_path: Path) -> None:
    prefix = {"gpt2": "transformer.", "llama": "model."}[family]
    targets = {"gpt2": ["c_attn", "c_proj", "lm_head"], "llama": [*ATTENTION, "embed_tokens"]}[family]
    base = make_base(tmp_path / "base", family, BRAIN)
    path = make_adapter(tmp_path / "adapter", base, target_modules=targets, r=4)
    wanted = MergedSource(open_local(base), adapter(path))
    whole = {name: wanted.read(name) for name in wanted.changes}
    if lacking == "base":
        rewrite(base / "model.safetensors", lambda key: key.removeprefix(prefix))
    else:
        rewrite(path / "adapter_model.safetensors", lambda key: key.replace(f"base_model.model.{prefix}", ""))
    source = MergedSource(open_local(base), adapter(path))
    assert len(source.changes) == len(whole) > 0
    for name, tensor in whole.items():
        assert torch.equal(source.read(name.removeprefix(prefix) if lacking == "base" else name), tensor)


def test_a_chain_is_merged_in_its_order_and_rounded_once_a_link(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", BRAIN)
    first = make_adapter(tmp_path / "first", base, target_modules=[*ATTENTION, "lm_head"], r=4)
    between = merged_by_peft(tmp_path / "between", base, first)
    second = make_adapter(tmp_path / "second", between, seed=2, target_modules=["q_proj", "up_proj"], use_dora=True)
    source = MergedSource(MergedSource(open_local(base), adapter(first)), adapter(second))
    assert_same_bits(source, merged_by_peft(tmp_path / "merged", base, first, second))
    assert len(source.notes) == 2


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_biases_beside_a_classifier_that_is_saved_whole(bias: str, tmp_path: Path) -> None:
    config = transformers.BertConfig(**HEADS, hidden_size=32, intermediate_size=48, num_labels=3)
    base, kind = tmp_path / "base", transformers.BertForSequenceClassification
    kind(config).save_pretrained(base)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=4, bias=bias, target_modules=["query"])
    model = peft.get_peft_model(kind.from_pretrained(base), settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    model.save_pretrained(tmp_path / "ad")
    expected = peft.PeftModel.from_pretrained(kind.from_pretrained(base), tmp_path / "ad").merge_and_unload()
    source = MergedSource(open_local(base), adapter(tmp_path / "ad"))
    assert all(torch.equal(source.read(name), tensor) for name, tensor in expected.state_dict().items())


def test_an_adapter_that_was_never_trained_is_said_to_change_nothing(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", torch.float32)
    model = peft.get_peft_model(load(base), peft.LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path / "ad")
    source = MergedSource(open_local(base), adapter(tmp_path / "ad"))
    assert "warning: adapter lab/ad changes nothing: the factors of all its changes are zero" in source.notes
    trained = make_adapter(tmp_path / "trained", base, target_modules=["q_proj"])
    assert not any("changes nothing" in note for note in MergedSource(open_local(base), adapter(trained)).notes)


def test_an_adapter_on_a_base_in_four_bits(tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    base = make_base(tmp_path / "base", "llama", torch.bfloat16)
    place = "model.layers.0.self_attn.q_proj"
    packed, state = functional.quantize_4bit(load_file(base / "model.safetensors")[f"{place}.weight"], quant_type="nf4")
    parts = {f"{place}.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    config = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (tmp_path / "q4").mkdir()
    save_file({f"{place}.weight": packed, **parts}, tmp_path / "q4/model.safetensors")
    (tmp_path / "q4/config.json").write_text(json.dumps(config))
    made = make_adapter(tmp_path / "ad", base, target_modules=["q_proj"], layers_to_transform=[0], r=4, lora_alpha=8)
    factors = load_file(made / "adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{place}.lora_{part}.weight"] for part in "AB")
    expected = (functional.dequantize_4bit(packed, state).float() + (b @ a) * 2).to(torch.bfloat16)
    with closing(Hub()) as hub, open_model(str(made), hub, source_model=str(tmp_path / "q4"), relation="lora") as model:
        assert torch.equal(model.source.read(f"{place}.weight"), expected)


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_weight_that_is_stored_as_embedding_and_as_head_is_not_changed(is_declared: bool, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "gpt2", BRAIN)
    path = make_adapter(tmp_path / "adapter", base, target_modules=["wte"], r=4)
    file = base / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()}, file, {"format": "pt"})
    if is_declared:
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"the weight transformer\.wte\.weight as lm_head\.weight too"):
        MergedSource(open_local(base), adapter(path))


def test_a_vocabulary_that_grew_comes_from_the_adapter(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", "llama", BRAIN)
    grown = load(base)
    grown.resize_token_embeddings(104, mean_resizing=False)
    grown.save_pretrained(tmp_path / "grown")
    settings: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "r": 2}
    path = make_adapter(tmp_path / "adapter", tmp_path / "grown", **settings)
    source = MergedSource(open_local(base), adapter(path))
    assert_same_bits(source, merged_by_peft(tmp_path / "merged", tmp_path / "grown", path))
    assert {info.shape[0] for info in source.infos() if info.name == "lm_head.weight"} == {104}


class Convolutions(torch.nn.Module):  # type: ignore[misc]  # torch is not looked into
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(6, 10, 3)
        self.second = torch.nn.Conv2d(6, 10, (3, 2))
        self.point = torch.nn.Conv2d(6, 10, 1)
        self.third = torch.nn.Conv3d(4, 6, (2, 3, 2))


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_convolutions_are_merged_too(dtype: torch.dtype, dora: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Convolutions().to(dtype)
    (tmp_path / "base").mkdir()
    save_file(model.state_dict(), tmp_path / "base" / "model.safetensors")
    names = ["first", "second", "point", "third"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=names, r=2, lora_alpha=3, use_dora=dora))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.rand_like(parameter))
    adapted.save_pretrained(tmp_path / "adapter")
    source = MergedSource(open_local(tmp_path / "base"), adapter(tmp_path / "adapter"))
    merged = adapted.merge_and_unload()
    assert set(source.changes) == {f"{name}.weight" for name in names}
    for name, tensor in merged.state_dict().items():
        assert torch.equal(source.read(name), tensor), name


@pytest.mark.parametrize("name", CHANGES)
def test_the_change_has_the_spectrum_of_what_peft_adds(name: str, tmp_path: Path) -> None:
    family, _, of_adapter, _, settings = CASES[name]
    base = make_base(tmp_path / "base", family, torch.float32)
    made = make_adapter(tmp_path / "ad", base, of_adapter, **settings)
    merged, before = (open_local(path) for path in (merged_by_peft(tmp_path / "merged", base, made), base))
    table = analyze(made, source_model=str(base), relation="adapter", delta=True, embeddings=True)
    assert table.rows
    for row in table.rows:
        weight = f"{row.longname}.weight"
        values = torch.linalg.svdvals(merged.read(weight).double() - before.read(weight).double()).square().flip(0)
        found = torch.from_numpy(table.spectra[row.longname])
        torch.testing.assert_close(found, values[-len(found) :], rtol=1e-3, atol=float(values[-1]) * 1e-6)
