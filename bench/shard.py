"""Measure the speed-up by shards of a CPU-bound script on 2 simulated GPUs, and the cost of a shard."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from bench.common import ROOT, Box, Row, Unusable, interleaved, median, spread

GPUS = 2
PER_GPU = 4
ITEM_S = 1.0
SCRIPT = str(ROOT / "bench" / "busy.py")


class ScriptRun(NamedTuple):
    took_s: float
    steps: int  # of all items in their CPU time, in thousands


def steps_of(lines: Iterable[str], items: int) -> int:
    """Return the sum of the steps that busy.py printed; Unusable unless each item has one line."""
    results = [line.split() for line in lines]
    if sorted(int(item) for item, _ in results) != list(range(items)):
        raise Unusable(f"{len(results)} items were worked on instead of {items}")
    return sum(int(steps) for _, steps in results)


def alone(directory: Path, items: int, seconds: float) -> ScriptRun:
    """Run the script in one process."""
    command = [sys.executable, SCRIPT, "0", str(items), str(seconds)]
    began = time.perf_counter()
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return ScriptRun(time.perf_counter() - began, steps_of(ended.stdout.splitlines(), items))


def sharded(directory: Path, items: int, seconds: float) -> ScriptRun:
    """Run the script by gpusched shard."""
    box = Box(directory, GPUS)
    command = [sys.executable, SCRIPT, "{start}", "{count}", str(seconds)]
    options = ["--total", str(items), "--shards-per-gpu", str(PER_GPU), "--min-items-per-shard", "1"]
    took = box.shard([*options, "--", *command])
    n = len(box.attempts())
    if n != min(items, GPUS * PER_GPU):
        raise Unusable(f"{n} shards instead of {GPUS * PER_GPU}")
    logs = (box.queue / "logs").glob("*.out.log")
    return ScriptRun(took, steps_of((line for log in logs for line in log.read_text().splitlines()), items))


def per_shard_ms(directory: Path, shards: int) -> float:
    """Return the cost of a shard that does nothing: the time from the first start to the last end, per GPU."""
    box = Box(directory, GPUS)
    box.shard(["--total", str(shards), "--shard-size", "1", "--", "true", "{start}"])
    attempts = box.attempts()
    ends = [ended for _, ended in attempts if ended is not None]
    if not len(attempts) == len(ends) == shards:
        raise Unusable(f"{len(attempts)} attempts and {len(ends)} ends of {shards} shards")
    return (max(ends) - attempts[0][0]) * 1000 * GPUS / shards


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    items, times, shards = (8, 1, 16) if quick else (32, 3, 400)
    seconds = 0.05 if quick else ITEM_S
    items_worked = interleaved(
        work_dir,
        times,
        {
            "one process": lambda directory: alone(directory, items, seconds),
            "shards": lambda directory: sharded(directory, items, seconds),
        },
        report,
    )
    empty = interleaved(work_dir, times, {"empty shards": lambda directory: per_shard_ms(directory, shards)}, report)
    one, many = items_worked["one process"], items_worked["shards"]
    speed_ups = [a.took_s / b.took_s for a, b in zip(one, many, strict=True)]
    host = [b.steps / a.steps for a, b in zip(one, many, strict=True)]
    return [
        Row(
            f"shard, {items} items of {seconds:g} s of CPU on {GPUS} GPUs",
            median(run.took_s for run in one),
            "s",
            "sharded",
            median(run.took_s for run in many),
            at_least=1.9 if (os.cpu_count() or 1) >= GPUS else None,
            of_ratio=True,
            paired=median(speed_ups),
            note=f"{GPUS * PER_GPU} shards, from start to end; {spread(speed_ups)}",
        ),
        Row(
            "steps that the items got done in that CPU time",
            median(run.steps / 1000 for run in many),
            "million",
            "one process",
            median(run.steps / 1000 for run in one),
            paired=median(host),
            note=f"the slow-down of two cores of this host by each other; {spread(host)}",
        ),
        Row(
            "dispatch of a shard that does nothing",
            median(empty["empty shards"]),
            "ms",
            note=f"of one GPU's time, {shards} shards; {spread(empty['empty shards'])}",
        ),
    ]
