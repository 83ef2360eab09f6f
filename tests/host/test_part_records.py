"""Records in the files that shards are writing, as their progress."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.core.documents import parse_progress
from gpusched.core.jobs.progress import items_done, slowest_left_s
from gpusched.core.model import RunningView
from gpusched.host.queue import part_records
from tests.support.merging import write_plan
from tests.views.test_live import running_view


@pytest.fixture(autouse=True)
def sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_records, "_SAMPLE_BYTES", 1000)
    part_records._records_of_shard.cache_clear()


def shard(name: str, *, age_s: float = 100.0, progress: str = "") -> RunningView:
    view = running_view(1, progress=progress)
    job = replace(view.job, name=name, items=50)
    return RunningView(job, replace(view.attempt, started_at=time.time() - age_s))


def done(queue: Path, *views: RunningView) -> list[float]:
    counted = part_records.count_records(str(queue), views)
    return [items_done(50, parse_progress(view.attempt.progress)) for view in counted]


@pytest.mark.parametrize(
    ("form", "text", "records"),
    [
        ("jsonl", '{"n": 1}\n' * 20 + '{"n"', 20),
        ("txt", "x\n" * 50, 50),
        ("csv", "a,b\n" + "1,2\n" * 7, 7),
        ("jsonl", f'"{"x" * 97}"\n' * 30, 30),  # more than the sample
        ("txt", "x\n" * 51, 0),  # not one for each item
        ("pt", "x\n" * 7, 0),
    ],
)
def test_the_records_of_a_shard_that_reports_nothing_are_its_progress(
    tmp_path: Path, form: str, text: str, records: int
) -> None:
    write_plan(tmp_path / "shard_plan.json", 100, 2, f"{tmp_path}/out/*_{{suffix}}.{form}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"a_gpu_0.{form}").write_text(text)
    mine, other = shard("gpu_0"), shard("gpu_1", progress='{"done": 3}')
    assert done(tmp_path, mine, other, shard("merge")) == [records, 3, 0]
    counted = part_records.count_records(str(tmp_path), [mine, other])
    if records == 20:
        assert slowest_left_s(counted, 0.5, time.time()) == pytest.approx(100 * 47 / 3, rel=0.01)


def test_files_of_earlier_attempts_and_queues_without_a_plan_count_nothing(tmp_path: Path) -> None:
    assert done(tmp_path, shard("gpu_0")) == [0]
    write_plan(tmp_path / "shard_plan.json", 100, 2, f"{tmp_path}/a_{{suffix}}.txt")
    part = tmp_path / "a_gpu_0.txt"
    part.write_text("x\n" * 9)
    os.utime(part, (time.time() - 200, time.time() - 200))
    assert done(tmp_path, shard("gpu_0", age_s=100.5)) == [0]
    assert done(tmp_path, shard("gpu_0", age_s=300)) == [9]
    (tmp_path / "shard_plan.json").write_text("{}")
    assert done(tmp_path, shard("gpu_0", age_s=301)) == [0]
