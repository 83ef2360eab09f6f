"""The library's public face. Prints nothing.

from gpusched import api

print(api.dry_run("commands.txt", max_gpus=2).reasons)
exit_code = api.run("commands.txt", max_gpus=2)
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import TYPE_CHECKING

from gpusched.config.layers import load
from gpusched.dispatcher import Observer
from gpusched.lists.submit import read_source
from gpusched.operations import dry_run as dry_runs
from gpusched.operations.devices import BoxDevices as BoxDevices
from gpusched.operations.devices import open_devices as open_devices
from gpusched.operations.run import Queue as Queue
from gpusched.operations.run import RunSession, run_jobs
from gpusched.operations.submit import read_jobs

if TYPE_CHECKING:
    from gpusched.esd.config import EsdConfig as EsdConfig
    from gpusched.esd.experiment import EsdExperiment as EsdExperiment
    from gpusched.shards.merge_options import MergeOptions as MergeOptions
    from gpusched.shards.plan import SplitOptions as SplitOptions
    from gpusched.shards.request import ShardRequest as ShardRequest
    from gpusched.shards.split import shard_range as shard_range
    from gpusched.shards.split import split_range as split_range
    from gpusched.shards.start import run_shards as run_shards

_FEATURES = {
    "EsdConfig": "gpusched.esd.config",
    "EsdExperiment": "gpusched.esd.experiment",
    "MergeOptions": "gpusched.shards.merge_options",
    "ShardRequest": "gpusched.shards.request",
    "SplitOptions": "gpusched.shards.plan",
    "run_shards": "gpusched.shards.start",
    "shard_range": "gpusched.shards.split",
    "split_range": "gpusched.shards.split",
}


def run(
    path: str,
    *,
    force: bool = False,
    retry_failed: bool = False,
    observer: Observer | None = None,
    **settings: object,
) -> int:
    """Run the jobs of a file until all have ended, as `gpusched run` does, and return the exit code.

    `settings` are those of `gpusched config`, such as max_gpus=2. Raises GpuschedError where the verb would refuse.
    """
    source = read_source(path)
    queue_dir, options, jobs = read_jobs(source, load(settings), force=force, retry_failed=retry_failed)
    with open_devices(options.settings, options.gpus_wanted(jobs.specs)) as devices:
        devices.check(jobs, options, queue_dir)
        return run_jobs(path, jobs, options, devices, session=RunSession(watch=lambda queue: nullcontext(observer)))


def dry_run(path: str, *, force: bool = False, retry_failed: bool = False, **settings: object) -> dry_runs.DryRun:
    """Return the effect that `run` would have with the same arguments. Changes nothing."""
    source = read_source(path)
    queue_dir, options, jobs = read_jobs(source, load(settings), force=force, retry_failed=retry_failed)
    return dry_runs.dry_run(queue_dir, jobs, options)


def __getattr__(name: str) -> object:
    """Import a name of a feature when it is first used."""
    if name in _FEATURES:
        return getattr(importlib.import_module(_FEATURES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
