"""The options of the verbs that have GPUs for a person: which GPUs, and how long to wait for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import click

from gpusched.cli.options import F, settings_options, value_option
from gpusched.common.quantities import parse_size
from gpusched.config.settings import SETTINGS

_SETTINGS = (
    *("gpu_list", "idle_action", "grace", "max_checks", "poll_interval", "gpu_mem_threshold"),
    *("free_when", "allow_unreadable_memory", "visible_devices", "simulate", "claims_dir"),
)


def gpu_options(idle_help: str, idle_default: str) -> Callable[[F], F]:
    """Give a command the GPUs that are wanted as the argument `wish`, and the finished settings as `loaded`.

    `idle_help` says what --idle-timeout does there.
    """
    idle = SETTINGS["idle_timeout"]._replace(help=idle_help, shown_default=idle_default, is_rare=False)

    def decorate(callback: F) -> F:
        @click.option("--gpus", metavar="N", type=click.IntRange(1), default=1, help="Have N GPUs.  [default: 1]")
        @value_option("--mem", "mem", "Choose GPUs with this much memory free: 18G.", parse_size, "size")
        @value_option("--wait", "wait_s", "Give up after this time without a GPU: exit code 75.")
        @settings_options(*_SETTINGS, idle)
        @functools.wraps(callback)
        def wrapper(gpus: int, mem: int | None, wait_s: float | None, **more: Any) -> Any:
            from gpusched.operations.interactive.claim import GpuWish

            return callback(wish=GpuWish(gpus, mem or 0, wait_s), **more)

        return cast(F, wrapper)

    return decorate
