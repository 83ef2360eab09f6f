"""The trials of a tuning and what they say, as lines for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpusched.common.quantities import format_size
from gpusched.pool.estimate import TimeEstimate
from gpusched.pool.tuner.outcome import TuneReport
from gpusched.pool.tuner.record import TunePlan
from gpusched.pool.tuner.search import SearchSpace, Trial, TrialSetting
from gpusched.views.tables import Line, grid, line
from gpusched.views.words import clock, count, span

MEMORY_SOURCES = {"process": "as the driver tells it", "report": "by its own report"}
_HEAD = ["batch size", "workers", "threads", "items/s", "±", "memory", "outcome"]


def trials_table(trials: Sequence[Trial], best: TrialSetting | None) -> list[Line]:
    """Lay out the trials in the order in which they were made."""
    rows = [
        [
            str(trial.setting.batch_size),
            str(trial.setting.workers),
            str(trial.setting.threads),
            f"{trial.items_per_s:.4g}" if trial.items_per_s else "",
            f"{trial.error:.1%}" if trial.items_per_s else "",
            format_size(trial.peak_bytes) if trial.peak_bytes else "",
            _verdict(trial, best),
        ]
        for trial in trials
    ]
    return grid(_HEAD, rows, right="batch size workers threads items/s ± memory")


def _verdict(trial: Trial, best: TrialSetting | None) -> str | tuple[str, str]:
    if trial.setting == best:
        return "best", "green"
    return "again" * trial.setting.is_again if trial.fits else trial.outcome.value


def report_lines(report: TuneReport, path: str) -> list[Line]:
    """Return the table, the times of the data set, and what was written."""
    best = report.result.best
    lines = [*trials_table(report.result.trials, best), line(""), *_left_out(report.plan.space)]
    if best is None:
        least = min(trial.setting.batch_size for trial in report.result.trials)
        return [*lines, line(f"nothing fits: batch size {least} has run out of memory too")]
    for gpus, estimate in report.times.items():
        where = f"on {count(gpus, 'GPU')}" if gpus else "on the CPU"
        lines.append(line(f"{report.items} items take {time_text(estimate)} {where}"))
    if report.times:
        size, more = best.batch_size, next(iter(report.times.values())).items_to_halve
        measured = f"{report.measured_items // size} {f'batches of {size} items' if size > 1 else 'items'}"
        again = ", some more than once" if report.items < report.measured_items else ""
        lines.append(line(f"measured over {measured}{again}; {more // size} more would halve the interval"))
    if sources := {trial.memory_by for trial in report.result.trials if trial.memory_by}:
        lines.append(line(f"memory of a worker: {' and '.join(MEMORY_SOURCES[each] for each in sorted(sources))}"))
    if report.kept_keys:
        lines.append(line(f"left as they are, since they refer to other places: {', '.join(report.kept_keys)}"))
    return [*lines, line(f"{path}: {best}; go on with `gpusched pool --config {path}`")]


def _left_out(space: SearchSpace) -> list[Line]:
    """Return which batch sizes are not tried since nothing would fill them, if there are any."""
    if not space.left_out:
        return []
    sizes = ", ".join(map(str, space.left_out))
    why = f"above {space.largest_batch_size}, which is --max-batch-size or all items that a device would get"
    return [line(f"not tried: batch size {sizes}, {why}"), line("--dataset-size N says that there will be more items")]


def time_text(estimate: TimeEstimate) -> str:
    """Return a time with its interval."""
    return f"{span(estimate.seconds)} (95 %: {span(estimate.low)} to {span(estimate.high)})"


def report_document(report: TuneReport) -> dict[str, Any]:
    """Return the report for programs."""
    best = report.result.best
    return {
        "best": asdict(best) if best else None,
        "trials": [{**asdict(trial), "outcome": trial.outcome.value} for trial in report.result.trials],
        "device": report.plan.device,
        "items": report.items,
        "measured_items": report.measured_items,
        "times": {str(gpus): asdict(estimate) for gpus, estimate in report.times.items()},
        "left_out": report.plan.space.left_out,
        "kept_keys": list(report.kept_keys),
    }


def dry_run_lines(plan: TunePlan, known: Mapping[TrialSetting, Trial]) -> list[Line]:
    """Lay out the trials that would be made, as far as that is known before the first one."""
    space = plan.space
    trials = plan.trials_ahead(known)
    left = space.most_trials - sum(trial.setting in known for trial in trials)
    seconds = [sum(trial.batch_seconds) / max(1, trial.setting.workers) for trial in known.values()]
    longest = f"{clock(left * max(seconds))} and the loading" if seconds else "unknown before the first trial"
    memory = f", whose workers may take {format_size(space.memory_bytes)} together" if space.memory_bytes else ""
    return [
        *trials_table(trials, None),
        line(""),
        line(f"on {plan.device}{memory}: at most {count(left, 'trial')}, each of {plan.trial_items} items or more"),
        *_left_out(space),
        line("if each larger setting is better and fits; where one is not, smaller ones are tried"),
        line(f"time: at most {longest}" if seconds else f"time: {longest}; each batch size loads the worker anew"),
    ]


def dry_run_document(plan: TunePlan, known: Mapping[TrialSetting, Trial]) -> dict[str, Any]:
    """Return what would be tried, for programs."""
    trials = [{**asdict(trial), "outcome": trial.outcome.value} for trial in plan.trials_ahead(known)]
    return {
        "device": plan.device,
        "trials": trials,
        "most_trials": plan.space.most_trials,
        "left_out": plan.space.left_out,
    }
