"""Measure the gap between two jobs on a device, from the return of the memory to the next start.

The jobs hold memory on simulated GPUs: a few lines of bash write the simulation's own record, since the start of Python
would take longer than the gap. A record counts as long as its process lives, so the memory is back when the job ends;
with a driver that frees it later, at the time that the simulation logs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from bench.common import Box, Row, Unusable, clean_environment, interleaved, median, script
from gpusched.common import simulation

DEVICES = 4
TOLERANCE_S = 0.02  # the simulation reads a file's time, whose clock is coarse, and logs a moment later
LATE_MS = 100  # of a driver that is slow to give memory back
# Takes memory, stays 30 to 60 ms, notes its start and its end. It starts no further process.
HOLD = r"""
began=$EPOCHREALTIME
slot=${CUDA_VISIBLE_DEVICES:-${SLOT:-$PARALLEL_JOBSLOT}}
read -r stat < "/proc/$$/stat"
set -- ${stat##*) }
record=$PLACE/gpu$slot/p/$$-${20}
printf 'mib=8000\nkind=C\nuser=bench\nprogram=hold\n' > "$record"
exec 9<> "$PLACE/never"
read -rt "0.0$((30 + RANDOM % 31))" -u 9
printf '%s %s %s %s\n' "$slot" "${record##*/}" "$began" "$EPOCHREALTIME" >> "$PLACE/times"
"""


def prepare(directory: Path, shared_dir: Path) -> str:
    """Write the files that the jobs share. Return the command of a job."""
    (directory / "hold.sh").write_text(HOLD)
    os.mkfifo(shared_dir / "never")
    return f". {directory / 'hold.sh'} && echo done"


def gaps_ms(shared_dir: Path, jobs: int, back: dict[str, float]) -> list[float]:
    """Return the milliseconds from the return of the memory to the next start, on every device."""
    by_slot: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for line in (shared_dir / "times").read_text().splitlines():
        slot, name, first, last = line.split()
        by_slot[slot].append((float(first), float(last), name))
    if sum(map(len, by_slot.values())) != jobs:
        raise Unusable(f"{sum(map(len, by_slot.values()))} of {jobs} jobs have left their times")
    gaps = []
    for runs in by_slot.values():
        runs.sort()
        for (_, ended, name), (began, _, _) in pairwise(runs):
            returned = back.get(name, ended)
            if began < returned - TOLERANCE_S:
                raise Unusable(f"a job began {(returned - began) * 1000:.1f} ms before the memory was back")
            gaps.append(max(0.0, began - returned) * 1000)
    return gaps


def gpusched(directory: Path, jobs: int, release_ms: int) -> list[float]:
    box = Box(directory, DEVICES)
    shared_dir = Path(box.simulation)
    if release_ms:
        simulation.change_keys(str(shared_dir / "box"), release_ms=release_ms)
    command = prepare(directory, shared_dir)
    box.environment["PLACE"] = str(shared_dir)
    box.run([command] * jobs)
    back = {}
    for line in (shared_dir / "events.log").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "dead" and release_ms:
            back[event["name"]] = event["t"] + release_ms / 1000
    if release_ms and len(back) != jobs:
        raise Unusable(f"the memory of {len(back)} of {jobs} jobs came back")
    return gaps_ms(shared_dir, jobs, back)


def make_shared_dir(directory: Path) -> tuple[Path, str]:
    shared_dir = directory / "shared"
    for slot in range(DEVICES + 1):
        (shared_dir / f"gpu{slot}" / "p").mkdir(parents=True)
    return shared_dir, prepare(directory, shared_dir)


def floor(directory: Path, jobs: int) -> list[float]:
    shared_dir, command = make_shared_dir(directory)
    if script("floor.py", jobs, DEVICES, directory, command, PLACE=str(shared_dir))["failed"]:
        raise Unusable("jobs of the bare loop failed")
    return gaps_ms(shared_dir, jobs, {})


def parallel(directory: Path, jobs: int) -> list[float]:
    shared_dir, command = make_shared_dir(directory)
    subprocess.run(
        ["parallel", "--will-cite", f"-j{DEVICES}", "--joblog", "joblog"],
        cwd=directory,
        env=clean_environment(
            PARALLEL_SHELL=shutil.which("bash") or "bash", HOME=str(directory), PLACE=str(shared_dir)
        ),
        input=f"{command}\n".encode() * jobs,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return gaps_ms(shared_dir, jobs, {})


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    jobs, rounds = (16, 1) if quick else (200, 3)
    contestants: dict[str, Callable[[Path], list[float]]] = {
        "bare loop": lambda directory: floor(directory, jobs),
        "gpusched": lambda directory: gpusched(directory, jobs, 0),
        "gpusched, late": lambda directory: gpusched(directory, jobs, LATE_MS),
    }
    if shutil.which("parallel"):
        contestants["parallel"] = lambda directory: parallel(directory, jobs)
    results = interleaved(work_dir, rounds, contestants, report)
    gaps = {name: sorted(gap for gaps in rounds for gap in gaps) for name, rounds in results.items()}
    middle = {name: median(values) for name, values in gaps.items()}
    tail = {name: f"95 % within {values[int(len(values) * 0.95)]:.1f}" for name, values in gaps.items()}
    rows = [
        Row(
            "gap, memory back to next start",
            middle["gpusched"],
            "ms",
            "bare loop",
            middle["bare loop"],
            at_most=10,
            note=f"{tail['gpusched']}; bare loop: {tail['bare loop']}",
        ),
        Row(
            f"the same, memory {LATE_MS} ms late",
            middle["gpusched, late"],
            "ms",
            "bare loop",
            middle["bare loop"],
            at_most=10,
            note=tail["gpusched, late"],
        ),
    ]
    if "parallel" in middle:
        rows.append(Row("gap of parallel --joblog", middle["parallel"], "ms", "bare loop", middle["bare loop"]))
    return rows
