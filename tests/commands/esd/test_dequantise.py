"""Packed weights are read as what they stand for: compared with the software that packs them, or with its formula."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.dequantise.bits import unpack
from gpusched.commands.esd.dequantise.plain_weights import plain_weights
from gpusched.commands.esd.read.sources import StateSource
from gpusched.commands.esd.read.tensors import ModelError, TensorSource

torch.set_num_threads(1)


def plain(state: Mapping[str, torch.Tensor], **config: Any) -> TensorSource:
    return plain_weights(StateSource(state, config))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the last dimension into words of 32 bits, by the definition: number i lies at bit i · bits."""
    words = torch.zeros(*values.shape[:-1], values.shape[-1] * bits // 32, dtype=torch.int64)
    for index in range(values.shape[-1]):
        word, shift = divmod(index * bits, 32)
        words[..., word] |= (values[..., index] << shift) & 0xFFFFFFFF
        if shift + bits > 32:
            words[..., word + 1] |= values[..., index] >> (32 - shift)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_integers_lie_without_gaps(bits: int) -> None:
    values = integers(1 << bits, 3, 64)
    assert torch.equal(unpack(pack(values, bits), bits), values.to(torch.uint8))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("has_order", [True, False])
def test_gptq(bits: int, version: str, has_order: bool) -> None:
    inputs, outputs, group = 64, 32, 16
    q, zeros = integers(1 << bits, inputs, outputs), integers(1 << bits, inputs // group, outputs, seed=1)
    scales = random(inputs // group, outputs).half()
    order = torch.arange(inputs)[torch.randperm(inputs, generator=torch.Generator().manual_seed(2))] // group
    order = order if has_order else torch.arange(inputs) // group
    stored = (zeros - 1) % (1 << bits) if version == "gptq" else zeros
    state = {
        "m.qweight": pack(q.T.contiguous(), bits).T.contiguous(),
        "m.qzeros": pack(stored, bits),
        "m.scales": scales,
        "m.bias": torch.zeros(outputs),
        **({"m.g_idx": order.to(torch.int32)} if has_order else {}),
    }
    source = plain(state, quantization_config={"quant_method": "gptq", "bits": bits, "checkpoint_format": version})
    assert [info.name for info in source.infos()] == ["m.weight", "m.bias"]
    expected = scales.double()[order] * (q - zeros[order]).double()
    assert torch.equal(source.read("m.weight").double(), expected.T)


def test_awq() -> None:
    inputs, outputs, group = 64, 32, 16
    q, zeros = integers(16, inputs, outputs), integers(16, inputs // group, outputs, seed=1)
    scales = random(inputs // group, outputs).half()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def words(values: torch.Tensor) -> torch.Tensor:
        return pack(values.unflatten(-1, (-1, 8))[..., order].flatten(-2), 4)

    state = {"m.qweight": words(q), "m.qzeros": words(zeros), "m.scales": scales}
    source = plain(state, quantization_config={"quant_method": "awq", "bits": 4, "group_size": group})
    groups = torch.arange(inputs) // group
    expected = scales.double()[groups] * (q - zeros[groups]).double()
    assert torch.equal(source.read("m.weight").double(), expected.T)


@pytest.mark.parametrize(
    ("name", "scale", "shape"),
    [
        ("m.weight_scale_inv", "block", (2, 3)),
        ("m.weight_scale", "tensor", ()),
        ("m.weight_scale", "tensor", (1,)),
        ("m.weight_scale", "row", (200, 1)),
        ("m.weight_scale", "row", (200,)),
        ("m.weight_scale", "column", (1, 300)),
        ("m.scale_weight", "tensor", (1,)),
        ("m.scale", "block", (2, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8(name: str, scale: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    weight = random(200, 300).to(dtype)
    factor = random(*shape, seed=1).abs() + 0.1
    wide = factor.double().reshape(-1, 1) if shape == (200,) else factor.double()
    if scale == "block":
        wide = wide.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    source = plain({"m.weight": weight, name: factor, "m.scale_input": torch.ones(1)})
    assert [info.name for info in source.infos()] == ["m.weight", "m.scale_input"]
    assert torch.equal(source.read("m.weight"), (weight.double() * wide).float())


def test_fp8_with_powers_of_two_and_stacks_of_experts() -> None:
    weight = random(3, 128, 256).to(torch.float8_e4m3fn)
    scale = torch.tensor([[[0.5, 2.0]], [[1.0, 4.0]], [[8.0, 0.25]]])
    source = plain({"e.gate_up_proj": weight, "e.gate_up_proj_scale_inv": scale.to(torch.float8_e8m0fnu)})
    expected = weight.double() * scale.double().repeat_interleave(128, 2)
    assert torch.equal(source.read("e.gate_up_proj").double(), expected)
    assert torch.equal(source.read("e.gate_up_proj", slice(2, 3)).double(), expected[2:3])


def test_mxfp4_as_transformers_reads_it() -> None:
    convert = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    blocks = integers(256, 3, 24, 2, 16).to(torch.uint8)
    scales = integers(20, 3, 24, 2, seed=1).add(117).to(torch.uint8)
    source = plain({"mlp.experts.down_proj_blocks": blocks, "mlp.experts.down_proj_scales": scales})
    (info,) = source.infos()
    expected = convert(blocks, scales, dtype=torch.bfloat16)
    assert (info.name, info.shape) == ("mlp.experts.down_proj", tuple(expected.shape))
    assert torch.equal(source.read(info.name), expected)
    assert torch.equal(source.read(info.name, slice(1, 2)), expected[1:2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [True, False])
def test_bitsandbytes_four_bits(dtype: torch.dtype, kind: str, nested: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(random(128, 320).to(dtype), quant_type=kind, compress_statistics=nested)
    stored = {"m.weight": packed, **{f"m.weight.{key}": value for key, value in state.as_dict(packed=True).items()}}
    source = plain(stored)
    (info,) = source.infos()
    assert (info.name, info.shape, info.packing) == ("m.weight", (128, 320), f"bitsandbytes {kind}")
    assert torch.equal(source.read("m.weight"), functional.dequantize_4bit(packed, state))


@pytest.mark.slow
def test_bitsandbytes_int8() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, scale, _ = functional.int8_vectorwise_quant(random(96, 160).half())
    source = plain({"m.weight": packed, "m.SCB": scale, "m.weight_format": torch.zeros(1, dtype=torch.uint8)})
    assert torch.equal(source.read("m.weight"), functional.int8_vectorwise_dequant(packed, scale))


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("shape", [(32, 256), (3, 32, 256)])
def test_mlx(bits: int, shape: tuple[int, ...]) -> None:
    mlx = pytest.importorskip("mlx.core")
    weight = mlx.array(random(*shape).numpy())
    parts = dict(zip(("weight", "scales", "biases"), mlx.quantize(weight, 64, bits), strict=True))
    state = {f"m.{name}": torch.from_numpy(np.array(part)) for name, part in parts.items()}
    source = plain(state, quantization={"group_size": 64, "bits": bits})
    expected = torch.from_numpy(np.array(mlx.dequantize(*parts.values(), 64, bits)))
    assert torch.equal(source.read("m.weight"), expected)
    if len(shape) == 3:
        assert torch.equal(source.read("m.weight", slice(1, 2)), expected[1:2])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "BF16", "F16", "F32", "Q6_K"])
def test_gguf(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    type_ = gguf.GGMLQuantizationType[kind]
    weights = {"blk.0.ffn_up.weight": random(40, 256).numpy(), "blk.0.ffn_gate_exps.weight": random(3, 8, 256).numpy()}
    if kind == "Q6_K":  # what the package reads, but cannot write
        size = gguf.quant_shape_to_byte_shape((256,), type_)[0]
        data = {n: integers(60, *w.shape[:-1], size).to(torch.uint8).numpy() for n, w in weights.items()}
    else:
        data = {name: gguf.quantize(weight, type_) for name, weight in weights.items()}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, values in data.items():
        writer.add_tensor(name, values, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    table = analyze(tmp_path)
    assert [(row.longname, row.kind, row.M, row.N) for row in table.rows] == [
        ("blk.0.ffn_up", "up", 40, 256),
        *((f"blk.0.ffn_gate_exps[{n}]", "gate", 8, 256) for n in range(3)),
    ]
    expected = [gguf.dequantize(values, type_).astype(np.float64) for values in data.values()]
    for matrix, spectrum in zip([expected[0], *expected[1]], table.spectra.values(), strict=True):
        assert np.allclose(spectrum, np.linalg.svd(matrix, compute_uv=False)[::-1] ** 2, rtol=1e-9, atol=1e-6)
    assert table.rows[0].dtype == {"F16": "float16", "F32": "float32"}.get(kind, f"gguf {kind}")


def test_gguf_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelError, match=r"m\.gguf is no GGUF file, or is damaged"):
        analyze(tmp_path)


def test_weight_norm_masks_experts_and_heads_are_put_together() -> None:
    v, g = random(6, 8, 3), random(1, 1, 3, seed=1).abs()
    for names in (("weight_v", "weight_g"), ("parametrizations.weight.original1", "parametrizations.weight.original0")):
        source = plain({f"conv.{name}": part for name, part in zip(names, (v, g), strict=True)})
        assert torch.allclose(source.read("conv.weight"), torch._weight_norm(v, g, 2), rtol=1e-6, atol=0)
    mask = integers(2, 4, 6).float()
    source = plain({"a.weight_orig": random(4, 6), "a.weight_mask": mask})
    assert torch.equal(source.read("a.weight"), random(4, 6) * mask)
    rows = random(12, 5)
    source = plain({"ffn.experts.mlp.w1": rows}, ffn_config={"moe_num_experts": 4})
    assert source.infos()[0].shape == (4, 3, 5)
    assert torch.equal(source.read("ffn.experts.mlp.w1", slice(2, 3)), rows[None, 6:9])
    source = plain({"layer.0.rel_attn.q": random(12, 3, 4)})
    assert torch.equal(source.read("layer.0.rel_attn.q"), random(12, 3, 4).reshape(12, 12))


def test_a_state_that_makes_no_sense_is_packed_and_no_more() -> None:
    state = {
        "m.weight": integers(256, 128, 1).to(torch.uint8),
        "m.weight.absmax": torch.ones(4),
        "m.weight.quant_map": torch.ones(16),
        "m.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps({"shape": [9, 9]}).encode())).byte(),
    }
    with pytest.raises(ModelError, match="1 of its weights are quantised"):
        analyze(state)


def packed_mlx(outputs: int, inputs: int) -> dict[str, torch.Tensor]:
    words = integers(1 << 31, outputs, inputs // 8).to(torch.int32).view(torch.uint32)
    return {"weight": words, "scales": random(outputs, inputs // 64), "biases": random(outputs, inputs // 64, seed=1)}


def test_tables_of_scales_are_no_layers_and_the_weight_is_one() -> None:
    state = {f"model.layers.0.q_proj.{name}": part for name, part in packed_mlx(64, 128).items()}
    table = analyze(state)
    assert [(row.longname, row.shape, row.dtype) for row in table.rows] == [
        ("model.layers.0.q_proj", "64x128", "mlx 4 bits")
    ]
    assert table.coverage == 1.0 and not table.skipped


def test_what_is_not_dequantised_fails_by_name() -> None:
    state = {
        "h.0.q.codes": integers(100, 64, 8, 1).to(torch.int8),
        "h.0.q.codebooks": random(1, 256, 1, 8).half(),
        "h.0.q.scales": random(64, 1, 1, 1).half(),
        "lm_head.weight": random(8, 8),
    }
    with pytest.raises(ModelError, match=r"1 of its weights are quantised .* by AQLM, such as h\.0\.q\.codes"):
        analyze(state)


def test_a_small_part_that_is_packed_lowers_the_coverage() -> None:
    packed = integers(256, 16, 8).to(torch.uint8)
    table = analyze({"h.0.W_q": packed, "h.0.scale": random(16, 1), "h.1.weight": random(64, 64)})
    assert [row.longname for row in table.rows] == ["h.1"]
    assert table.coverage == 4096 / (4096 + 256)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight", "format of kohya"),
        ("unet.down_blocks.0.attn1.processor.to_q_lora.down.weight", "format of diffusers"),
        ("transformer.single_blocks.0.attn.to_q.lora_A.weight", "format of peft"),
        ("lora_te_text_model_encoder_layers_0_mlp_fc1.hada_w1_a", "format of LoHa"),
        ("base.layers.0.lokr_w1", "format of LoHa, LoKr"),
    ],
)
def test_factors_of_adapters_are_no_layers(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=f"it holds an adapter in the {words}.*merge it"):
        analyze({name: random(4, 8), "other.weight": random(8, 8)})


def test_a_checkpoint_around_which_an_adapter_is_wrapped_is_refused() -> None:
    place = "base_model.model.model.layers.0.q_proj"
    state = {f"{place}.base_layer.weight": random(8, 8), f"{place}.lora_A.default.weight": random(2, 8)}
    with pytest.raises(ModelError, match=r"the adapter in it is not merged .*lora_A\.default"):
        analyze(state)
