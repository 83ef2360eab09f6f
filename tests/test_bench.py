"""That the measurements measure: each runs at tiny sizes and yields possible numbers. No target is tested here."""

from __future__ import annotations

import importlib
import json
import math
import shutil
from pathlib import Path

import psutil
import pytest

from bench import run
from bench.common import Row, Unusable, paired_ratio
from tests.support.box import wait_for

# Bounds of what a number can be, by its unit, on a machine that is busy with other tests.
POSSIBLE = {
    "jobs/s": (0.5, 1e5),
    "items/s": (10, 1e6),
    "×": (0.01, 100),
    "ms": (0.001, 60_000),
    "ms of CPU": (0, 60_000),
    "s": (1e-5, 120),
    "s CPU": (0.1, 600),
    "million": (0.001, 1e6),  # steps
    "MiB": (0, 1000),  # what is beyond the libraries is nothing at these sizes
    "% of a core": (0, 200),
}
ROWS = {
    "throughput": 6,
    "gap": 2,
    "many_lines": 3,
    "attributes": 3,
    "startup": 1,
    "footprint": 4,
    "standing": 4,
    "planner": 3,
    "shard": 3,
    "pool": 7,
    "tune": 2,
    "merge": 2,
    "esd": 7,
    "atlas": 1,
    "cluster": 5,
}
LONG = {"cluster"}  # Ray takes its time


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.soak if each in LONG else ()) for each in run.MEASUREMENTS]
)
def test_measurement_yields_possible_numbers(name: str, tmp_path: Path) -> None:
    rows = importlib.import_module(f"bench.{name}").measure(tmp_path / name, True, lambda text: None)
    assert len(rows) >= ROWS[name]
    for row in rows:
        if row.value is None:
            no_compiler = "compiler" in row.note and not (shutil.which("cc") and shutil.which("make"))
            assert no_compiler or "make test-peers" in row.note, row
            continue
        low, high = POSSIBLE[row.unit]
        assert low <= row.value <= high, row
        assert row.reference is None or row.reference > 0, row
        assert row.ratio is None or math.isfinite(row.ratio), row
    wait_for(lambda: not processes_of(tmp_path), "the end of all that it started")


def processes_of(directory: Path) -> list[str]:
    commands = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return [command for command in commands if str(directory) in command]


@pytest.mark.slow
def test_report_prints_a_table_and_writes_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.json"
    code = run.main(["--only", "startup", "--quick", "--dir", str(tmp_path), "--json", str(path)])
    assert code == 0
    out = capsys.readouterr().out
    assert "gpusched --help" in out
    assert "no target was missed" in out or "missed: gpusched --help" in out
    measured = json.loads(path.read_text())["measurements"]["startup"]
    assert measured[0]["value"] > 0 and measured[0]["ratio"] > 0 and measured[0]["ok"] in (True, False)


def test_report_says_what_could_not_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> list[Row]:
        raise Unusable("3 of 5 jobs failed\nand more")

    monkeypatch.setattr(importlib.import_module("bench.startup"), "measure", fail)
    assert run.main(["--only", "startup", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "missed: startup: not measured" in out and "3 of 5 jobs failed" in out and "and more" not in out


def test_row_judges_value_or_ratio() -> None:
    assert Row("a", 5, "ms", at_most=10).ok is True
    assert Row("a", 15, "ms", at_most=10).ok is False
    assert Row("a", 15, "ms").ok is None
    assert Row("a", 30, "jobs/s", "floor", 50, 0.5, of_ratio=True).ok is True
    assert Row("a", 20, "jobs/s", "floor", 50, 0.5, of_ratio=True).ok is False
    assert Row("a", 20, "jobs/s", "floor", 50, 0.5, of_ratio=True, paired=0.6).ok is True
    assert Row("a", 20, "jobs/s", "not installed", None, 0.5, of_ratio=True).ok is None
    assert Row("a", None, "").ok is None
    assert Row("a", 1, "jobs/s", at_least=0.5, of_ratio=True).target == "≥ 0.5×"
    assert paired_ratio([10, 30, 1], [20, 30, 4]) == 0.5
