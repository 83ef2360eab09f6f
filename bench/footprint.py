"""What a dispatcher that has nothing to start costs: its share of a core and its memory, and that of its helpers.

All GPUs run a job of the queue and more jobs wait, at polls of 2 s: once on simulated GPUs, once with NVML's own
adapter on the simulated driver of tests/nvml_rig, where there is a C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.common import MIB, ROOT, Box, Row, Unusable, children, cpu_seconds, median, memory_bytes
from gpusched.core.model import JobState
from gpusched.host.store import job_table

DEVICES = 8
NVML_CHILD = "gpusched.host.gpus.nvml"
RIG = ROOT / "tests" / "nvml_rig"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Shares of a core, and MiB."""

    cpu: float  # dispatcher and NVML child together
    dispatcher_pss: float
    shepherd_pss: float
    shepherd_own: float  # what no other process shares
    shepherds_cpu: float
    child_pss: float = 0.0


def watch(box: Box, seconds: float) -> Footprint:
    jobs = DEVICES * 2
    with box.running([f"sleep {seconds * 10 + 60:g}"] * jobs, "--grace", "1") as process:
        box.wait_for(box.database.exists, process)

        def all_busy() -> bool:
            with box.store() as store:
                return job_table.counts(store)[JobState.RUNNING] == DEVICES

        box.wait_for(all_busy, process)
        time.sleep(min(3.0, seconds / 4))
        helpers = children(process.pid)
        nvml = [pid for pid, line in helpers.items() if NVML_CHILD in line]
        shepherds = [pid for pid in helpers if pid not in nvml]
        if len(shepherds) != DEVICES:
            raise Unusable(f"{len(shepherds)} shepherds for {DEVICES} jobs")
        watched = [process.pid, *nvml]
        before, flock = sum(map(cpu_seconds, watched)), sum(map(cpu_seconds, shepherds))
        began = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        cpu = (sum(map(cpu_seconds, watched)) - before) / took
        shepherds_cpu = (sum(map(cpu_seconds, shepherds)) - flock) / took
        memory = [memory_bytes(pid) for pid in shepherds]
        found = Footprint(
            cpu,
            memory_bytes(process.pid)["Pss"] / MIB,
            median(m["Pss"] for m in memory) / MIB,
            median(m["Private_Clean"] + m["Private_Dirty"] for m in memory) / MIB,
            shepherds_cpu,
            sum(memory_bytes(pid)["Pss"] for pid in nvml) / MIB,
        )
        if process.poll() is not None:
            raise Unusable(f"gpusched ended: {box.said()}")
    return found


def rig_environment(directory: Path) -> dict[str, str] | None:
    """A machine of 8 GPUs behind a simulated driver; None where it cannot be built."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or shutil.which("make") is None:
        return None
    tools = directory / "rig"
    tools.mkdir()
    for name in ("nvmlsim.c", "fakegpu", "Makefile"):
        shutil.copy(RIG / name, tools / name)
    built = subprocess.run(["make", "-s", "-C", tools, f"CC={compiler}", "CFLAGS=-O2"], capture_output=True)
    if built.returncode:
        return None
    machine = str(directory / "machine")
    words = ["init", machine, "--gpus", str(DEVICES), "--model", "H100", "--seed", machine]
    subprocess.run([sys.executable, tools / "fakegpu", *words], check=True, stdout=subprocess.DEVNULL)
    return {
        "FAKE_NVML_DIR": machine,
        "LD_LIBRARY_PATH": str(tools / "build"),
        "GPUSCHED_MAX_GPUS": str(DEVICES),
    }


def measure(place: Path, quick: bool, tell: Callable[[str], None]) -> list[Row]:
    seconds = 2.0 if quick else 30.0
    rows: list[Row] = []
    for name in ("simulated", "NVML"):
        directory = place / name
        directory.mkdir(parents=True)
        extra = rig_environment(directory) if name == "NVML" else {}
        if extra is None:
            rows.append(Row("idle with NVML", None, "", note="needs make and a C compiler"))
            continue
        tell(f"{name}, {seconds:g} s")
        os.sync()
        box = Box(directory, 0 if name == "NVML" else DEVICES, extra=extra)
        found = watch(box, seconds)
        with_child = " and NVML child" if found.child_pss else ""
        rows.append(Row(f"idle, {name}: dispatcher{with_child}", found.cpu * 100, "% of a core", at_most=1))
        rows.append(Row(f"idle, {name}: dispatcher's memory (PSS)", found.dispatcher_pss, "MiB", at_most=60))
        if found.child_pss:
            rows.append(Row("NVML child's memory (PSS)", found.child_pss, "MiB"))
        else:
            note = f"{found.shepherds_cpu * 100:.2f} % of a core for {DEVICES}"
            rows.append(Row("a shepherd's memory (PSS)", found.shepherd_pss, "MiB", at_most=8, note=note))
            rows.append(Row("a shepherd's own part of it", found.shepherd_own, "MiB", at_most=8))
    return rows
