"""Measure a queue that stays: a submission, a long list, the verbs on a long queue, and a dispatcher without jobs."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.common import GPUSCHED, Box, Row, Unusable, median

HOUR_S = 3600.0
VERBS = (("status",), ("explain", "1"), ("hold", "2"), ("release", "2"), ("cancel", "3"), ("requeue", "3"))


def run(box: Box, argv: Sequence[str]) -> tuple[float, float]:
    """Return the seconds that a command takes, and its CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(argv, cwd=box.directory, env=box.environment, capture_output=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise Unusable(f"{argv} ended with {ended.returncode}: {ended.stderr.decode()}")
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def idle_cpu_s(box: Box, seconds: float) -> float:
    """Return the CPU seconds that a dispatcher without a job uses in so many seconds."""
    with subprocess.Popen([*GPUSCHED, "start", "--quiet"], cwd=box.directory, env=box.environment) as process:
        try:
            time.sleep(3)  # it has begun
            before = on_cpu_s(process.pid)
            time.sleep(seconds)
            return on_cpu_s(process.pid) - before
        finally:
            process.terminate()


def on_cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    times, lines, seconds = (3, 1000, 3.0) if quick else (20, 100_000, 120.0)
    work_dir.mkdir(parents=True)
    box = Box(work_dir)
    report(f"a dispatcher without jobs, {seconds:g} s")
    idle_s = idle_cpu_s(box, seconds)
    submit, bare = [*GPUSCHED, "submit", "--no-start", "--", "true"], [sys.executable, "-c", "pass"]
    report(f"{times} submissions")
    for argv in (submit, bare):  # compile all modules first
        run(box, argv)
    pairs = [(run(box, submit)[1], run(box, bare)[1]) for _ in range(times)]
    report(f"a list of {lines} lines")
    (work_dir / "list.txt").write_text("".join(f"python train.py --seed {n}\n" for n in range(lines)))
    list_s, _ = run(box, [*GPUSCHED, "submit", "--no-start", "list.txt"])
    took = {words[0]: run(box, [*GPUSCHED, *words, "-q", "default"])[0] for words in VERBS}
    slowest = max(took, key=took.__getitem__)
    cpu_ms, bare_ms = (median(column) * 1000 for column in zip(*pairs, strict=True))
    return [
        Row("gpusched submit", cpu_ms, "ms of CPU", "python -c pass", bare_ms, at_most=3.5, of_ratio=True),
        Row(f"submit FILE of {lines:,} lines", list_s, "s", at_most=10.0),
        Row("slowest verb on that queue", took[slowest], "s", at_most=0.4, note=slowest),
        Row("standing dispatcher, an hour without jobs", idle_s * HOUR_S / seconds, "s CPU", note="8 simulated GPUs"),
    ]
