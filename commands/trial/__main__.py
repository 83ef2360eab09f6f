"""`python -m gpusched.commands.trial DIRECTORY`: measure the settings that the search of the plan there asks for."""

from __future__ import annotations

import sys

from gpusched.commands.trial.bench import Bench

from gpusched.common.quantities import format_size
from gpusched.pool.tuner.record import TrialRecord, TunePlan, follow
from gpusched.pool.tuner.search import Trial, TrialFailed, TrialOutcome, TrialSetting


def main() -> int:
    directory = sys.argv[1]
    plan = TunePlan.read(directory)
    record = TrialRecord(directory, plan)
    with Bench(directory, plan) as bench:

        def measure(setting: TrialSetting) -> Trial:
            trial: Trial = bench.measure(setting)
            if trial.outcome is not TrialOutcome.FAILED:
                record.add(trial)
                print(_line(trial), flush=True)
            return trial

        try:
            follow(plan.space, record.read(), measure)
        except TrialFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def _line(trial: Trial) -> str:
    setting = trial.setting
    head = f"batch size {setting.batch_size}, workers {setting.workers}, threads {setting.threads}"
    if trial.outcome is not TrialOutcome.OK:
        return f"{head}: {trial.outcome.value}"
    memory = f", {format_size(trial.peak_bytes)}" if trial.peak_bytes else ""
    return f"{head}: {trial.items_per_s:.4g} items/s{memory}"


if __name__ == "__main__":
    sys.exit(main())
