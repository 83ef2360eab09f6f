"""Measure a queue that stays: a submission, a long list, the verbs on a long queue, and a dispatcher without jobs."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.common import GPUSCHED, Box, Row, Unusable, median, paired_ratio

HOUR_S = 3600.0
VERBS = (("status",), ("explain", "1"), ("hold", "2"), ("release", "2"), ("cancel", "3"), ("requeue", "3"))


def run(box: Box, argv: Sequence[str], place: Path | None = None) -> tuple[float, float]:
    """Return the seconds that a command takes, and its CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(argv, cwd=place or box.directory, env=box.environment, capture_output=True)
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


def measure_submissions(box: Box, times: int) -> list[Row]:
    """Measure the CPU time of a submission beside that of a bare Python, in rounds: plain, with settings, in git."""
    in_git = box.directory / "tree"
    (box.directory / "other").mkdir()
    other = Box(box.directory / "other")
    (other.directory / "home/gpusched").mkdir()
    (other.directory / "home/gpusched/config.yaml").write_text("max_checks: 3\npoll_interval: 2\n")
    in_git.mkdir()
    for words in ("init -q", "-c user.name=x -c user.email=x commit -q --allow-empty -m x"):
        subprocess.run(["git", *words.split()], cwd=in_git, env=box.environment, check=False)
    submit, bare = [*GPUSCHED, "submit", "--no-start", "--", "true"], [sys.executable, "-c", "pass"]
    contestants = {
        "": (box, bare, Path("/")),
        "gpusched submit": (box, submit, Path("/")),
        "… with a settings file": (other, submit, Path("/")),
        "… in git": (box, submit, in_git),
    }
    for contestant in contestants.values():  # compile all modules first
        run(*contestant)
    rounds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(times):
        for name, contestant in list(contestants.items())[:: -1 if number % 2 else 1]:
            rounds[name].append(run(*contestant)[1] * 1000)
    base = rounds.pop("")
    limits = {"gpusched submit": 3.5, "… with a settings file": 3.5}  # git itself runs for a commit's name
    return [
        Row(
            name,
            median(ours),
            "ms of CPU",
            "python -c pass",
            median(base),
            at_most=limits.get(name),
            of_ratio=True,
            paired=paired_ratio(ours, base),
        )
        for name, ours in rounds.items()
    ]


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    times, lines, seconds = (3, 1000, 3.0) if quick else (20, 100_000, 120.0)
    work_dir.mkdir(parents=True)
    box = Box(work_dir)
    report(f"a dispatcher without jobs, {seconds:g} s")
    idle_s = idle_cpu_s(box, seconds)
    report(f"{times} submissions")
    submissions = measure_submissions(box, times)
    report(f"a list of {lines} lines")
    (work_dir / "list.txt").write_text("".join(f"python train.py --seed {n}\n" for n in range(lines)))
    list_s, _ = run(box, [*GPUSCHED, "submit", "--no-start", "list.txt"])
    took = {words[0]: run(box, [*GPUSCHED, *words, "-q", "default"])[0] for words in VERBS}
    slowest = max(took, key=took.__getitem__)
    return [
        *submissions,
        Row(f"submit FILE of {lines:,} lines", list_s, "s", at_most=10.0),
        Row("slowest verb on that queue", took[slowest], "s", at_most=0.4, note=slowest),
        Row("standing dispatcher, an hour without jobs", idle_s * HOUR_S / seconds, "s CPU", note="8 simulated GPUs"),
    ]
