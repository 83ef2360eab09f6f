"""Parse an adapter_config.json, and refuse the settings that cannot be merged exactly. Reads no file."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ..read.tensors import MERGE_FIRST, ModelError

T = TypeVar("T")

Rank = Annotated[int, msgspec.Meta(gt=0, lt=1 << 20)]
Factor = Annotated[float, msgspec.Meta(gt=-1e30, lt=1e30)]  # a finite number
Name = Annotated[str, msgspec.Meta(min_length=1)]

# Fields of a LoRA configuration that change no number of a merge: they are names, they steer training, or peft ignores
# them too. Any other field that is set, and is none of AdapterConfig, may mean another computation.
_HARMLESS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "exclude_modules", "fan_in_fan_out"}
    | {"inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config"}
    | {"megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "target_modules"}
    | {"task_type"}
)
# Of each method the fields of AdapterConfig that change its numbers, and further ones that do not.
_FACTORS = frozenset({"r", "alpha", "rank_pattern", "alpha_pattern"})
_FIELDS = {
    "ADALORA": frozenset({"init_r", "lora_alpha", "init_lora_weights", "bias"}),
    "LOHA": _FACTORS,
    "LOKR": _FACTORS,
    "IA3": frozenset[str](),
}
_HARMLESS_OF = {
    # The file holds the ranks that the pattern of AdaLoRA has left.
    "ADALORA": {"r", "target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step"}
    | {"rank_pattern"},
    "LOHA": {"rank_dropout", "module_dropout", "init_weights", "use_effective_conv2d"},
    "LOKR": {"rank_dropout", "module_dropout", "init_weights", "use_effective_conv2d", "decompose_both"}
    | {"decompose_factor", "rank_dropout_scale"},
    "IA3": {"feedforward_modules", "init_ia3_weights"},
}
_OF_ALL = frozenset({"peft_type", "modules_to_save"})
_UNSET: tuple[Any, ...] = (None, False, "", [], {})
_LONGEST_PATTERN = 300
_NESTED_REPEAT = re.compile(r"[*+}][^()]*\)[*+{]")  # may take exponential time to match


class AdapterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one adapter, by peft's names. Patterns are tried in their order; the first match counts."""

    peft_type: Literal["LORA", "ADALORA", "LOHA", "LOKR", "IA3"]
    r: Rank = 8
    init_r: Rank = 12  # of AdaLoRA
    lora_alpha: Factor = 8
    alpha: Factor = 8  # of LoHa and LoKr
    use_rslora: bool | None = None
    use_dora: bool | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, Factor] | None = None
    modules_to_save: list[Name] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    # Other initialisations change the base at the start.
    init_lora_weights: bool | Literal["gaussian", "eva", "orthogonal", "true", "false"] | None = None

    def rank_of(self, module: str) -> int:
        """Return the rank of the module with this path; of AdaLoRA, that before it cut any."""
        if self.peft_type == "ADALORA":
            return self.init_r
        return _first_match(self.rank_pattern, module, self.r)

    def scale_of(self, module: str) -> float:
        """Return α/r of the module with this path, or α/√r with rsLoRA (Kalajdzievski 2023); of AdaLoRA, α."""
        if self.peft_type == "ADALORA":
            return self.lora_alpha
        usual = self.lora_alpha if self.peft_type == "LORA" else self.alpha
        alpha = _first_match(self.alpha_pattern, module, usual)
        rank = self.rank_of(module)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def saves(self, module: str) -> bool:
        """Return True if this module, or a module around it, is stored whole beside the deltas."""
        ends = tuple(self.modules_to_save or ())
        parts = module.split(".")
        return any(".".join(parts[: n + 1]).endswith(ends) for n in range(len(parts)))


def parse_adapter_config(config: Mapping[str, Any], label: str) -> AdapterConfig:
    """Return the settings of an adapter. Raises ModelError, stage merge, with the field that prevents a merge."""
    method = str(config.get("peft_type"))
    own = frozenset(AdapterConfig.__struct_fields__) - {"init_r", "alpha"}
    known = _FIELDS.get(method, own) | _OF_ALL
    harmless = _HARMLESS | _HARMLESS_OF.get(method, frozenset())
    fields = {
        name: value for name, value in config.items() if name in known or (name not in harmless and value not in _UNSET)
    }
    try:
        if strange := sorted(fields.keys() & set(AdapterConfig.__struct_fields__) - known):
            raise ValueError(f"{strange[0]} is set, which means nothing to {method}")
        settings = msgspec.convert(fields, AdapterConfig)
        for pattern in (*(settings.rank_pattern or {}), *(settings.alpha_pattern or {})):
            _check_pattern(pattern)
    except ValueError as error:
        problem = f"adapter {label}: its settings cannot be merged exactly: {error}"
        raise ModelError("merge", f"{problem}; {MERGE_FIRST}") from None
    return settings


def _check_pattern(pattern: str) -> None:
    """Raise ValueError for what is no regular expression, or may take exponential time to match."""
    problem = f"the pattern {pattern[:60]!r} cannot be matched safely"
    if len(pattern) > _LONGEST_PATTERN or _NESTED_REPEAT.search(pattern):
        raise ValueError(problem)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise ValueError(problem) from None


def _first_match(patterns: Mapping[str, T] | None, module: str, default: T) -> T:
    matches = (value for key, value in (patterns or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(matches, default)
