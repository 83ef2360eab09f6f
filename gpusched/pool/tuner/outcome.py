"""The result of a tuning, and the YAML file that gets it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.files import write_atomically
from gpusched.config.settings import Settings
from gpusched.pool.config import POOLS
from gpusched.pool.estimate import TimeEstimate, estimate_time
from gpusched.pool.tuner.options import TuneOptions
from gpusched.pool.tuner.record import TunePlan
from gpusched.pool.tuner.search import SearchResult, TrialSetting
from gpusched.pool.tuner.settings_block import replace_block


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The result of a tuning. `times`: how long the data set takes, by the number of GPUs; 0 GPUs: on the CPU."""

    result: SearchResult
    plan: TunePlan
    items: int  # of the data set
    measured_items: int
    times: dict[int, TimeEstimate]
    kept_keys: Sequence[str] = ()  # of the file, whose values refer to other places


def make_report(result: SearchResult, options: TuneOptions, plan: TunePlan, *, items: int, gpus: int) -> TuneReport:
    """Return the report of a search over a list of `items`, for a pool on `gpus` GPUs."""
    items = options.dataset_size or items
    setting = result.best
    if setting is None:
        return TuneReport(result, plan, items, 0, {})
    seconds = [each / setting.batch_size for trial in result.best_trials for each in trial.batch_seconds]
    times = {}
    for count in (0,) if options.cpu_workers else sorted({1, gpus}):
        at_once = setting.workers * setting.threads * max(1, count)
        estimate = estimate_time(seconds, items, at_once, items_each=setting.batch_size)
        if estimate is not None:
            times[count] = estimate
    return TuneReport(result, plan, items, len(seconds) * setting.batch_size, times)


def write_file(report: TuneReport, options: TuneOptions, settings: Settings) -> Sequence[str]:
    """Write the block of the YAML file, and return the keys that were left alone. Raises GpuschedError."""
    path = options.path
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        text = _new_file(options)
    except (OSError, ValueError) as error:
        raise GpuschedError(f"cannot be read: {error}", where=path) from None
    best = report.result.best
    assert best is not None
    trials = f"{len(report.result.trials)} trials of at least {options.trial_items} items"
    measured = f"{time.strftime('%Y-%m-%d')} on {socket.gethostname()} ({report.plan.device}) by {trials}"
    try:
        text, kept = replace_block(
            text, (POOLS, options.script) if options.script else (), _values(best, options, settings), measured
        )
    except GpuschedError as error:
        raise GpuschedError(error.what, where=path, hint=error.hint) from None
    write_atomically(path, text.encode(), mode=0o666)
    return kept


def _new_file(options: TuneOptions) -> str:
    """Return the text of a new file, which runs alone once it has its block."""
    worker = {"command": options.command} if options.command else {"worker": options.worker}
    items = os.path.abspath(os.path.expanduser(options.items))
    keys = {**worker, "items": items, "output_dir": options.for_pool.output_dir}
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in keys.items()]  # text in JSON is text in YAML
    if options.script:
        lines = [f"{POOLS}:\n", f"  {json.dumps(options.script)}:\n", *(f"    {line}" for line in lines)]
    return "".join(lines)


def _values(best: TrialSetting, options: TuneOptions, settings: Settings) -> dict[str, Any]:
    pool = options.for_pool
    per_gpu = {"max_workers_per_gpu": best.workers, "gpu_strategy": settings.gpu_strategy}
    return {
        "use_adaptive_workers": True,
        **({"cpu_workers": best.workers} if options.cpu_workers else per_gpu),
        "batch_size": best.batch_size,
        "threads": best.threads,
        "safety_factor": settings.safety_factor,
        "save_checkpoint_every": pool.checkpoint_every,
        "checkpoint_dir": f"{pool.output_dir}/results",
        "log_errors": pool.log_errors,
        "error_log_dir": pool.output_dir,
        "wandb": {"enabled": bool(options.wandb), "project": options.wandb or None},
    }
