"""Which tensors are analysed and which are not, by name, shape, type and config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from gpusched.commands.esd.read.tensors import TensorInfo
from gpusched.commands.esd.weights.layers import Layer, choose_layers
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.esd.options import AnalysisOptions


def planned(
    *tensors: tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], str],
    config: Mapping[str, Any] | None = None,
    is_same: Callable[[str, str], bool] = lambda name, other: False,
    **options: Any,
) -> tuple[list[Layer], dict[str, str]]:
    infos = [TensorInfo(*(tensor if len(tensor) == 3 else (*tensor, "bfloat16"))) for tensor in tensors]
    layers, skips = choose_layers(infos, config or {}, AnalysisOptions(**options), (), is_same)
    return layers, {skip.tensor.name: skip.reason for skip in skips}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8)),
        ("model.layers.0.self_attn.k_proj.weight", (2, 8)),  # grouped: fewer heads than q
        ("h.0.attn.c_attn.weight", (8, 24)),  # GPT-2: in×out, q, k and v in one
        ("model.layers.0.mlp.up_proj.weight", (8192, 1024)),
        ("lm_head.weight", (32000, 8)),
        ("encoder.embedding_projection.weight", (8, 16)),
        ("gpt_neox.embed_out.weight", (32000, 8)),
        ("time_embedding.linear_1.weight", (8, 16)),
        ("x_embedder.weight", (8, 16)),  # Flux
        ("time_embed.0.weight", (8, 16)),  # latent diffusion
        ("encoder.block.0.layer.0.SelfAttention.q.weight", (384, 64)),  # byte-level: as many rows as words
        ("patch_embedding.weight", (8, 16)),
    ],
)
def test_two_dimensions_are_one_matrix(name: str, shape: tuple[int, int]) -> None:
    layers, skips = planned((name, shape), config={"vocab_size": 384})
    label = name.removesuffix(".weight")
    assert [(layer.name, layer.matrix, layer.convolution) for layer in layers] == [(label, shape, False)]
    assert not skips


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("conv1.weight", (64, 3, 7, 7)),
        ("wav2vec2.feature_extractor.conv_layers.0.conv.weight", (512, 512, 10)),
        ("mixer.conv1d.weight", (64, 1, 4)),
        ("encoder.pos_conv_embed.conv.weight_v", (64, 48, 128)),
        ("vision_model.embeddings.patch_embedding.weight", (768, 3, 16, 16)),
        ("patch_embed.proj.weight", (96, 3, 2, 4, 4)),
        ("weights", (40, 40, 3)),
    ],
)
def test_convolutions_are_one_matrix_for_each_position(name: str, shape: tuple[int, ...]) -> None:
    layers, skips = planned((name, shape))
    assert [(layer.matrix, layer.convolution, layer.expert) for layer in layers] == [(shape[:2], True, None)]
    assert not skips


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 64, 128)),
        ("model.layers.0.mlp.experts.down_proj", (4, 2, 3)),  # however small
        ("model.layers.0.block_sparse_moe.input_linear.weight", (4, 64, 128)),
        ("some.weights", (4, 64, 128)),
    ],
)
def test_stacks_are_one_matrix_for_each_expert(name: str, shape: tuple[int, int, int]) -> None:
    layers, skips = planned((name, shape))
    assert [(layer.name, layer.shape, layer.expert) for layer in layers] == [
        (f"{name.removesuffix('.weight')}[{n}]", shape[1:], n) for n in range(4)
    ]
    assert layers[0].elements == shape[1] * shape[2]
    assert not skips


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (("\x1b[2J\ud800", (4, 4)), "its name has characters"),
        (("wte.weight", (50257, 8)), "an embedding"),
        (("model.embed_tokens.weight", (32000, 8)), "an embedding"),
        (("embeddings.position_embeddings.weight", (512, 384)), "an embedding"),
        (("shared.weight", (32000, 8)), "an embedding"),
        (("vit.embeddings.position_embeddings", (1, 197, 768)), "an embedding"),
        (("decoder.embed_tokens.1.weight", (2048, 8)), "an embedding"),  # MusicGen
        (("token_embd.weight", (32000, 8)), "an embedding"),  # GGUF
        (("backbone.layers.0.mixer.A_log", (16, 4)), "a parameter that is no layer"),
        (("blocks.0.attn.rel_pos_h", (27, 64)), "a parameter that is no layer"),
        (("freqs_cis", (64, 32)), "a parameter that is no layer"),
        (("h.0.attn.bias", (1, 1, 64, 64)), "a bias"),
        (("model.layers.0.mlp.experts.gate_up_proj_bias", (4, 64)), "a bias"),
        (("classifier.weight", (1, 768)), "a vector"),
        (("conv.weight_g", (1, 1, 128)), "a vector"),
        (("position_ids", (1, 512), "int64"), "int64, not weights"),
        (("mask", (4, 4), "bool"), "bool, not weights"),
        (("freqs", (4, 4), "complex64"), "complex64, not weights"),
        (("nothing.weight", (0, 4)), "empty"),
        (("q.weight", (4, 4), "int8"), "quantised (int8)"),
        (("q.weight", (4, 4), "uint8"), "quantised (uint8)"),
        (("layer.qweight", (4, 4), "int32"), "quantised (int32) by GPTQ or AWQ"),
        (("layer.qzeros", (4, 4), "int32"), "part of a quantised weight"),
        (("mlp.experts.down_proj_blocks", (4, 4, 8, 16), "uint8"), "quantised (uint8) by MXFP4"),
        (("mlp.experts.down_proj_scales", (4, 4, 8), "uint8"), "part of a quantised weight"),
        (("deep.weight", (2, 2, 2, 2, 2, 2)), "6 dimensions"),
    ],
)
def test_what_is_no_matrix_of_weights_is_said(tensor: Any, reason: str) -> None:
    layers, skips = planned(tensor, config={"vocab_size": 32000})
    assert not layers
    assert skips[tensor[0]].startswith(reason)


def test_eight_bits_are_weights_unless_they_are_scaled() -> None:
    scaled = [("a.weight", (4, 4), "float8_e4m3fn"), ("a.weight_scale_inv", (1, 2), "float32")]
    layers, skips = planned(*scaled, ("b.weight", (4, 4), "float8_e4m3fn"))
    assert [layer.name for layer in layers] == ["b"]
    assert skips["a.weight"] == "quantised (float8_e4m3fn) by a scale of an unknown kind (weight_scale_inv)"
    assert skips["a.weight_scale_inv"] == "part of a quantised weight (float32)"


def test_scales_of_activations_leave_a_weight_plain() -> None:
    layers, _ = planned(("a.weight", (4, 4), "float8_e4m3fn"), ("a.input_scale", (1,), "float32"))
    assert [layer.name for layer in layers] == ["a"]


def test_scales_of_a_gptq_layer_are_no_weights() -> None:
    layers, skips = planned(("a.qweight", (4, 4), "int32"), ("a.scales", (2, 4), "float16"), ("b.scales", (2, 4)))
    assert [layer.name for layer in layers] == ["b.scales"]
    assert set(skips) == {"a.qweight", "a.scales"}


def test_embeddings_are_analysed_on_request() -> None:
    layers, skips = planned(("wte.weight", (50, 8)), ("h.0.attn.bias", (4, 4)), embeddings=True)
    assert [layer.name for layer in layers] == ["wte"]
    assert set(skips) == {"h.0.attn.bias"}


@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.parametrize("is_nested", [True, False])
@pytest.mark.parametrize("is_same", [True, False])
def test_a_head_is_tied_by_its_contents(tied: bool | None, is_nested: bool, is_same: bool) -> None:
    tensors = [("model.embed_tokens.weight", (100, 8)), ("lm_head.weight", (100, 8))]
    config: dict[str, Any] = {} if tied is None else {"tie_word_embeddings": tied}
    config = {"text_config": config} if is_nested else config
    layers, skips = planned(*tensors, config=config, embeddings=True, is_same=lambda name, other: is_same)
    is_tied = is_same and tied is not False
    assert [layer.name for layer in layers] == ["model.embed_tokens", *([] if is_tied else ["lm_head"])]
    assert skips == ({"lm_head.weight": "tied to model.embed_tokens.weight"} if is_tied else {})


def test_a_head_of_another_shape_is_a_layer() -> None:
    tensors = [("model.embed_tokens.weight", (100, 8)), ("lm_head.weight", (104, 8))]
    layers, _ = planned(*tensors, config={"tie_word_embeddings": True}, is_same=lambda name, other: True)
    assert [layer.name for layer in layers] == ["lm_head"]


def test_a_head_that_is_the_embedding_is_no_layer() -> None:
    tensors = [("lm_head.weight", (100, 8)), ("h.0.mlp.weight", (8, 8))]
    layers, skips = planned(*tensors, config={"tie_word_embeddings": True})
    assert [layer.name for layer in layers] == ["h.0.mlp"]
    assert skips["lm_head.weight"].startswith("tied to the embedding")


def test_blocks_come_in_the_order_of_their_numbers() -> None:
    names = [
        f"model.layers.{n}.{part}.weight" for n in (0, 1, 10, 11, 2) for part in ("mlp.up_proj", "self_attn.q_proj")
    ]
    layers, _ = planned(*((name, (8, 8)) for name in ["lm_head.weight", *names]))
    assert [layer.name.split(".")[2] for layer in layers[1:]] == [str(n) for n in (0, 0, 1, 1, 2, 2, 10, 10, 11, 11)]
    assert layers[0].name == "lm_head"
    names = ["conv1.weight", "layer1.0.conv.weight", "layer1.10.conv.weight", "layer1.9.conv.weight", "fc.weight"]
    layers, _ = planned(*((name, (8, 8)) for name in names))
    assert [layer.name for layer in layers] == ["conv1", "layer1.0.conv", "layer1.9.conv", "layer1.10.conv", "fc"]


@pytest.mark.parametrize(
    ("format", "tensors"),
    [
        ("AQLM", {"codes": ("int8", 3), "codebooks": ("float16", 4), "scales": ("float16", 4)}),
        ("VPTQ", {"indices": ("int32", 3), "centroids.weight": ("float16", 2), "weight_scale": ("float16", 2)}),
        ("HQQ", {"W_q": ("uint8", 2), "scale": ("float16", 2), "zero": ("float16", 2)}),
        ("compressed-tensors", {"weight_packed": ("int32", 2), "weight_scale": ("bfloat16", 2)}),
        ("quanto or torchao", {"_weight_qdata": ("int8", 2), "_weight_scale": ("bfloat16", 2)}),
        ("quanto or torchao", {"weight._data": ("int8", 2), "weight._scale": ("bfloat16", 2)}),
        ("", {"weight": ("int8", 2), "weight_scales": ("float16", 2)}),
        ("Marlin", {"B": ("int32", 2), "s": ("float16", 2)}),
        ("EXL2", {"q_weight": ("int32", 2), "q_scale": ("int32", 2)}),
        ("", {"weight": ("uint8", 2), "weight_scale": ("float8_e4m3fn", 2), "weight_scale_2": ("float32", 0)}),
    ],
)
def test_companions_of_packed_weights_are_never_rows(format: str, tensors: Mapping[str, tuple[str, int]]) -> None:
    stored = [(f"h.0.q.{name}", (64,) * dimensions, dtype) for name, (dtype, dimensions) in tensors.items()]
    layers, skips = planned(*stored, ("h.0.q.bias", (64, 2)), ("lm_head.weight", (64, 64)))
    assert [layer.name for layer in layers] == ["lm_head"]
    main, *companions = [skips[name] for name, shape, _ in stored if len(shape) > 1]
    assert main.startswith("quantised") and main.endswith(f" by {format}" if format else "int8)")
    assert all(reason.startswith("part of a quantised weight") for reason in companions)


def test_layers_that_are_not_asked_for_are_said_too() -> None:
    layers, skips = planned(("a.mlp.weight", (4, 4)), ("a.attn.weight", (4, 4)), layers=r"\.mlp\.")
    assert [layer.name for layer in layers] == ["a.mlp"]
    assert skips == {"a.attn.weight": "left out by --layers"}


names = st.text(st.sampled_from("abw.experts_conv_embed_weight"), min_size=1, max_size=20)
shapes = st.lists(st.sampled_from([0, 1, 2, 40, 100]), max_size=6).map(tuple)
types = st.sampled_from(["bfloat16", "float32", "int8", "bool", "float8_e5m2", "float4_e2m1fn", "complex64"])


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(names, shapes, types), max_size=6, unique_by=lambda tensor: tensor[0]))
def test_every_tensor_of_two_dimensions_is_in_one_of_both(tensors: list[tuple[str, tuple[int, ...], str]]) -> None:
    layers, skips = planned(*tensors)
    told = {layer.tensor.name for layer in layers}
    assert told.isdisjoint(skips)
    assert told | set(skips) == {name for name, shape, _ in tensors if len(shape) >= 2}
    assert all(skips.values())
