"""The tunings that a YAML file describes: of its one pool, or of each one below `pools:`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import nearest
from gpusched.common.text import clean
from gpusched.pool.config import BLOCK, POOLS, read_config
from gpusched.pool.tuner.options import TuneOptions


def tunings(options: TuneOptions) -> list[TuneOptions]:
    """Return what is to be tuned: what the command line leaves out comes from the file that gets the result.

    With several pools there, all of them, or the one that `script` names. Raises GpuschedError for a name that the file
    does not have, and for a worker that could be any of several.
    """
    document = read_config(options.path) if os.path.exists(options.path) else {}
    pools = document.get(POOLS) or {}
    if not options.script:
        if pools and (options.worker or options.command):
            raise GpuschedError(
                "describes several pools", where=clean(options.path), hint=f"--script {next(iter(pools))}"
            )
        if not pools:
            return [_completed(options, document)]
    elif options.script not in pools and document:
        close = nearest(options.script, pools)
        hint = f"did you mean {close!r}?" if close else f"it has {', '.join(pools) or 'none'}"
        raise GpuschedError(f"has no pool {clean(options.script)!r}", where=clean(options.path), hint=hint)
    names = [options.script] if options.script else pools
    return [_completed(replace(options, script=name), pools.get(name) or {}) for name in names]


def _completed(options: TuneOptions, pool: Mapping[str, Any]) -> TuneOptions:
    """Return the options with those of a pool in the file, where the command line states none."""
    block = pool.get(BLOCK) or {}
    own = {name: pool[name] for name in ("worker", "command", "items") if pool.get(name)}
    if options.worker or options.command:
        own.pop("worker", None), own.pop("command", None)
    if cpu_workers := block.get("cpu_workers"):
        own["cpu_workers"] = cpu_workers
    own["set"] = tuple(f"{name}={value}" for name, value in (pool.get("settings") or {}).items())
    own["output_dir"] = pool.get("output_dir", "")
    return replace(options, **{name: value for name, value in own.items() if not getattr(options, name)})
