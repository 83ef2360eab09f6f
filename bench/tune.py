"""Measure a tuning of a worker whose best batch size is known: what it finds beside that, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from bench.common import ROOT, Box, Row
from bench.pool_workers import launch_s

LARGEST = 1024


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    work_dir.mkdir(parents=True)
    box = Box(work_dir, 0, 0.2, {"PYTHONPATH": str(ROOT)})
    largest = 32 if quick else LARGEST
    (work_dir / "items.txt").write_text("".join(f"{item}\n" for item in range(2 * largest)))
    words = [f"{ROOT}/bench/pool_workers.py:Launched", "--items", "items.txt", "--cpu-workers", "1"]
    report(f"sizes up to {largest}")
    took_s = box.tune([*words, "--max-batch-size", str(largest), "-o", "found.yaml"])
    size = yaml.safe_load((work_dir / "found.yaml").read_text())["optimization"]["batch_size"]
    found, best = size / launch_s(size), largest / launch_s(largest)
    return [
        Row("tune: batch size found", found, "items/s", "the best size", best, at_least=0.95, of_ratio=True),
        Row("tune: time for that", took_s, "s"),
    ]
