"""Small models made by hand: safetensors files of random weights, adapters, broken ones. Needs neither torch nor numpy.

The list that `build` makes is what `make esd-demo` and the tests of `gpusched esd` run on.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

Weights = Mapping[str, tuple[Sequence[int], Sequence[float]]]

HIDDEN, INNER, VOCABULARY, LAYERS = 48, 96, 64, 2
RANK = 4
HEADER = "full_name,source_model,base_model_relation,revision"


def save(path: Path, tensors: Weights) -> None:
    """Write float32 tensors as a safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (shape, values) in tensors.items():
        start = len(data)
        floats = array("f", values)
        if sys.byteorder == "big":
            floats.byteswap()
        data += floats.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def normal(source: random.Random, *shape: int, scale: float = 0.1) -> tuple[Sequence[int], Sequence[float]]:
    count = 1
    for size in shape:
        count *= size
    return shape, [source.gauss(0.0, scale) for _ in range(count)]


def model(directory: Path, seed: int, *, hidden: int = HIDDEN, inner: int = INNER, layers: int = LAYERS) -> Path:
    """A model in the names of Llama."""
    source = random.Random(seed)
    directory.mkdir(parents=True)
    tensors = {"model.embed_tokens.weight": normal(source, VOCABULARY, hidden)}
    for n in range(layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"model.layers.{n}.self_attn.{name}.weight"] = normal(source, hidden, hidden)
        for name, shape in {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }.items():
            tensors[f"model.layers.{n}.mlp.{name}.weight"] = normal(source, *shape)
        tensors[f"model.layers.{n}.input_layernorm.weight"] = normal(source, hidden)
    tensors["lm_head.weight"] = normal(source, VOCABULARY, hidden)
    save(directory / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def adapter(
    directory: Path, base: str, seed: int, *, hidden: int = HIDDEN, layers: int = LAYERS, targets: Sequence[str] = ()
) -> Path:
    """A LoRA adapter on the attention of such a model."""
    source = random.Random(seed)
    directory.mkdir(parents=True)
    targets = targets or ("q_proj", "v_proj")
    tensors = {}
    for n in range(layers):
        for name in targets:
            place = f"base_model.model.model.layers.{n}.self_attn.{name}"
            tensors[f"{place}.lora_A.weight"] = normal(source, RANK, hidden)
            tensors[f"{place}.lora_B.weight"] = normal(source, hidden, RANK)
    save(directory / "adapter_model.safetensors", tensors)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": RANK,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": list(targets),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def build(directory: Path) -> Path:
    """Two random models, two adapters, a broken model and one that is not there; the path of their list."""
    model(directory / "tiny/one", 1)
    model(directory / "tiny/two", 2)
    adapter(directory / "tiny/one-lora", "tiny/one", 3)
    adapter(directory / "tiny/two-lora", "/somewhere/else/two", 4)
    broken = model(directory / "tiny/cut", 5) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1000])
    rows = [
        HEADER,
        "tiny/one,,base,",
        "tiny/one-lora,tiny/one,adapter,",
        "tiny/cut,,base,",
        "tiny/two,tiny/two,base,",
        "tiny/missing,,finetune,",
        "tiny/two-lora,tiny/two,lora,",
    ]
    path = directory / "atlas.csv"
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
