"""What a stage or a worker says of itself while it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpusched.common.progress_file import ProgressFile


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSCHED_PROGRESS", str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_what_was_reported_stays_beside_what_is_new(path: Path) -> None:
    progress = ProgressFile("items")
    progress.report(ready=False)
    progress.report(ready=True, memory_bytes=7 << 30)
    assert read(path) == {"unit": "items", "ready": True, "memory_bytes": 7 << 30}
    progress(10, 10)
    assert read(path) == {"unit": "items", "ready": True, "memory_bytes": 7 << 30, "done": 10, "total": 10}


def test_counts_are_written_a_few_times_a_second_and_at_the_end(path: Path) -> None:
    progress = ProgressFile("items")
    progress(1, 3)
    progress(2, 3)
    assert read(path)["done"] == 1
    progress(3, 3)
    assert read(path)["done"] == 3


def test_nobody_is_told_where_the_file_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = ProgressFile("items")
    path.mkdir()
    progress(3, 3)
    path.rmdir()
    progress(3, 3)
    assert not path.exists()
    monkeypatch.delenv("GPUSCHED_PROGRESS")
    ProgressFile("items")(3, 3)
