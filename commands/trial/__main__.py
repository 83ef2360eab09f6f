"""`python -m gpusched.commands.trial DIRECTORY`: measure the settings that the search of the plan there asks for."""

from __future__ import annotations

import sys
from dataclasses import asdict

from gpusched.commands.trial.bench import Bench

from gpusched.pool.coordinator.publisher import Publisher
from gpusched.pool.publication import JSON_LINES, Publication
from gpusched.pool.tuner.record import TrialRecord, TunePlan, follow
from gpusched.pool.tuner.search import Trial, TrialFailed, TrialOutcome, TrialSetting


def main() -> int:
    directory = sys.argv[1]
    plan = TunePlan.read(directory)
    record = TrialRecord(directory, plan)
    log = Publication(directory, JSON_LINES, directory, project=plan.options.wandb, name=f"{plan.options.stem} tune")
    code = 0
    with Bench(directory, plan) as bench, Publisher(log) as publisher:

        def measure(setting: TrialSetting) -> Trial:
            trial: Trial = bench.measure(setting)
            if trial.outcome is not TrialOutcome.FAILED:
                record.add(trial)
                print(trial, flush=True)
                publisher.send(_numbers(trial))
            return trial

        try:
            follow(plan.space, record.read(), measure)
        except TrialFailed as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
        for _ in publisher.finish():
            pass
    return code


def _numbers(trial: Trial) -> dict[str, object]:
    """Return what a trial is logged with."""
    numbers = {name: getattr(trial, name) for name in ("items_per_s", "error", "peak_bytes")}
    return {**asdict(trial.setting), **numbers, "outcome": trial.outcome.value}


if __name__ == "__main__":
    sys.exit(main())
