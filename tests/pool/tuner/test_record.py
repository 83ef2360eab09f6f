"""The files of a tuning: what is written is read again, and a line that a kill has cut is none."""

from __future__ import annotations

from pathlib import Path

from gpusched.pool.options import PoolOptions
from gpusched.pool.tuner.record import TrialRecord, TunePlan
from gpusched.pool.tuner.search import SearchSpace, Trial, TrialOutcome, TrialSetting

PLAN = TunePlan(PoolOptions(worker="w.py:W", set=("a=1",)), SearchSpace(batch_sizes=(1, 2)), 10, "A100")


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    PLAN.write(str(tmp_path))
    assert TunePlan.read(str(tmp_path)) == PLAN


def test_trials_outlive_a_kill_in_the_midst_of_a_line(tmp_path: Path) -> None:
    record = TrialRecord(str(tmp_path), PLAN)
    assert record.read() == {}
    trials = [
        Trial(TrialSetting(1), TrialOutcome.OK, 3.5, 0.1, 1 << 30, "process", batch_seconds=(0.1, 0.2)),
        Trial(TrialSetting(2), TrialOutcome.OUT_OF_MEMORY, message="CUDA out of memory."),
    ]
    record.add(trials[0])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
    record.add(trials[1])
    assert list(record.read().values()) == trials
    record.clear()
    assert record.read() == {}
