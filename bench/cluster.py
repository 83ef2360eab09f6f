"""Measure a cluster of two nodes on this machine, with four simulated GPUs each, beside one box with four of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import Row, Unusable
from gpusched.common.libraries import missing
from gpusched.host.store import Store, job_table
from tests.support.box import Box
from tests.support.lab import Lab

MIB = 1 << 20
POLLS = {"GPUSCHED_POLL_INTERVAL": "0.5", "GPUSCHED_MAX_CHECKS": "1"}


def measure(directory: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of a cluster: jobs of 2 s, a list of very short ones, and what it costs when nothing runs."""
    if missing(["ray"]):
        raise Unusable("Ray is not installed: pip install -e '.[cluster]'")
    directory.mkdir(parents=True)
    many, idle_s = (20, 3.0) if quick else (1000, 30.0)
    one_box = _rate_of_one_box(directory / "one", many)
    report(f"one box: {one_box:.0f} jobs/s")
    (directory / "lab").mkdir()
    with Lab(directory / "lab", "a", "b", lease="120") as lab:
        lab.start()
        took_s = _run(lab, [f"sleep 2 # {n}" for n in range(16)])
        report(f"16 jobs: {took_s:.1f} s")
        rate = many / _run(lab, [f"true {n}" for n in range(many)])
        report(f"{many} jobs: {rate:.0f} jobs/s")
        node_s, head_s, head_bytes = _idle(lab, idle_s)
    return [
        Row("cluster: 16 jobs of 2 s on 2x4 GPUs", took_s, "s", "ideal", 4.0, at_most=6.0),
        Row(f"cluster: {many} x true over two nodes", rate, "jobs/s", "one box", one_box, at_least=0.2, of_ratio=True),
        Row(
            "cluster: CPU of an idle node",
            100 * node_s / idle_s,
            "% of a core",
            note="Ray, keeper, agent and dispatcher",
        ),
        Row("cluster: CPU of an idle head", 100 * head_s / idle_s, "% of a core", note="Ray, keeper and head"),
        Row("cluster: memory of the head", head_bytes / MIB, "MiB", note="resident, all its processes"),
    ]


def _rate_of_one_box(directory: Path, many: int) -> float:
    with Box(directory, "4", POLLS) as box:
        began = time.monotonic()
        ended = box.run(*(f"true {n}" for n in range(many)), options="--quiet")
        if ended.code:
            raise Unusable(f"the list ended with {ended.code}: {ended.text}")
        return many / (time.monotonic() - began)


def _run(lab: Lab, commands: list[str]) -> float:
    """Return the seconds from the submission of these jobs until all have ended."""
    began = time.monotonic()
    ids = lab.submit(*commands)
    with Store(str(lab.queue() / "queue.db"), read_only=True) as store:
        while any(state in ("queued", "running") and n for state, n in _counts(store).items()):
            time.sleep(0.05)
    took_s = time.monotonic() - began
    lab.wait(ids[-1:])
    return took_s


def _counts(store: Store) -> dict[str, int]:
    return {state.value: n for state, n in job_table.counts(store).items()}


def _idle(lab: Lab, seconds: float) -> tuple[float, float, float]:
    """Return the CPU seconds of a node and of the head in so many seconds, and the memory of the head."""
    before = [_cpu_s(box) for box in (lab.nodes["a"], lab.head)]
    time.sleep(seconds)
    node_s, head_s = (_cpu_s(box) - was for box, was in zip((lab.nodes["a"], lab.head), before, strict=True))
    words = subprocess.run(["ps", "-o", "rss=", "-p", ",".join(map(str, lab.head.processes()))], capture_output=True)
    return node_s, head_s, sum(int(word) for word in words.stdout.split()) * 1024.0


def _cpu_s(box: Box) -> float:
    ticks = 0
    for pid in box.processes():
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    for each in measure(Path(sys.argv[1]), "--quick" in sys.argv, print):
        print(each)
