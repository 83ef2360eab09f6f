"""A list of 100,000 lines: how long until it is submitted, with how much memory, and whether its head runs as fast.

The dispatcher is killed once the first thousand jobs have ended: leaving, it would write the metrics of all lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.common import MIB, Box, Row, Unusable, interleaved, median, paired_ratio, peak_bytes, spread
from gpusched.core.model import JobState
from gpusched.host.store import job_table

AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Head:
    """`first_s`: from the start of the program to that of the first job."""

    first_s: float
    peak_mib: float
    rate: float  # of starts, jobs/s


def list_of(lines: int) -> list[str]:
    return [f"true --seed {n} --rate 3e-4 --out runs/model-{n}" for n in range(lines)]


def head(directory: Path, lines: int, jobs: int) -> Head:
    box = Box(directory, AT_ONCE)
    commands = list_of(lines)  # far more than `jobs`: the dispatcher must still be there when its memory is read
    began = time.time()
    process = box.start(commands)
    peak = 0
    try:
        box.wait_for(box.database.exists, process)

        def ended() -> bool:
            nonlocal peak
            peak = max(peak, peak_bytes(process.pid))
            with box.store() as store:
                return job_table.counts(store)[JobState.SUCCEEDED] >= jobs

        box.wait_for(lambda: _asked(ended), process)
    finally:
        process.kill()
        process.wait()
    starts = [started for started, _ in box.attempts()][:jobs]
    with box.store() as store:
        held = sum(job_table.counts(store).values())
    if held != lines or len(starts) < jobs:
        raise Unusable(f"the queue holds {held} of {lines} jobs and started {len(starts)} of {jobs}")
    return Head(starts[0] - began, peak / MIB, (jobs - 1) / (starts[-1] - starts[0]))


def _asked(question: Callable[[], bool]) -> bool:
    """The answer of a database that may be being made; asked seldom, so that asking does not count."""
    time.sleep(0.2)
    try:
        return question()
    except Exception:
        return False


def measure(place: Path, quick: bool, tell: Callable[[str], None]) -> list[Row]:
    few, many, jobs, rounds = (1000, 3000, 40, 1) if quick else (2000, 100_000, 1000, 3)
    found = interleaved(
        place,
        rounds,
        {
            f"{few} lines": lambda directory: head(directory, few, jobs),
            f"{many} lines": lambda directory: head(directory, many, jobs),
        },
        tell,
    )
    small, large = found[f"{few} lines"], found[f"{many} lines"]
    rates, references = [h.rate for h in large], [h.rate for h in small]
    first = f"{few} lines"
    return [
        Row(
            f"{many:,} lines: start to first job",
            median(h.first_s for h in large),
            "s",
            first,
            median(h.first_s for h in small),
            at_most=10,
        ),
        Row(
            f"{many:,} lines: peak memory (RSS)",
            max(h.peak_mib for h in large),
            "MiB",
            first,
            max(h.peak_mib for h in small),
            at_most=200,
        ),
        Row(
            f"{many:,} lines: rate of the first {jobs:,}",
            median(rates),
            "jobs/s",
            first,
            median(references),
            0.8,
            of_ratio=True,
            paired=paired_ratio(rates, references),
            note=f"{spread(rates)}; {first}: {spread(references)}" if rounds > 1 else "",
        ),
    ]
