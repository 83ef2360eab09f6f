"""What a layer is in many architectures of transformers: every matrix that is multiplied, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from gpusched.commands.esd.dequantise.plain_weights import plain_weights
from gpusched.commands.esd.read.sources import StateSource
from gpusched.commands.esd.read.tensors import TensorInfo
from gpusched.commands.esd.weights.layers import choose_layers
from gpusched.commands.esd.weights.names import block_of, kind_of
from torch import nn

from gpusched.esd.options import AnalysisOptions

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}
DECODER = {**ENCODER, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
VISION = {**ENCODER, "image_size": 32, "patch_size": 8}
GPT = {"hidden_size": 32, "n_embd": 32, "n_layer": 2, "num_layers": 2, "n_head": 4, "num_heads": 4, "vocab_size": 96}
BOTH = {
    **{f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in (("layers", 1), ("ffn_dim", 64))},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{"d_model": 32, "vocab_size": 96, "pad_token_id": 0},
}
SPEECH = {
    **ENCODER,
    **{"conv_dim": (16, 16), "conv_stride": (2, 2), "conv_kernel": (4, 4)},
    **{"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4},
}
STATE = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 96}
LATENT = {
    **{"num_key_value_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 16, "q_lora_rank": 16},
    **{"kv_lora_rank": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "qk_rope_head_dim": 8},
    **{"qk_nope_head_dim": 8, "v_head_dim": 8},
}
GATED = "q2 k2 v2 o2 gate2 up2 down2"
PLAIN = "q2 k2 v2 o2 up2 down2"
FUSED = "qkv2 o2 up2 down2"
EXPERTS = "q2 k2 v2 o2 router2 gate_up6 down6"

# model_type -> the settings of a small one, and its layers by kind.
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), (DECODER, GATED)),
    **dict.fromkeys(("olmo2", "cohere", "stablelm"), (DECODER, GATED)),
    "phi": (ENCODER, PLAIN),
    "phi3": (DECODER, "qkv2 o2 gate_up2 down2"),
    "starcoder2": (DECODER, PLAIN),
    **{name: ({**DECODER, "num_local_experts": 3}, EXPERTS) for name in ("mixtral", "gpt_oss", "granitemoe")},
    "qwen3_moe": ({**DECODER, "num_experts": 3, "moe_intermediate_size": 16}, EXPERTS),
    "deepseek_v3": ({**DECODER, **LATENT}, "q4 kv4 o2 gate2 up2 down6 gate_up4 router1"),
    "jamba": (
        {**DECODER, "num_experts": 2, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
        "q1 k1 v1 o1 conv1 other4 gate1 up1 down3 router1 gate_up2",
    ),
    "gpt2": (GPT, FUSED),
    "gptj": ({**GPT, "rotary_dim": 4}, PLAIN),
    "gpt_neo": ({**GPT, "attention_types": [[["global", "local"], 1]]}, PLAIN),
    "gpt_neox": (ENCODER, FUSED),
    "bloom": (GPT, FUSED),
    "falcon": (ENCODER, FUSED),
    "opt": ({**ENCODER, "ffn_dim": 64, "word_embed_proj_dim": 32}, PLAIN),
    "mpt": ({"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 96}, FUSED),
    "mamba": ({**STATE, "state_size": 4}, "conv2 other8"),
    "mamba2": ({**STATE, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1}, "conv2 other4"),
    "rwkv": ({**STATE, "attention_hidden_size": 32}, "k4 v4 other4 o2"),
    "bert": (ENCODER, f"{PLAIN} other1"),
    "roberta": (ENCODER, f"{PLAIN} other1"),
    "distilbert": ({"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 96}, PLAIN),
    "electra": ({**ENCODER, "embedding_size": 16}, f"{PLAIN} other2"),
    "albert": ({**ENCODER, "embedding_size": 16}, "q1 k1 v1 o1 up1 down1 other2"),
    "deberta-v2": (ENCODER, PLAIN),
    "xlnet": ({"d_model": 32, "d_inner": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96}, f"{PLAIN} other2"),
    "modernbert": ({**ENCODER, "pad_token_id": 0}, FUSED),
    "canine": (ENCODER, "q4 k4 v4 o4 up4 down4 conv2 other1"),  # embeddings by hash, in eight tables
    "t5": (
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64},  # as many as d_ff
        "q6 k6 v6 o6 up4 down4",
    ),
    "bart": (BOTH, "q2 k2 v2 o2 up1 down1"),
    "whisper": (BOTH, "q2 k2 v2 o2 up1 down1"),
    "vit": (VISION, f"conv1 {PLAIN} other1"),
    "dinov2": (VISION, f"conv1 {PLAIN}"),
    "clip": (
        {"text_config": ENCODER, "vision_config": VISION, "projection_dim": 16},
        "q4 k4 v4 o4 up4 down4 conv1 other2",
    ),
    "swin": (
        {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "patch_size": 4, "window_size": 2},
        f"conv1 {PLAIN} other1",
    ),
    "convnext": ({"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, "conv4 up2 down2"),
    "resnet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "conv8"),
    "wav2vec2": (SPEECH, f"conv3 {PLAIN} other1"),
    "hubert": (SPEECH, f"conv3 {PLAIN} other1"),
}


def build(name: str, settings: dict[str, Any]) -> Any:
    config = transformers.AutoConfig.for_model(name, **settings)
    with torch.device("meta"):
        try:
            return transformers.AutoModelForCausalLM.from_config(config)
        except ValueError:  # no language model
            return transformers.AutoModel.from_config(config)


class Shapes(StateSource):  # type: ignore[misc]
    """The tensors of a model that was never filled with numbers."""

    def __init__(self, model: Any) -> None:
        super().__init__({}, model.config.to_dict())
        tied = set(model._tied_weights_keys or ())
        self._known = [
            TensorInfo(name, tuple(tensor.shape), "float32")
            for name, tensor in model.state_dict().items()
            if name not in tied
        ]

    def infos(self) -> list[TensorInfo]:
        return self._known


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_matrix_that_is_multiplied_is_a_layer(name: str) -> None:
    settings, expected = MODELS[name]
    model = build(name, settings)
    source = plain_weights(Shapes(model))
    layers, skips = choose_layers(source.infos(), source.config, AnalysisOptions())
    kinds = Counter(kind_of(layer.name, convolution=layer.convolution) for layer in layers)
    assert " ".join(f"{kind}{count}" for kind, count in sorted(kinds.items())) == " ".join(sorted(expected.split()))
    assert not sum(skip.missing for skip in skips)  # the coverage is whole
    chosen = {layer.tensor.name for layer in layers}
    stored = {info.name for info in source.infos()}
    multiplied = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, transformers.pytorch_utils.Conv1D)
    modules = {f"{path}.weight": module for path, module in model.named_modules()}
    assert {path for path, module in modules.items() if isinstance(module, multiplied)} & stored <= chosen
    assert chosen.isdisjoint(path for path, module in modules.items() if isinstance(module, nn.Embedding))


def test_blocks_have_their_numbers() -> None:
    source = plain_weights(Shapes(build("qwen3_moe", MODELS["qwen3_moe"][0])))
    layers, _ = choose_layers(source.infos(), source.config, AnalysisOptions())
    assert [block_of(layer.name) for layer in layers] == [0] * 11 + [1] * 11
