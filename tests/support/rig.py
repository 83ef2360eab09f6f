"""The simulated NVML of tests/nvml_rig for tests: builds it once a session, makes machines. Skips without a compiler.

A test makes a machine and starts the program under test with the machine's environment:

    with build_rig(tmp_path_factory.mktemp("rig")).machine(tmp_path / "m", gpus=2, model="H100,T4") as machine:
        subprocess.run([sys.executable, "-m", "gpusched", "devices"], env=machine.env())
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from tests.support.paths import TESTS

SOURCES = TESTS / "nvml_rig"
GENERATIONS = ("", "r535", "r470")  # "" is current: R570
JOB_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "FAKEGPU_JOB", "SLURM_JOB_ID")


@dataclass
class Machine:
    """A directory that plays a box with GPUs."""

    directory: Path
    tools: Path
    fakegpu: ModuleType
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def env(self, generation: str = "", **more: str) -> dict[str, str]:
        """This process's environment, so changed that a program started with it sees these GPUs alone."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in JOB_VARIABLES and not name.startswith("GPUSCHED_")
        }
        library = str(self.tools / "build" / generation)
        return {**kept, "FAKE_NVML_DIR": str(self.directory), "LD_LIBRARY_PATH": library, **more}

    def run(self, *args: object) -> None:
        """`fakegpu COMMAND DIRECTORY …` in this process: run("set", 3, "used=12000")."""
        words = [str(word) for word in (args[0], self.directory, *args[1:])]
        with mock.patch.object(sys, "argv", ["fakegpu", *words]):
            assert not self.fakegpu.main()

    def set(self, which: object, *keys: str) -> None:
        """Change GPU N, "all" or "system"."""
        self.run("set", which, *keys)

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Start `fakegpu alloc MIB …` or `hold N MIB …` and return once it holds its memory."""
        words = [str(word) for word in args]
        if words[0] == "hold":
            words.insert(1, str(self.directory))
        process = subprocess.Popen(
            [sys.executable, str(self.tools / "fakegpu"), *words],
            env=self.env(CUDA_DEVICE_ORDER="PCI_BUS_ID", **env),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        assert process.stdout is not None
        assert "fakegpu: pid" in process.stdout.readline()
        return process

    def occupy(self, n: int, mib: int, pid: int | None = None, **keys: object) -> None:
        """Let a live process (this one) hold memory on GPU n, without starting any."""
        pid = pid or os.getpid()
        path = self.directory / f"gpu{n}" / "p" / f"{pid}-{self.fakegpu.start_time(pid)}"
        self.fakegpu.write(str(path), {"mib": mib, **keys})

    def uuid(self, n: int) -> str:
        return str(self.fakegpu.read(str(self.directory / f"gpu{n}" / "state"))["uuid"])

    def audit(self) -> dict[str, Any]:
        """What fakegpu's audit says: clashes, jobs, started_before_release …"""
        command = [sys.executable, str(self.tools / "fakegpu"), "audit", str(self.directory), "--json"]
        found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        return found

    def most_held(self) -> dict[int, tuple[int, int]]:
        """For each GPU the most bytes that processes ever held of it together, and how many they can have.

        Replayed from the log, each change at its moment; memory counts until it is back, not until its process ends.
        """
        held: dict[str, dict[str, int]] = {}
        most: dict[str, int] = {}
        for line in (self.directory / "events.log").read_text().splitlines():
            event = dict(word.split("=", 1) for word in line.split() if "=" in word)
            on = held.setdefault(event.get("gpu", ""), {})
            if event["ev"] in ("alloc", "grow"):
                on[event["name"]] = int(event["bytes"])
                most[event["gpu"]] = max(most.get(event["gpu"], 0), sum(on.values()))
            elif event["ev"] == "released":
                on.pop(event["name"], None)
        found = {}
        for gpu, peak in most.items():
            state = self.fakegpu.read(str(self.directory / f"gpu{gpu}" / "state"))
            keys = ("total", "reserved", "foreign")
            total, *gone = (int(state.get(key, 0)) << 20 for key in keys)
            found[int(gpu)] = (peak, total - sum(gone))
        return found

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


@dataclass
class Rig:
    """The built library and its tools."""

    tools: Path
    fakegpu: ModuleType

    def machine(
        self, directory: Path, gpus: int = 4, model: str = "H100", release_ms: int = 0, **options: str
    ) -> Machine:
        """A new machine; options are those of `fakegpu init`: driver, cuda_order, mig, seed, context."""
        machine = Machine(directory, self.tools, self.fakegpu)
        words = ["--gpus", str(gpus), "--model", model, "--release-ms", str(release_ms)]
        options.setdefault("seed", str(directory))  # UUIDs of its own, so that claims never meet
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", value]
        machine.run("init", *words)
        return machine


_built: list[Rig] = []


def build_rig(directory: Path) -> Rig:
    """The rig, built into `directory` the first time it is asked for in this process."""
    if _built:
        return _built[0]
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None or shutil.which("make") is None:
        pytest.skip("the simulated NVML needs a C compiler and make")
    for name in ("nvmlsim.c", "fakegpu", "Makefile"):
        shutil.copy(SOURCES / name, directory / name)
    subprocess.run(
        ["make", "-s", "-j2", "-C", directory, f"CC={compiler}", "CFLAGS=-O1"], check=True, capture_output=True
    )
    loader = importlib.machinery.SourceFileLoader("fakegpu", str(directory / "fakegpu"))
    spec = importlib.util.spec_from_loader("fakegpu", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _built.append(Rig(directory, module))
    return _built[0]
