"""Measure a pool: trivial items beside multiprocessing, memory, unequal items, unequal GPUs, two cores.

Times are those from the first item that is given out to the last outcome; all workers are ready before that.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.busy import spend
from bench.common import ROOT, Box, Row, Unusable, interleaved, median, paired_ratio, spread
from bench.pool_workers import double
from gpusched.common import simulation
from gpusched.host.store.pool.items import ItemStore

WORKERS = 4
SIGMA = 1.3  # of the logarithm of the times


@dataclass(frozen=True)
class PoolRun:
    """The seconds from the first item to the last, and the most memory of the coordinator."""

    took_s: float
    coordinator_mib: float


def run(directory: Path, worker: str, items: Sequence[object], *options: str, workers: int, gpus: int = 0) -> PoolRun:
    """Run a pool to its end."""
    poll_s = 0.2 if gpus else 2.0  # as it is installed, since the dispatcher shares the cores with the workers
    box = Box(directory, gpus, poll_s, {"PYTHONPATH": str(ROOT)})
    (directory / "items.csv").write_text("".join(f"{item}\n" for item in ["value", *items]))
    words = [f"{ROOT}/bench/pool_workers.py:{worker}", "--items", "items.csv", "--output-dir", "out"]
    words += ["--set", f"workers={workers}", "--checkpoint-every", "1000", *options]
    box.pool([*words, *([] if gpus else ["--cpu-workers", str(workers)])])
    with ItemStore(str(directory / "out" / "items.db")) as store:
        if store.counts().results != len(items):
            raise Unusable(f"{store.counts()} of {len(items)} items")
        facts = json.loads(store.read("workers") or "{}")
    with box.store() as queue:
        peak = queue.scalar("SELECT max_rss_bytes FROM attempts ORDER BY job_id LIMIT 1")
    return PoolRun(facts["work_s"], (peak or 0) / (1 << 20))


def multiprocess(workers: int, function: Callable[[Any], object], items: Sequence[object]) -> PoolRun:
    """Do the same by a pool of multiprocessing, whose workers are up before."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        list(pool.imap_unordered(double, range(10 * workers)))
        began = time.perf_counter()
        for _ in pool.imap_unordered(function, items):
            pass
        return PoolRun(time.perf_counter() - began, 0)


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    return [
        *_trivial(work_dir / "trivial", quick, report),
        _memory(work_dir / "memory", quick, report),
        *_unequal(work_dir / "unequal", quick, report),
        _two_cores(work_dir / "cores", quick, report),
    ]


def _trivial(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    count, rounds = (400, 1) if quick else (20_000, 5)

    def ours(in_flight: int) -> Callable[[Path], PoolRun]:
        options = ("--in-flight", str(in_flight))
        return lambda directory: run(directory, "Trivial", range(count), *options, workers=WORKERS)

    contestants = {f"{n} in flight": ours(n) for n in (1, 2, 16)}
    peer = {"multiprocessing": lambda directory: multiprocess(WORKERS, double, list(map(str, range(count))))}
    found = interleaved(work_dir, rounds, {**contestants, **peer}, report)
    rates = {name: [count / each.took_s for each in runs] for name, runs in found.items()}
    theirs = rates.pop("multiprocessing")
    # two in flight: one runs, one waits, each in a message of its own; with one the worker waits for each answer
    targets = {"1 in flight": None, "2 in flight": 0.5, "16 in flight": 1.2}
    return [
        Row(
            f"pool: trivial items, {WORKERS} workers, {name}",
            median(own),
            "items/s",
            "imap_unordered",
            median(theirs),
            at_least=targets[name],
            of_ratio=True,
            paired=paired_ratio(own, theirs),
            note=spread(own),
        )
        for name, own in rates.items()
    ]


def _memory(work_dir: Path, quick: bool, report: Callable[[str], None]) -> Row:
    few, many = (100, 1000) if quick else (20_000, 1_000_000)
    contestants = {
        str(count): (lambda directory, count=count: run(directory, "Trivial", range(count), workers=2))
        for count in (few, many)
    }
    found = interleaved(work_dir, 1, contestants, report)
    small, large = (found[str(count)][0].coordinator_mib for count in (few, many))
    name = f"pool: memory of the coordinator, {many} items"
    return Row(name, large, "MiB", f"{few} items", small, at_most=1.25, of_ratio=True)


def _unequal(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Items of unequal times on 8 workers, beside a static split; equal items on two GPUs, one four times slower."""
    rng = random.Random(1)
    count, workers, mean_s = (24, 8, 0.02) if quick else (400, 8, 0.25)
    times = [rng.lognormvariate(0, SIGMA) for _ in range(count)]
    times = [each * mean_s * count / sum(times) for each in times]
    ideal_s = max(max(times), sum(times) / workers)
    share = -(-count // workers)
    static_s = max(sum(times[at : at + share]) for at in range(0, count, share))
    items = [f"{each:.6f}" for each in times]
    equal, each_s = (20, 0.02) if quick else (200, 0.2)

    def slow(directory: Path) -> PoolRun:
        simulated = directory / "simulation"
        simulation.create(str(simulated), ["A100"] * 2)
        uuid = simulation.read_keys(str(simulated / "gpu0" / "state"))["uuid"]
        options = ("--set", f"slow={uuid}", "--workers-per-gpu", "1")  # sleepers would gain by more
        return run(directory, "Sleeper", [each_s] * equal, *options, workers=2, gpus=2)

    contestants = {
        "unequal": lambda directory: run(directory, "Sleeper", items, "--size-key", "value", workers=workers),
        "slow": slow,
    }
    found = interleaved(work_dir, 1, contestants, report)
    return [
        Row(
            f"pool: log-normal times, longest first, {workers} workers",
            found["unequal"][0].took_s,
            "s",
            "the ideal",
            ideal_s,
            at_most=1.08,
            of_ratio=True,
            note=f"a static split takes {static_s:.3g} s",
        ),
        Row(
            f"pool: one of 2 GPUs four times slower, {equal} items",
            found["slow"][0].took_s,
            "s",
            "the ideal",
            equal * each_s / 1.25,
            at_most=1.10,
            of_ratio=True,
        ),
    ]


def _two_cores(work_dir: Path, quick: bool, report: Callable[[str], None]) -> Row:
    """Items that compute, on two workers; beside multiprocessing, since whatever else runs here slows both."""
    count, each_s = (8, 0.02) if quick else (200, 0.1)
    contestants = {
        "busy": lambda directory: run(directory, "Busy", [each_s] * count, workers=2),
        "busy multiprocessing": lambda directory: multiprocess(2, spend, [each_s] * count),
    }
    found = interleaved(work_dir, 1 if quick else 3, contestants, report)
    ours, theirs = ([count * each_s / each.took_s for each in runs] for runs in found.values())
    return Row(
        "pool: CPU s of all items per s, 2 workers on 2 cores",
        median(ours),
        "×",
        "multiprocessing",
        median(theirs),
        at_least=0.975,  # 1.95 of 2
        of_ratio=True,
        paired=paired_ratio(ours, theirs),
        note=spread(ours),
    )
