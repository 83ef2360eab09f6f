"""Parse an adapter_config.json, and refuse the settings that cannot be merged exactly. Reads no file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..read.tensors import ModelError

# Fields of a LoRA configuration that change no number of a merge: they are names, or they steer training.
_HARMLESS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "inference_mode"}
    | {"layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core"}
    | {"peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type"}
)
# Fields that are read below. peft ignores fan_in_fan_out too: the kind of the module decides.
_READ = frozenset(
    {"alpha_pattern", "bias", "fan_in_fan_out", "init_lora_weights", "lora_alpha", "modules_to_save", "r"}
    | {"rank_pattern", "use_dora", "use_rslora"}
)
# Fields that mean another computation, with the reason. Any other field that is set is refused too.
_REFUSED = {
    "alora_invocation_tokens": "it acts only after certain tokens, so that no merged weight exists",
    "arrow_config": "it routes between adapters, so that no merged weight exists",
    "ensure_weight_tying": "it ties the adapters of embedding and head",
    "kasa_config": "it truncates the weights of the base",
    "layer_replication": "it repeats layers of the base",
    "lora_bias": "it adds to biases",
    "megatron_config": "it belongs to layers that are split over devices",
    "monteclora_config": "it samples",
    "target_parameters": "it reaches into stacked parameters such as experts",
    "trainable_token_indices": "it replaces rows of the embedding",
    "use_bdlora": "its matrices are block-diagonal",
    "use_qalora": "it belongs to a quantised base",
    "velora_config": "it compresses activations",
}
# Initialisations that leave the base as it is; the others change it first.
_INERT_STARTS = (None, True, False, "gaussian", "eva", "orthogonal", "true", "false")

_LONGEST_PATTERN = 300
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]")  # may take exponential time to match


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The settings of one LoRA adapter. Patterns are tried in their order; the first match counts."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    ranks: tuple[tuple[re.Pattern[str], int], ...]
    alphas: tuple[tuple[re.Pattern[str], float], ...]
    saved: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.ranks if pattern.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """Return α/r of the module with this path, or α/√r with rsLoRA (Kalajdzievski 2023)."""
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.match(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def saves(self, module: str) -> bool:
        """Return True if this module, or a module around it, is stored whole beside the deltas."""
        parts = module.split(".")
        paths = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return any(path.endswith(name) for path in paths for name in self.saved)


def _obstacle(config: Mapping[str, Any]) -> str:
    """Return the setting that means another computation than LoRA, with the reason; "" if there is none."""
    kind = config.get("peft_type")
    if kind != "LORA":
        return f"peft_type is {_short(kind)}; only LORA is merged, so analyse the base, or a merged copy"
    for field, value in config.items():
        if field in _HARMLESS or field in _READ or value in (None, False, "", [], {}):
            continue
        why = _REFUSED.get(field, "its effect on the weights is not known")
        return f"{field} is set ({_short(value)}); {why}, so it is not merged"
    start = config.get("init_lora_weights")
    if start not in _INERT_STARTS or type(start) is int:
        return (
            f"init_lora_weights is {_short(start)}; its start changes the base too, so it is not merged "
            "(save it converted to plain LoRA)"
        )
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        return f"bias is {_short(config['bias'])}, which is not known"
    return ""


def parse_adapter_config(config: Mapping[str, Any], label: str) -> AdapterConfig:
    """Return the settings of an adapter. Raises ModelError, stage merge, with the field that prevents a merge."""

    def refuse(reason: str) -> ModelError:
        return ModelError("merge", f"adapter {label}: {reason}")

    def positive(value: object, field: str) -> int:
        if type(value) is not int or not 0 < value < 1 << 20:
            raise refuse(f"{field} is {_short(value)}, not a rank")
        return value

    def number(value: object, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise refuse(f"{field} is {_short(value)}, not a number")
        return value

    def table(field: str) -> list[tuple[re.Pattern[str], Any]]:
        pairs = config.get(field) or {}
        if not isinstance(pairs, Mapping):
            raise refuse(f"{field} is {_short(pairs)}, not a map")
        patterns = []
        for key, value in pairs.items():
            if len(key) > _LONGEST_PATTERN or _NESTED_REPEAT.search(key):
                raise refuse(f"the pattern {_short(key)} in {field} is too intricate to be matched safely")
            try:
                patterns.append((re.compile(rf"(.*\.)?({key})$"), value))
            except (re.error, RecursionError, OverflowError):
                raise refuse(f"the pattern {_short(key)} in {field} is no regular expression") from None
        return patterns

    if reason := _obstacle(config):
        raise refuse(reason)
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) and name for name in saved):
        raise refuse(f"modules_to_save is {_short(saved)}, not a list of names")
    return AdapterConfig(
        rank=positive(config.get("r", 8), "r"),
        alpha=number(config.get("lora_alpha", 8), "lora_alpha"),
        rslora=config.get("use_rslora") is True,
        dora=config.get("use_dora") is True,
        ranks=tuple((pattern, positive(rank, "rank_pattern")) for pattern, rank in table("rank_pattern")),
        alphas=tuple((pattern, number(alpha, "alpha_pattern")) for pattern, alpha in table("alpha_pattern")),
        saved=tuple(saved),
    )


def _short(value: object) -> str:
    return repr(value)[:60]
