"""What shards bring: a CPU-bound script on 2 simulated GPUs beside itself in one process, and the cost of a shard."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.busy import work
from bench.common import ROOT, Box, Row, Unusable, interleaved, median, paired_ratio, spread

GPUS = 2
PER_GPU = 4
ITEM_S = 1.0
SCRIPT = str(ROOT / "bench" / "busy.py")


def rounds_for(seconds: float) -> int:
    """How many rounds of work an item has to do, to take so long on this machine."""
    rounds, took = 10_000, 0.0
    while took < 0.1:
        rounds *= 4
        began = time.perf_counter()
        work(1, rounds)
        took = time.perf_counter() - began
    return max(1, int(rounds * seconds / took))


def alone(directory: Path, items: int, rounds: int) -> float:
    """The script as it is, in one process."""
    began = time.perf_counter()
    subprocess.run([sys.executable, SCRIPT, "0", str(items), str(rounds)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def sharded(directory: Path, items: int, rounds: int) -> float:
    """The same with gpusched shard, from its start to its end."""
    box = Box(directory, GPUS)
    command = [sys.executable, SCRIPT, "{start}", "{count}", str(rounds)]
    options = ["--total", str(items), "--shards-per-gpu", str(PER_GPU), "--min-items-per-shard", "1"]
    took = box.shard([*options, "--", *command])
    n = len(box.attempts())
    if n != min(items, GPUS * PER_GPU):
        raise Unusable(f"{n} shards instead of {GPUS * PER_GPU}")
    return took


def per_shard_ms(directory: Path, shards: int) -> float:
    """What a shard costs that does nothing: the time from the first start to the last end, of the shards of one GPU."""
    box = Box(directory, GPUS)
    box.shard(["--total", str(shards), "--shard-size", "1", "--", "true", "{start}"])
    attempts = box.attempts()
    ends = [ended for _, ended in attempts if ended is not None]
    if not len(attempts) == len(ends) == shards:
        raise Unusable(f"{len(attempts)} attempts and {len(ends)} ends of {shards} shards")
    return (max(ends) - attempts[0][0]) * 1000 * GPUS / shards


def measure(place: Path, quick: bool, tell: Callable[[str], None]) -> list[Row]:
    items, times, shards = (8, 1, 16) if quick else (32, 3, 400)
    rounds = rounds_for(0.05 if quick else ITEM_S)
    found = interleaved(
        place,
        times,
        {
            "one process": lambda directory: alone(directory, items, rounds),
            "shards": lambda directory: sharded(directory, items, rounds),
            "empty shards": lambda directory: per_shard_ms(directory, shards),
        },
        tell,
    )
    ratios = [one / many for one, many in zip(found["one process"], found["shards"], strict=True)]
    return [
        Row(
            f"shard, {items} items of {ITEM_S:g} s of CPU on {GPUS} GPUs",
            median(found["one process"]),
            "s",
            "sharded",
            median(found["shards"]),
            at_least=1.9 if (os.cpu_count() or 1) >= GPUS else None,
            of_ratio=True,
            paired=paired_ratio(found["one process"], found["shards"]),
            note=f"{GPUS * PER_GPU} shards, from start to end; {spread(ratios)}",
        ),
        Row(
            "dispatch of a shard that does nothing",
            median(found["empty shards"]),
            "ms",
            note=f"of one GPU's time, {shards} shards; {spread(found['empty shards'])}",
        ),
    ]
