"""The options of the verbs that have GPUs for a person: which GPUs, and how long to wait for them."""

from __future__ import annotations

import functools
from typing import Any, cast

import click

from gpusched.cli.options import F, settings_options, value_option
from gpusched.common.quantities import parse_size

_SETTINGS = (
    *("gpu_list", "idle_timeout", "idle_action", "grace", "max_checks", "poll_interval", "gpu_mem_threshold"),
    *("free_when", "allow_unreadable_memory", "visible_devices", "simulate", "claims_dir"),
)


def gpu_options(callback: F) -> F:
    """Give a command the GPUs that are wanted as the argument `wish`, and the finished settings as `loaded`."""

    @click.option("--gpus", metavar="N", type=click.IntRange(1), default=1, help="Have N GPUs.  [default: 1]")
    @value_option("--mem", "mem", "Choose GPUs with this much memory free: 18G.", parse_size, "size")
    @value_option("--wait", "wait_s", "Give up after this time without a GPU: exit code 75.")
    @settings_options(*_SETTINGS, show_rare=("idle_timeout",))
    @functools.wraps(callback)
    def wrapper(gpus: int, mem: int | None, wait_s: float | None, **more: Any) -> Any:
        from gpusched.operations.interactive.claim import GpuWish

        return callback(wish=GpuWish(gpus, mem or 0, wait_s), **more)

    return cast(F, wrapper)
