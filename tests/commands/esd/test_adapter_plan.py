"""What an adapter's settings and names come to, and each reason for which it is not merged. No file, no peft."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from gpusched.commands.esd.adapt.adapter_config import AdapterConfig, parse_adapter_config
from gpusched.commands.esd.adapt.adapter_plan import AdapterPlan, TensorChange, suffix_matches
from gpusched.commands.esd.read.tensors import ModelError, TensorInfo
from hypothesis import given
from hypothesis import strategies as st

Q = "model.layers.0.self_attn.q_proj"
Shapes = Mapping[str, tuple[int, ...]]


def infos(shapes: Shapes, dtype: str = "float32") -> dict[str, TensorInfo]:
    return {name: TensorInfo(name, shape, dtype) for name, shape in shapes.items()}


def settings(**fields: Any) -> AdapterConfig:
    return parse_adapter_config({"peft_type": "LORA", "r": 2, "lora_alpha": 3, **fields}, "lab/ad")


def lora(module: str, a: tuple[int, ...] = (2, 6), b: tuple[int, ...] = (8, 2)) -> Shapes:
    return {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}


def plan(stored: Shapes, base: Shapes, dtype: str = "float32", **fields: Any) -> dict[str, TensorChange]:
    config = fields.pop("base_config", {"model_type": "llama"})
    done: dict[str, TensorChange] = AdapterPlan(
        settings(**fields), "lab/ad", infos(stored), infos(base, dtype), config
    ).make()
    return done


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peft_type": "VERA"}, "Invalid enum value 'VERA' - at `$.peft_type`"),
        ({"peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING' - at `$.peft_type`"),
        ({"peft_type": "IA3"}, "lora_alpha is set, which means nothing to IA3"),
        ({"alpha": 3}, "alpha is set, which means nothing to LORA"),
        ({"peft_type": None}, "`$.peft_type`"),
        ({"lora_bias": True}, "unknown field `lora_bias`"),
        ({"target_parameters": ["experts.w1"]}, "`target_parameters`"),
        ({"layer_replication": [[0, 4], [2, 5]]}, "`layer_replication`"),
        ({"use_qalora": True}, "`use_qalora`"),
        ({"trainable_token_indices": [1]}, "`trainable_token_indices`"),
        ({"ensure_weight_tying": True}, "`ensure_weight_tying`"),
        ({"megatron_config": {"a": 1}}, "`megatron_config`"),
        ({"alora_invocation_tokens": [1, 2]}, "`alora_invocation_tokens`"),
        ({"kasa_config": {"beta": 1}}, "`kasa_config`"),
        ({"shiny_new": 7}, "unknown field `shiny_new`"),
        ({"shiny\x1b[2J": 7}, "`shiny\\x1b[2J`"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' - at `$.init_lora_weights`"),
        ({"init_lora_weights": "olora"}, "`$.init_lora_weights`"),
        ({"init_lora_weights": "loftq"}, "`$.init_lora_weights`"),
        ({"init_lora_weights": ["x"]}, "got `array` - at `$.init_lora_weights`"),
        ({"init_lora_weights": 1}, "got `int` - at `$.init_lora_weights`"),
        ({"bias": "some"}, "'some' - at `$.bias`"),
        ({"r": 0}, "`$.r`"),
        ({"r": True}, "got `bool` - at `$.r`"),
        ({"r": 2.0}, "got `float` - at `$.r`"),
        ({"rank_pattern": {"q": "4"}}, "got `str` - at `$.rank_pattern"),
        ({"rank_pattern": [1]}, "got `array` - at `$.rank_pattern`"),
        ({"lora_alpha": "8"}, "got `str` - at `$.lora_alpha`"),
        ({"lora_alpha": math.inf}, "`$.lora_alpha`"),
        ({"lora_alpha": math.nan}, "`$.lora_alpha`"),
        ({"alpha_pattern": {"(": 1}}, "the pattern '(' cannot be matched safely"),
        ({"alpha_pattern": {"(a+)+": 1}}, "the pattern '(a+)+' cannot be matched safely"),
        ({"alpha_pattern": {"a" * 400: 1}}, "cannot be matched safely"),
        ({"modules_to_save": "head"}, "got `str` - at `$.modules_to_save`"),
        ({"modules_to_save": [""]}, "at `$.modules_to_save[0]`"),
    ],
)
def test_settings_that_cannot_be_merged_are_refused_by_name(fields: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ModelError) as refusal:
        settings(**fields)
    assert refusal.value.stage == "merge"
    assert refusal.value.reason.startswith("adapter lab/ad: ")
    assert reason in refusal.value.reason
    assert refusal.value.reason.isprintable()


def test_settings_that_only_steer_training_are_no_obstacle() -> None:
    config = settings(
        lora_dropout=0.1,
        inference_mode=True,
        loftq_config={"bits": 4},
        eva_config={"rho": 2},
        megatron_core="megatron.core",
        qalora_group_size=16,
        init_lora_weights="gaussian",
        bias="lora_only",
        target_modules=["q_proj"],
        task_type="CAUSAL_LM",
        lora_bias=False,
        layer_replication=None,
        something_new=None,
        base_model_name_or_path="acme/base",
        revision="v1",
    )
    assert config.scale_of(Q) == 1.5


def test_the_first_pattern_that_matches_a_module_counts() -> None:
    config = settings(
        use_rslora=True,
        rank_pattern={"k_proj": 5, "layers.0.self_attn.q_proj": 4, "q_proj": 9},
        alpha_pattern={"proj": 1, r"\w_proj": 6},
    )
    assert config.rank_of(Q) == 4
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 9
    assert config.rank_of("model.layers.1.mlp.up") == 2
    assert config.scale_of(Q) == 6 / 2.0


@pytest.mark.parametrize(
    ("stored", "base", "extra", "reason"),
    [
        ({}, {f"{Q}.weight": (8, 6)}, {}, "its file holds no weights"),
        (
            lora("model.layers.7.q"),
            {f"{Q}.weight": (8, 6)},
            {},
            "model.layers.7.q.weight matches no tensor of the base",
        ),
        (lora("q"), {"a.q.weight": (8, 6), "b.q.weight": (8, 6)}, {}, "q.weight matches 2 tensors of the base (a.q"),
        (lora("q"), {f"{Q[:-5]}.weight": (8, 6)}, {}, "q.weight matches no tensor"),
        (
            lora("q_proj"),
            {f"{Q}.weight": (8, 6)},
            {},
            "q_proj.weight matches no tensor",
        ),  # a layer's number never lacks
        (lora(Q), {f"{Q}.weight": (6, 8)}, {}, "(2, 6) and (8, 2) do not fit the shape (6, 8) of the base"),
        (lora(Q, b=(8, 3)), {f"{Q}.weight": (8, 6)}, {}, "do not fit"),
        (lora(Q), {f"{Q}.weight": (4, 8, 6)}, {}, "do not fit the shape (4, 8, 6) of the base"),
        (lora(Q, (4, 6), (8, 4)), {f"{Q}.weight": (8, 6)}, {}, "has the rank 4, but its settings say 2"),
        (lora(Q, (), ()), {f"{Q}.weight": (8, 6)}, {}, "has the rank 0, but its settings say 2"),
        (lora(Q), {f"{Q}.weight": (8, 6)}, {"dtype": "int8"}, "of the base is int8; only plain floating point"),
        (lora(Q), {f"{Q}.weight": (8, 6)}, {"use_dora": True}, Q + " lacks a part of its LoRA weights"),
        ({f"{Q}.lora_A.weight": (2, 6)}, {f"{Q}.weight": (8, 6)}, {}, "lacks a part of its LoRA weights"),
        (
            lora("m.experts.0.w1"),
            {"m.experts.0.w1.weight": (8, 6)},
            {},
            "m.experts.0.w1 is one of several expert",
        ),
        ({"a" * 2000: (2, 6)}, {}, {}, "is no plain LoRA weight"),
        ({f"{Q}.lora_A.default.weight": (2, 6)}, {}, {}, "is no plain LoRA weight"),
        ({f"{Q}.lora_B.bias": (8,)}, {}, {}, f"{Q}.lora_B.bias in its file is no plain LoRA weight"),
        ({"wte.token_adapter.trainable_tokens_delta": (1, 8)}, {}, {}, "is no plain LoRA weight"),
        ({**lora(Q), f"{Q}.lora_A.weight": (2, 6)}, {f"{Q}.weight": (8, 6)}, {}, "is in its file twice"),
        ({"score.weight": (2, 8)}, {f"{Q}.weight": (8, 6)}, {}, "score.weight matches no tensor of the base"),
        ({f"{Q}.weight": (2, 8)}, {f"{Q}.weight": (8, 6)}, {}, "has the shape (2, 8), but"),
        (
            {**lora(Q), f"base_model.model.{Q}.base_layer.weight": (8, 6)},
            {f"{Q}.weight": (8, 6)},
            {"modules_to_save": ["q_proj"]},
            "is changed more than once, in an order that is not known",
        ),
        (
            lora(Q, (2, 6), (6, 2)),
            {f"{Q}.weight": (6, 6)},
            {"base_config": {}},
            "is square, and no model_type in a config.json of the base says which way round it is",
        ),
        (lora("lm_head"), {"a.wte.weight": (8, 6), "b.wte.weight": (8, 6)}, {}, "lm_head.weight matches 2 tensors"),
        (
            lora("lm_head"),
            {"a.wte.weight": (8, 6)},
            {"base_config": {"tie_word_embeddings": False}},
            "lm_head.weight matches no tensor of the base",
        ),
        (
            {**lora("a.decoder"), **lora("b.decoder")},
            {"wte.weight": (8, 6)},
            {},
            "wte.weight is changed more than once, in an order that is not known",
        ),
        (lora("c", (2, 4, 1, 1, 3), (8, 2, 1, 1, 1)), {"c.weight": (8, 4, 1, 1, 3)}, {}, "do not fit"),
        (lora("c", (4, 4, 3), (8, 2, 1)), {"c.weight": (8, 4, 3)}, {"r": 4}, "do not fit"),  # grouped
    ],
)
def test_names_and_shapes_that_do_not_fit_are_refused(
    stored: Shapes, base: Shapes, extra: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        plan(stored, base, **extra)
    assert refusal.value.stage == "merge"
    assert reason in refusal.value.reason


def test_numbers_that_are_not_floating_point_are_not_merged() -> None:
    stored = infos(lora(Q), "int8")
    with pytest.raises(ModelError, match=r"in its file \(int8\) is no plain LoRA weight"):
        AdapterPlan(settings(), "lab/ad", stored, infos({f"{Q}.weight": (8, 6)}), {}).make()


def test_gpt2_stores_a_square_projection_the_other_way_round() -> None:
    stored = {**lora("h.0.attn.c_proj", (2, 8)), **lora("lm_head")}
    base = {"h.0.attn.c_proj.weight": (8, 8), "wte.weight": (8, 6)}
    done = plan(stored, base, base_config={"model_type": "gpt2"})
    assert {name: [add.kind for add in change.adds] for name, change in done.items()} == {
        "h.0.attn.c_proj.weight": ["conv1d"],
        "wte.weight": ["linear"],
    }


def test_a_head_that_comes_with_the_task_is_added() -> None:
    done = plan({"base_model.model.score.weight": (3, 6)}, {f"{Q}.weight": (8, 6)}, modules_to_save=["score"])
    assert done == {"score.weight": TensorChange((3, 6), stored="base_model.model.score.weight", copy=True)}


words = st.text("abz", min_size=1, max_size=3)
names = st.lists(st.one_of(words, st.integers(0, 3).map(str)), min_size=1, max_size=5).map(".".join)


@given(names, st.sets(names, max_size=8))
def test_what_matches_by_suffix_differs_by_a_prefix_without_a_number(name: str, others: set[str]) -> None:
    found = suffix_matches(name, sorted(others))
    assert set(found) <= others
    if name in others:
        assert found == [name]
        return
    expected = set()
    for other in others:
        ours, theirs = name.split("."), other.split(".")
        shared = min(len(ours), len(theirs))
        extra = (ours if len(ours) > shared else theirs)[:-shared]
        if ours[-shared:] == theirs[-shared:] and extra and not any(part.isdigit() for part in extra):
            expected.add(other)
    assert set(found) == expected and len(found) == len(expected)
