"""The settings of the verbs that run jobs (`run`, `shard`, `esd`), and the defaults that only one of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusched.config.layers import LoadedSettings

RUN_SETTINGS = (
    "max_gpus",
    "gpu_list",
    "gpu_mem_threshold",
    "max_checks",
    "poll_interval",
    "free_when",
    "gpus_per_job",
    "cpu_jobs",
    "time_limit",
    "retries",
    "grace",
    "log_dir",
    "visible_devices",
    "setup",
    "shell",
    "leftovers",
    "max_jobs_per_gpu",
    "gpu_strategy",
    "max_bypass",
    "tag_max_gpus",
    "max_fails",
    "on_dep_fail",
    "idle_timeout",
    "idle_action",
    "snapshot",
    "split_streams",
    "allow_unreadable_memory",
    "strip_gpu_env",
    "simulate",
)

# By verb: values of settings that no layer sets.
VERB_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "shard": {"split_streams": True, "on_dep_fail": "hold"},
}


def with_defaults(loaded: LoadedSettings, verb: str) -> LoadedSettings:
    """Return the settings with the defaults of this verb."""
    own = {name: value for name, value in VERB_DEFAULTS.get(verb, {}).items() if loaded.origins[name] == "default"}
    return replace(loaded, settings=replace(loaded.settings, **own))
