"""The options that `run`, `shard` and `esd` share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import click

from gpusched.cli.options import F, say, settings_options
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import RUN_SETTINGS


class RunOptions(NamedTuple):
    """The options of a start, beside those of its verb."""

    loaded: LoadedSettings
    retry_failed: bool = False
    dry_run: bool = False
    as_json: bool = False
    verbose: bool = False
    quiet: bool = False

    @property
    def notify(self) -> Callable[[str], None]:
        from gpusched.operations.queues import ignore

        return ignore if self.quiet else say

    @property
    def accepting(self) -> dict[str, Any]:
        """The arguments with which findings about the jobs of a start are told."""
        return {"verbose": self.verbose, "quiet": self.quiet or self.as_json}


def run_options(callback: F) -> F:
    """Give a command these options; the callback gets them as the argument `options`."""

    @_queue_as_log_dir
    @settings_options(*RUN_SETTINGS)
    @click.option("--retry-failed", is_flag=True, help="Queue the failed jobs of this list again.")
    @click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
    @click.option("--json", "as_json", is_flag=True, help="Print the summary (or the dry run) as JSON.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every hint, and log more.")
    @click.option("--quiet", is_flag=True, help="Print only what asks for action and what was done.")
    @functools.wraps(callback)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        options = RunOptions(**{name: kwargs.pop(name) for name in RunOptions._fields})
        return callback(*args, options=options, **kwargs)

    return cast(F, wrapper)


def _queue_as_log_dir(callback: F) -> F:
    """Give a command -q; the callback gets the directory that it means as the flag of the setting log_dir."""

    @click.option("-q", "--queue", metavar="NAME", help="Call the queue NAME: --log-dir gpusched-runs/NAME.")
    @functools.wraps(callback)
    def wrapper(*args: Any, queue: str | None, log_dir: str | None, **kwargs: Any) -> Any:
        if queue is not None:
            from gpusched.operations.queues import new_queue_path

            if log_dir is not None:
                raise click.UsageError("Either -q NAME or --log-dir DIR, not both.")
            log_dir = new_queue_path(queue)
        return callback(*args, log_dir=log_dir, **kwargs)

    return cast(F, wrapper)
