"""The trials of a tuning and what they say, as lines for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpusched.common.quantities import format_size
from gpusched.pool.estimate import TimeEstimate
from gpusched.pool.tuner.outcome import TuneReport
from gpusched.pool.tuner.record import TunePlan
from gpusched.pool.tuner.search import STEP, Trial, TrialOutcome, TrialSetting
from gpusched.views.tables import Line, grid, labelled, line
from gpusched.views.words import clock, count

_HEAD = ["batch size", "workers", "threads", "items/s", "±", "memory", "outcome"]


def trial_line(trial: Trial) -> str:
    """Return one trial as it is reported while the next one runs."""
    ok = trial.outcome is TrialOutcome.OK
    memory = f", {format_size(trial.peak_bytes)} of memory" if trial.peak_bytes else ""
    rate = f"{trial.items_per_s:.4g} items/s{memory}" if ok else trial.outcome.value
    return f"{setting_text(trial.setting)}: {rate}"


def setting_text(setting: TrialSetting) -> str:
    """Return a setting in words."""
    threads = f" of {setting.threads} threads" if setting.threads > 1 else ""
    return f"batch size {setting.batch_size}, {count(setting.workers, 'worker')}{threads}"


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
            ("best", "green") if trial.setting == best else "" if trial.items_per_s else trial.outcome.value,
        ]
        for trial in trials
    ]
    return grid(_HEAD, rows, right="batch size workers threads items/s ± memory")


def report_lines(report: TuneReport, path: str) -> list[Line]:
    """Return the table, the times of the data set, and what was written."""
    best = report.result.best
    lines = [*trials_table(report.result.trials, best), line("")]
    if best is None:
        return [*lines, line("nothing fits: batch size 1 has run out of memory too")]
    for gpus, estimate in report.times.items():
        where = f"on {count(gpus, 'GPU')}" if gpus else "on the CPU"
        lines.append(line(f"{report.items} items take {time_text(estimate)} {where}"))
    if report.times:
        more = next(iter(report.times.values())).items_to_halve
        lines.append(line(f"judged by {report.measured_items} items; {more} more would halve the interval"))
    if report.kept_keys:
        lines.append(line(f"left as they are, since they refer to other places: {', '.join(report.kept_keys)}"))
    return [*lines, line(f"{path}: {setting_text(best)}; go on with `gpusched pool --config {path}`")]


def time_text(estimate: TimeEstimate) -> str:
    """Return a time with its interval."""
    return f"{clock(estimate.seconds)} (95 %: {clock(estimate.low)} to {clock(estimate.high)})"


def report_document(report: TuneReport) -> dict[str, Any]:
    """Return the report for programs."""
    best = report.result.best
    return {
        "best": asdict(best) if best else None,
        "trials": [{**asdict(trial), "outcome": trial.outcome.value} for trial in report.result.trials],
        "device": report.device,
        "items": report.items,
        "measured_items": report.measured_items,
        "times": {str(gpus): asdict(estimate) for gpus, estimate in report.times.items()},
        "kept_keys": list(report.kept_keys),
    }


def dry_run_lines(plan: TunePlan, known: Mapping[TrialSetting, Trial]) -> list[Line]:
    """Say what would be tried, as far as that is known before the first trial."""
    space = plan.space
    sizes = ", ".join(map(str, space.batch_sizes)) or (
        f"{space.first_batch_size}, {space.first_batch_size * STEP}, … up to {space.largest_batch_size}, while the rate"
        " rises and memory suffices"
    )
    rows: list[tuple[str, str]] = [
        ("device", plan.device),
        (
            "memory",
            format_size(space.memory_bytes) if space.memory_bytes else "not known",
        ),
        ("batch sizes", sizes),
        ("workers", ", ".join(map(str, space.workers))),
        ("threads", ", ".join(map(str, space.threads))),
        ("trials", f"at most {space.most_trials}, each of {plan.trial_items} items or more"),
        ("on record", f"{count(len(known), 'trial')}, of which none is made again" if known else "none"),
        ("time", _time_of(plan, known)),
    ]
    return labelled(rows)


def _time_of(plan: TunePlan, known: Mapping[TrialSetting, Trial]) -> str:
    """Say how long the trials that are left may take, by those on record."""
    left = plan.space.most_trials - len(known)
    seconds = [sum(trial.batch_seconds) / max(1, trial.setting.workers) for trial in known.values()]
    if not seconds:
        return "not known before the first trial; each batch size loads the worker anew"
    return f"at most {clock(left * max(seconds))} and the loading, for {count(left, 'trial')}"


def dry_run_document(plan: TunePlan, known: Mapping[TrialSetting, Trial]) -> dict[str, Any]:
    """Return what would be tried, for programs."""
    return {
        "device": plan.device,
        "space": asdict(plan.space),
        "trial_items": plan.trial_items,
        "trials": [{**asdict(trial), "outcome": trial.outcome.value} for trial in known.values()],
    }
