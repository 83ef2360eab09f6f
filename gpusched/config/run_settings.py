"""The settings of the verbs that run jobs (`run`, `shard`, `esd`, `pool`), and the defaults of only one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS

RUN_SETTINGS = tuple(name for name, setting in SETTINGS.items() if setting.group)

# By verb: values of settings that no layer sets.
VERB_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "pool": {"gpu_strategy": "round-robin", "max_quick_fails": 0, "mem": "auto"},
    "shard": {"split_streams": True, "on_dep_fail": "hold"},
}


def with_defaults(loaded: LoadedSettings, verb: str) -> LoadedSettings:
    """Return the settings with the defaults of this verb."""
    own = {name: value for name, value in VERB_DEFAULTS.get(verb, {}).items() if loaded.origins[name] == "default"}
    return loaded._replace(settings=replace(loaded.settings, **own))
