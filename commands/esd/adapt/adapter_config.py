"""Parse an adapter_config.json, and refuse the settings that cannot be merged exactly. Reads no file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..read.tensors import ModelError

T = TypeVar("T")

Rank = Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)]
Factor = Annotated[float, msgspec.Meta(gt=-1e30, lt=1e30)]  # a finite number

# Fields of a LoRA configuration that change no number of a merge: they are names, they steer training, or peft ignores
# them too. Any other field that is set, and is none of AdapterConfig, may mean another computation.
_HARMLESS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out"}
    | {"inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config"}
    | {"megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config"}
    | {"target_modules", "task_type"}
)
_UNSET: tuple[Any, ...] = (None, False, "", [], {})
_LONGEST_PATTERN = 300
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]")  # may take exponential time to match


class AdapterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one LoRA adapter, by peft's names. Patterns are tried in their order; the first match counts."""

    peft_type: Literal["LORA"]
    r: Rank = 8
    lora_alpha: Factor = 8
    use_rslora: bool | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Factor] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    # Other initialisations change the base at the start.
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal", "true", "false"] | None = None

    def rank_of(self, module: str) -> int:
        return _first_match(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """Return α/r of the module with this path, or α/√r with rsLoRA (Kalajdzievski 2023)."""
        alpha = _first_match(self.alpha_pattern, module, self.lora_alpha)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank


def parse_adapter_config(config: Mapping[str, Any], label: str) -> AdapterConfig:
    """Return the settings of an adapter. Raises ModelError, stage merge, with the field that prevents a merge."""
    known = AdapterConfig.__struct_fields__
    fields = {
        name: value
        for name, value in config.items()
        if name in known or (name not in _HARMLESS and value not in _UNSET)
    }
    try:
        settings = msgspec.convert(fields, AdapterConfig)
        for pattern in (*(settings.rank_pattern or {}), *(settings.alpha_pattern or {})):
            _check_pattern(pattern)
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        raise ModelError(
            "merge",
            f"adapter {label}: its settings are not those of plain LoRA: {error}; merge it with the software that "
            "made it, and analyse the merged copy",
        ) from None
    return settings


def _check_pattern(pattern: str) -> None:
    """Raise ValueError or an error of `re` for what is no regular expression, or may take exponential time to match."""
    if len(pattern) > _LONGEST_PATTERN or _NESTED_REPEAT.search(pattern):
        raise ValueError(f"the pattern {pattern[:60]!r} cannot be matched safely")
    re.compile(pattern)


def _first_match(patterns: Mapping[str, T] | None, module: str, default: T) -> T:
    matches = (value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(matches, default)
