"""Measure short jobs per second: 2,000 times `true`, 8 at a time, against a bare loop and other tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.common import (
    ROOT,
    SHELL,
    Box,
    Row,
    Unusable,
    clean_environment,
    interleaved,
    median,
    paired_ratio,
    script,
    spread,
)

COMMAND = "true"
AT_ONCE = 8
PYTHON_OF_HYPERQUEUE = "BENCH_HYPERQUEUE_PYTHON"  # an interpreter that can import hyperqueue
SLOW_PEER_SHARE = 4  # peers that are far slower get so many times fewer jobs


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second: between the first start and the last end, and over the whole life of the program.

    `cpu_ms` is the CPU time of a job and of the work around it. On a busy machine it says more than the rates, since
    there a program with more processes gets more CPU time.
    """

    working: float
    whole: float
    cpu_ms: float = 0.0


def with_cpu(contestant: Callable[[Path, int], Rates], directory: Path, jobs: int) -> Rates:
    """Run a contestant, and add the CPU time of its child processes."""
    before = os.times()
    rates = contestant(directory, jobs)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return replace(rates, cpu_ms=used * 1000 / jobs)


def gpusched(directory: Path, jobs: int) -> Rates:
    box = Box(directory, AT_ONCE)
    whole = box.run([COMMAND] * jobs)
    attempts = box.attempts()
    ends = [ended for _, ended in attempts if ended is not None]
    logs = len(os.listdir(box.queue / "logs"))
    if not len(attempts) == len(ends) == logs == jobs:
        raise Unusable(f"{len(attempts)} attempts, {len(ends)} ends and {logs} logs of {jobs} jobs")
    return Rates(jobs / (max(ends) - attempts[0][0]), jobs / whole)


def floor(directory: Path, jobs: int) -> Rates:
    began = time.perf_counter()
    results = script("floor.py", jobs, AT_ONCE, directory, COMMAND)
    whole = time.perf_counter() - began
    if results["failed"]:
        raise Unusable(f"{results['failed']} jobs of the bare loop failed")
    return Rates(jobs / results["seconds"], jobs / whole)


def parallel(directory: Path, jobs: int) -> Rates:
    """Run GNU parallel with its --joblog, which it needs to resume."""
    (directory / "list").write_text(f"{COMMAND}\n" * jobs)
    began = time.perf_counter()
    with open(directory / "list") as lines:
        subprocess.run(
            ["parallel", "--will-cite", f"-j{AT_ONCE}", "--joblog", "joblog"],
            cwd=directory,
            env=clean_environment(PARALLEL_SHELL=shutil.which("bash") or "bash", HOME=str(directory)),
            stdin=lines,
            stdout=subprocess.DEVNULL,
            check=True,
        )
    whole = time.perf_counter() - began
    rows = [line.split("\t") for line in (directory / "joblog").read_text().splitlines()[1:]]
    if len(rows) != jobs or any(row[6] != "0" for row in rows):
        raise Unusable("GNU parallel did not run all jobs to success")
    starts = [float(row[2]) for row in rows]
    ends = [float(row[2]) + float(row[3]) for row in rows]
    return Rates(jobs / (max(ends) - min(starts)), jobs / whole)


def hyperqueue(directory: Path, jobs: int, python: str) -> Rates:
    ended = subprocess.run(
        [python, str(ROOT / "bench" / "hyperqueue_peer.py"), str(jobs), str(AT_ONCE), str(directory), COMMAND],
        env=clean_environment(HOME=str(directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    results = json.loads(ended.stdout)
    if results["failed"]:
        raise Unusable("HyperQueue did not run all jobs to success")
    return Rates(jobs / results["seconds"], jobs / results["seconds"])


def spooler(directory: Path, jobs: int) -> Rates:
    """Run task-spooler: one call of its client per job, then wait until its list has no waiting or running job."""
    environment = clean_environment(
        TS_SOCKET=str(directory / "socket"), TS_SLOTS=str(AT_ONCE), TMPDIR=str(directory), TS_MAXFINISHED=str(jobs)
    )
    began = time.perf_counter()
    for _ in range(jobs):
        subprocess.run(["tsp", *SHELL, COMMAND], env=environment, stdout=subprocess.DEVNULL, check=True)
    while True:
        listed = subprocess.run(["tsp"], env=environment, stdout=subprocess.PIPE, text=True).stdout.splitlines()[1:]
        states = [line.split()[1] for line in listed]
        if not {"queued", "running", "allocating"}.intersection(states):
            break
        time.sleep(0.02)
    took = time.perf_counter() - began
    subprocess.run(["tsp", "-K"], env=environment)
    if len(states) != jobs or any(line.split()[3] != "0" for line in listed):
        raise Unusable("task-spooler did not run all jobs to success")
    return Rates(jobs / took, jobs / took)


def find_hyperqueue() -> str | None:
    """Return an interpreter that has the package hyperqueue."""
    for python in (os.environ.get(PYTHON_OF_HYPERQUEUE), sys.executable):
        if python and not subprocess.run([python, "-c", "import hyperqueue"], stderr=subprocess.DEVNULL).returncode:
            return python
    return None


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    jobs, rounds = (60, 1) if quick else (2000, 5)
    contestants: dict[str, Callable[[Path], Rates]] = {
        "bare loop": lambda directory: with_cpu(floor, directory, jobs),
        "gpusched": lambda directory: with_cpu(gpusched, directory, jobs),
    }
    python = find_hyperqueue()
    if shutil.which("parallel"):
        contestants["parallel --joblog"] = lambda directory: parallel(directory, jobs // SLOW_PEER_SHARE)
    if python is not None:
        contestants["HyperQueue"] = lambda directory: hyperqueue(directory, jobs, python)
    if shutil.which("tsp"):
        contestants["task-spooler"] = lambda directory: spooler(directory, jobs // SLOW_PEER_SHARE)
    results = interleaved(work_dir, rounds, contestants, report)
    working = {name: [r.working for r in rates] for name, rates in results.items()}
    whole = {name: [r.whole for r in rates] for name, rates in results.items()}
    note = " ".join(f"{name}: {spread(working[name])};" for name in ("gpusched", "bare loop")) if rounds > 1 else ""
    rows = [
        _row(f"{jobs} × true, first start to last end", working, "bare loop", 0.5, note),
        _row("the same, whole life of the program", whole, "bare loop", 0.5),
        Row(
            "CPU time of a job and all around it",
            median(r.cpu_ms for r in results["gpusched"]),
            "ms of CPU",
            "bare loop",
            median(r.cpu_ms for r in results["bare loop"]),
        ),
    ]
    for name, must_beat in (("parallel --joblog", True), ("HyperQueue", True), ("task-spooler", False)):
        if name in results:
            rows.append(_row(f"against {name}", working, name, 1.0 if must_beat else None))
        else:
            rows.append(Row(f"against {name}", median(working["gpusched"]), "jobs/s", "not installed"))
    return rows


def _row(name: str, rates: dict[str, list[float]], other: str, at_least: float | None, note: str = "") -> Row:
    ours, theirs = rates["gpusched"], rates[other]
    return Row(
        name,
        median(ours),
        "jobs/s",
        other,
        median(theirs),
        at_least,
        of_ratio=True,
        paired=paired_ratio(ours, theirs),
        note=note,
    )
