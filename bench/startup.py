"""Measure `gpusched --help` against an interpreter that imports click."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import GPUSCHED, Row, Unusable, clean_environment, median


def seconds(argv: list[str], directory: Path) -> float:
    began = time.perf_counter()
    ended = subprocess.run(argv, cwd=directory, env=clean_environment(), capture_output=True)
    took = time.perf_counter() - began
    if ended.returncode:
        raise Unusable(f"{argv} ended with {ended.returncode}")
    return took


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    times = 3 if quick else 40
    report(f"{times} starts of each")
    installed = shutil.which("gpusched", path=os.path.dirname(sys.executable))
    ours = [installed, "--help"] if installed else [*GPUSCHED, "--help"]
    commands = {"help": ours, "click": [sys.executable, "-c", "import click"], "bare": [sys.executable, "-c", ""]}
    results: dict[str, list[float]] = {name: [] for name in commands}
    work_dir.mkdir(parents=True, exist_ok=True)
    for argv in commands.values():  # compile all modules first
        seconds(argv, work_dir)
    for _ in range(times):
        for name, argv in commands.items():
            results[name].append(seconds(argv, work_dir) * 1000)
    middle = {name: median(values) for name, values in results.items()}
    note = f"an empty interpreter {middle['bare']:.0f} ms"
    return [
        Row(
            "gpusched --help",
            middle["help"],
            "ms",
            "import click",
            middle["click"],
            at_most=1.5,
            of_ratio=True,
            note=note,
        )
    ]
