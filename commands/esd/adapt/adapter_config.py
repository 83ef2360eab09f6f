"""What an adapter_config.json says, as far as a merge needs it; what cannot be merged exactly is refused here.

Reads no file and no tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..read.tensors import ModelError

# The fields of a LoRA configuration that change no number of a merge: they name, or they steer training.
_HARMLESS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "inference_mode"}
    | {"layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core"}
    | {"peft_type", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules", "task_type"}
)
# Those that are read below. That of orientation is not obeyed by peft either: the kind of the module decides.
_READ = frozenset(
    {"alpha_pattern", "bias", "fan_in_fan_out", "init_lora_weights", "lora_alpha", "modules_to_save", "r"}
    | {"rank_pattern", "use_dora", "use_rslora"}
)
# What is known to be another computation, and what can be said of it. Any other field that is set is refused too.
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
# Ways to start that leave the base as it is; the others take something out of it first.
_INERT_STARTS = (None, True, False, "gaussian", "eva", "orthogonal", "true", "false")

_LONGEST_PATTERN = 300
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]")  # what may take exponential time to match


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """One LoRA adapter's settings. Patterns are tried in their order."""

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    ranks: tuple[tuple[re.Pattern[str], int], ...]
    alphas: tuple[tuple[re.Pattern[str], float], ...]
    saved: tuple[str, ...]
    base: str
    revision: str

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.ranks if pattern.match(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """α/r, or α/√r with rsLoRA (Kalajdzievski 2023), of the module with this path."""
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.match(module)), self.alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def saves(self, module: str) -> bool:
        """Is this module, or one that it is part of, stored whole beside the deltas?"""
        parts = module.split(".")
        paths = [".".join(parts[: n + 1]) for n in range(len(parts))]
        return any(path.endswith(name) for path in paths for name in self.saved)


def parse_adapter_config(config: Mapping[str, Any], label: str) -> AdapterConfig:
    """Raises ModelError, stage merge, for what cannot be merged, naming the field."""

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
        found = []
        for key, value in pairs.items():
            if len(key) > _LONGEST_PATTERN or _NESTED_REPEAT.search(key):
                raise refuse(f"the pattern {_short(key)} in {field} is too intricate to be matched safely")
            try:
                found.append((re.compile(rf"(.*\.)?({key})$"), value))
            except (re.error, RecursionError, OverflowError):
                raise refuse(f"the pattern {_short(key)} in {field} is no regular expression") from None
        return found

    kind = config.get("peft_type")
    if kind != "LORA":
        raise refuse(f"peft_type is {_short(kind)}; only LORA is merged, so analyse the base, or a merged copy")
    for field, value in config.items():
        if field in _HARMLESS or field in _READ or value in (None, False, "", [], {}):
            continue
        why = _REFUSED.get(field, "its effect on the weights is not known")
        raise refuse(f"{field} is set ({_short(value)}); {why}, so it is not merged")
    start = config.get("init_lora_weights")
    if start not in _INERT_STARTS or type(start) is int:
        raise refuse(
            f"init_lora_weights is {_short(start)}; its start changes the base too, so it is not merged "
            "(save it converted to plain LoRA)"
        )
    if config.get("bias", "none") not in ("none", "all", "lora_only"):
        raise refuse(f"bias is {_short(config['bias'])}, which is not known")
    saved = config.get("modules_to_save") or []
    if not isinstance(saved, list) or not all(isinstance(name, str) and name for name in saved):
        raise refuse(f"modules_to_save is {_short(saved)}, not a list of names")
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    return AdapterConfig(
        rank=positive(config.get("r", 8), "r"),
        alpha=number(config.get("lora_alpha", 8), "lora_alpha"),
        rslora=config.get("use_rslora") is True,
        dora=config.get("use_dora") is True,
        ranks=tuple((pattern, positive(rank, "rank_pattern")) for pattern, rank in table("rank_pattern")),
        alphas=tuple((pattern, number(alpha, "alpha_pattern")) for pattern, alpha in table("alpha_pattern")),
        saved=tuple(saved),
        base=base if isinstance(base, str) else "",
        revision=revision if isinstance(revision, str) else "",
    )


def _short(value: object) -> str:
    return repr(value)[:60]
