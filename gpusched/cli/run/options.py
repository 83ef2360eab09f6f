"""The options that `run`, `shard` and `esd` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar, cast

import click

from gpusched.cli.options import settings_options
from gpusched.config.layers import LoadedSettings
from gpusched.config.run_settings import RUN_SETTINGS

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a start, beside those of its verb."""

    loaded: LoadedSettings
    retry_failed: bool = False
    dry_run: bool = False
    as_json: bool = False
    verbose: bool = False
    quiet: bool = False


def run_options(callback: F) -> F:
    """Give a command these options; the callback gets them as the argument `options`."""

    @settings_options(*RUN_SETTINGS)
    @click.option("--retry-failed", is_flag=True, help="Queue the failed jobs of this list again.")
    @click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
    @click.option("--json", "as_json", is_flag=True, help="Print the summary (or the dry run) as JSON.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every hint, and log more.")
    @click.option("-q", "--quiet", is_flag=True, help="Print only what asks for action, and the summary.")
    @functools.wraps(callback)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        options = RunOptions(**{field.name: kwargs.pop(field.name) for field in fields(RunOptions)})
        return callback(*args, options=options, **kwargs)

    return cast(F, wrapper)
