"""The tunings that a YAML file describes: of its one pool, or of each one below `pools:`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.text import clean
from gpusched.pool.config import BLOCK, choose_pools
from gpusched.pool.tuner.options import TuneOptions


def tunings(options: TuneOptions) -> list[TuneOptions]:
    """Return what is to be tuned: what the command line leaves out comes from the file that gets the result.

    With several pools there, all of them, or the one that `script` names. Raises GpuschedError for a name that the file
    does not have, and for a worker that could be any of several.
    """
    if not os.path.exists(options.path):
        return [options]
    pools = choose_pools(options.path, [options.script] if options.script else [])
    if any(pools) and not options.script and (options.worker or options.command):
        raise GpuschedError("describes several pools", where=clean(options.path), hint=f"--script {next(iter(pools))}")
    return [_completed(replace(options, script=name), pool) for name, pool in pools.items()]


def _completed(options: TuneOptions, pool: Mapping[str, Any]) -> TuneOptions:
    """Return the options with those of a pool in the file, where the command line states none."""
    names = (
        ("items", "output_dir") if options.worker or options.command else ("worker", "command", "items", "output_dir")
    )
    own = {name: pool[name] for name in names if pool.get(name)}
    own["cpu_workers"] = pool[BLOCK].get("cpu_workers", "")
    own["set"] = tuple(f"{name}={value}" for name, value in (pool.get("settings") or {}).items())
    return replace(options, **{name: value for name, value in own.items() if not getattr(options, name)})
