"""Common parts of the measurements: fresh directories, interleaved rounds, gpusched as a user starts it, table rows.

Deletes nothing, since deleting a big tree slows the file system for the next measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median as median
from typing import TypeVar

from gpusched.common import simulation
from gpusched.host.store import Store, attempt_table, job_table

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
GPUSCHED = [sys.executable, "-m", "gpusched"]
SHELL = ["bash", "-o", "pipefail", "-c"]  # as gpusched starts a command
MIB = 1 << 20


class Unusable(Exception):
    """A measurement without a valid result: jobs failed, or a program did not end."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `reference` is the value that it is compared with."""

    name: str
    value: float | None  # None: could not be measured
    unit: str
    against: str = ""  # name of the reference
    reference: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    of_ratio: bool = False  # the limits are of the ratio to the reference, not of the value
    paired: float | None = None  # the ratio, if it is the median of paired rounds
    note: str = ""

    @property
    def ratio(self) -> float | None:
        if self.paired is not None:
            return self.paired
        return self.value / self.reference if self.reference and self.value is not None else None

    @property
    def target(self) -> str:
        unit = "×" if self.of_ratio else f" {self.unit}"
        parts = [(self.at_least, "≥"), (self.at_most, "≤")]
        return ", ".join(f"{sign} {limit:g}{unit}" for limit, sign in parts if limit is not None)

    @property
    def ok(self) -> bool | None:
        """Return True if the target is met; None without a target or a value."""
        value = self.ratio if self.of_ratio else self.value
        if value is None or (self.at_least is None and self.at_most is None):
            return None
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)


def interleaved(
    work_dir: Path, rounds: int, contestants: Mapping[str, Callable[[Path], T]], report: Callable[[str], None]
) -> dict[str, list[T]]:
    """Run each contestant once per round, each time in a new directory; every second round in reverse order."""
    results: dict[str, list[T]] = {name: [] for name in contestants}
    for number in range(rounds):
        names = list(contestants)
        for name in reversed(names) if number % 2 else names:
            report(f"round {number + 1} of {rounds}: {name}")
            directory = work_dir / f"{name.replace(' ', '-')}.{number}"
            directory.mkdir(parents=True)
            os.sync()  # so that nobody pays for the dirty pages of another
            results[name].append(contestants[name](directory))
    return results


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of the rounds: a disturbance of a round affects both of its sides."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(values: Sequence[float]) -> str:
    """Return the range of the rounds, which shows how noisy the machine is."""
    return f"rounds {min(values):.3g} to {max(values):.3g}" if len(values) > 1 else ""


# ---- gpusched as a user starts it --------------------------------------------------------------------


def clean_environment(**more: str) -> dict[str, str]:
    """Return the environment without variables that change gpusched or Python, or choose GPUs."""
    mine = ("GPUSCHED_", "CUDA_", "FAKE_NVML", "PYTHONDONTWRITEBYTECODE")
    others = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    return {**others, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "", **more}


@dataclass
class Box:
    """A directory with its own home, claims and, if `gpus`, simulation."""

    directory: Path
    gpus: int = 8
    poll_s: float = 2.0
    extra: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("home", "tmp"):
            (self.directory / name).mkdir()
        self.environment = clean_environment(
            HOME=str(self.directory / "home"),
            XDG_STATE_HOME=str(self.directory / "home"),
            XDG_CONFIG_HOME=str(self.directory / "home"),
            TMPDIR=str(self.directory / "tmp"),
            GPUSCHED_CLAIMS_DIR=str(self.directory / "claims"),
            GPUSCHED_AUTOSTART="false",  # what would outlive a measurement
            GPUSCHED_MAX_CHECKS="1",
            GPUSCHED_POLL_INTERVAL=f"{self.poll_s:g}",
            **(self.extra or {}),
        )
        if self.gpus:
            simulation.create(self.simulation, ["A100"] * self.gpus)
            self.environment[simulation.ENV_DIRECTORY] = self.simulation
            self.environment["GPUSCHED_MAX_GPUS"] = str(self.gpus)

    @property
    def simulation(self) -> str:
        return str(self.directory / "simulation")

    @property
    def queue(self) -> Path:
        return self.directory / "queue"

    @property
    def database(self) -> Path:
        return self.queue / "queue.db"

    def start(self, lines: Sequence[str], *options: str) -> subprocess.Popen[bytes]:
        """Start `gpusched run` with these lines; its output goes to a file."""
        (self.directory / "list.txt").write_text("".join(f"{line}\n" for line in lines))
        return self._start("run", "list.txt", *options)

    def _start(self, verb: str, *words: str) -> subprocess.Popen[bytes]:
        with open(self.directory / "output", "wb") as output:
            return subprocess.Popen(
                [*GPUSCHED, verb, "--log-dir", str(self.queue), "--quiet", *words],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def run(self, lines: Sequence[str], *options: str) -> float:
        """Run the lines to their end. Return the seconds; all must succeed."""
        return self._run_to_end(lambda: self.start(lines, *options))

    def shard(self, words: Sequence[str]) -> float:
        """Run `gpusched shard` to its end. Return the seconds; all must succeed."""
        return self._run_to_end(lambda: self._start("shard", *words))

    def pool(self, words: Sequence[str]) -> float:
        """Run `gpusched pool` to its end. Return the seconds; every item must have a result."""
        return self._run_to_end(lambda: self._start("pool", *words))

    def tune(self, words: Sequence[str]) -> float:
        """Run `gpusched tune` to its end. Return the seconds."""
        return self._run_to_end(lambda: self._start("tune", *words))

    def _run_to_end(self, start: Callable[[], subprocess.Popen[bytes]]) -> float:
        began = time.perf_counter()
        code = start().wait()
        took = time.perf_counter() - began
        if code:
            raise Unusable(f"gpusched ended with {code}: {self.output()}")
        return took

    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace").strip()

    @contextmanager
    def store(self) -> Iterator[Store]:
        store = Store(str(self.database), read_only=True)
        try:
            yield store
        finally:
            store.close()

    def attempts(self) -> list[tuple[float, float | None]]:
        """Return (started, ended) of every attempt. Raises Unusable if one has failed."""
        results: list[tuple[float, float | None]] = []
        with self.store() as store:
            for job in job_table.jobs(store):
                for attempt in attempt_table.attempts(store, job.id) if job.attempts else ():
                    if attempt.outcome is not None and not attempt.outcome.ok:
                        raise Unusable(f"job {job.id} ended with {attempt.outcome}")
                    results.append((attempt.started_at, attempt.ended_at))
        return sorted(results, key=lambda attempt: attempt[0])

    @contextmanager
    def running(self, lines: Sequence[str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a dispatcher during the block; end it and its jobs after it."""
        process = self.start(lines, *options)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()

    def wait_for(self, condition: Callable[[], T], process: subprocess.Popen[bytes], timeout_s: float = 120) -> T:
        """Wait until `condition` is true, and return its result."""
        deadline = time.monotonic() + timeout_s
        while not (result := condition()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unusable(f"gpusched did not get there: {self.output()}")
            time.sleep(0.02)
        return result


def script(name: str, *words: object, **environment: str) -> dict[str, float]:
    """Run a helper of this folder in its own process. Return the JSON object that it prints."""
    command = [sys.executable, "-S", str(ROOT / "bench" / name), *(str(word) for word in words)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=clean_environment(**environment), check=True)
    results: dict[str, float] = json.loads(ended.stdout)
    return results


# ---- processes ---------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> dict[str, int]:
    """Return the fields of smaps_rollup in bytes: Pss, Private_Clean, Private_Dirty, Rss …"""
    results = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        results[name] = int(value.split()[0]) * 1024
    return results


def peak_bytes(pid: int) -> int:
    """Return the largest resident set that a process has had; 0 once it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def children(pid: int) -> dict[int, str]:
    """Return the child processes and their command lines."""
    results = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            results[int(child)] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return results
