"""Helpers of the end-to-end tests: a box of one's own, and `gpusched` run on it as a user runs it. Asserts nothing.

A box has its own home, claims, working directory and simulated GPUs; everything that was started on it is ended
with it. What happened is read back from queue.db, gpu_metrics.json, the logs and the simulation's audit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from gpusched.common import simulation
from gpusched.core.model import AttemptRow, JobRow
from gpusched.host import locks
from gpusched.host.store import Store, attempt_table, job_table
from tests.support.audit import AuditReport, audit
from tests.support.paths import TESTS

T = TypeVar("T")
B = TypeVar("B", bound="Box")

CASES = TESTS / "cases"
GPUSCHED = [sys.executable, "-m", "gpusched"]
SIMJOB = f"{sys.executable} -m gpusched.commands.simjob"
MARK = "E2E_BOX"  # in the environment of every process that a box starts
UNTIL_GO = "until [ -e go ]; do sleep 0.05; done"  # what a job does until the file go is in its directory
PATIENCE_S = 60.0  # what takes longer on a loaded machine is broken


def wait_for(condition: Callable[[], T], what: str = "it", timeout_s: float = PATIENCE_S) -> T:
    """What `condition` returns, once that is true."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not happen in {timeout_s:g} s")
        time.sleep(0.02)


@dataclass(frozen=True)
class Ended:
    """How one command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Running:
    """A command that has been started; its output goes to files, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self._out.read_text("utf-8", "replace") + self._err.read_text("utf-8", "replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = PATIENCE_S) -> Ended:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s; it said:\n{self.said()}") from None
        return Ended(code, self._out.read_text("utf-8", "replace"), self._err.read_text("utf-8", "replace"))

    def wait_until_said(self, text: str) -> None:
        try:
            wait_for(lambda: text in self.said() or self.process.poll() is not None)
        finally:
            assert text in self.said(), f"{text!r} was not said, but:\n{self.said()}"


@dataclass(frozen=True)
class Row:
    """A job with its newest attempt, as the queue holds it."""

    job: JobRow
    attempts: list[AttemptRow]
    log: Path | None

    @property
    def command(self) -> str:
        return os.fsdecode(self.job.command)

    @property
    def state(self) -> str:
        return self.job.state.value

    @property
    def last(self) -> AttemptRow:
        return self.attempts[-1]

    @property
    def outcome(self) -> str:
        """Such as "exited 0", "signalled 9", "interrupted"; of the newest attempt."""
        found = self.last.outcome if self.attempts else None
        if found is None:
            return ""
        if found.kind.value in ("exited", "signalled"):
            return f"{found.kind.value} {found.exit_code if found.signal is None else found.signal}"
        return found.kind.value

    @property
    def cause(self) -> str:
        found = self.last.outcome if self.attempts else None
        return self.job.cause or (found.cause if found else "")

    @property
    def note(self) -> str:
        found = self.last.outcome if self.attempts else None
        return found.note if found else ""

    @property
    def indices(self) -> list[int]:
        return [device.index for device in self.last.devices]

    def said(self) -> str:
        """The log as text; empty while it is not there."""
        try:
            return self.log.read_text("utf-8", "surrogateescape") if self.log else ""
        except FileNotFoundError:
            return ""


class Box:
    """A box with simulated GPUs (or none), for one test. `environment` adds to that of everything started on it."""

    def __init__(self, root: Path, gpus: str = "4", environment: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.work = root / "work"
        self.home = root / "home"
        self.claims = Path((environment or {}).get("GPUSCHED_CLAIMS_DIR", root / "claims"))
        self.simulation = root / "simulation"
        for path in (self.work, self.home):
            path.mkdir(parents=True, exist_ok=True)
        self.environment = {
            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '/usr/bin:/bin')}",
            "HOME": str(self.home),
            "TMPDIR": str(root),
            "LANG": "C.UTF-8",
            "GPUSCHED_CLAIMS_DIR": str(self.claims),
            "GPUSCHED_MAX_CHECKS": "1",
            "GPUSCHED_POLL_INTERVAL": "0.05",
            "GPUSCHED_GRACE": "2",
            MARK: str(root),
            **(environment or {}),
        }
        if gpus:
            simulation.create(str(self.simulation), simulation.parse_spec(gpus))
            self.environment[simulation.ENV_DIRECTORY] = str(self.simulation)
        self._started: list[subprocess.Popen[bytes]] = []
        self._number = 0

    # ---- doing ----

    def write(self, *lines: str, name: str = "list.txt") -> str:
        """Write a file of commands; its name, which is relative to the working directory."""
        (self.work / name).write_text("".join(f"{line}\n" for line in lines), "utf-8", "surrogateescape")
        return name

    def spawn(
        self,
        *words: str,
        program: Sequence[str] = GPUSCHED,
        environment: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: int | None = subprocess.DEVNULL,
        user: int | None = None,
    ) -> Running:
        """Start `gpusched WORDS`, in a session of its own. An environment value of None takes the variable away."""
        self._number += 1
        out, err = (self.root / f"said.{self._number}.{kind}" for kind in ("out", "err"))
        given = {**self.environment, **(environment or {})}
        with open(out, "wb") as out_file, open(err, "wb") as err_file:
            process = subprocess.Popen(
                [*program, *words],
                cwd=cwd or self.work,
                env={name: value for name, value in given.items() if value is not None},
                stdin=stdin,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
                user=user,
                umask=0 if user else -1,
            )
        self._started.append(process)
        return Running(process, out, err)

    def start(self, *words: str, **environment: str | None) -> Running:
        """Start `gpusched WORDS`."""
        return self.spawn(*words, environment=environment)

    def gpusched(self, *words: str, **environment: str | None) -> Ended:
        """`gpusched WORDS` to its end."""
        return self.start(*words, **environment).wait()

    def run(self, *lines: str, options: str = "", **environment: str | None) -> Ended:
        """`gpusched run` on a file list.txt of these lines, to its end."""
        return self.gpusched("run", self.write(*lines), *options.split(), **environment)

    def colleague(self, gpu: int, mib: int, *, hold_s: float = 120.0, util: int = 90) -> subprocess.Popen[bytes]:
        """Somebody else's process on a GPU; returns once it holds its memory."""
        words = ["--device", str(gpu), "--mem", str(mib), "--hold", str(hold_s), "--user", "bo"]
        words += ["--util", str(util)]
        process = subprocess.Popen(
            [*SIMJOB.split(), *words], env=self.environment, cwd=self.root, stdout=subprocess.PIPE
        )
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"simjob: pid")
        process.stdout.close()
        return process

    def set_gpu(self, number: int, **keys: object) -> None:
        """Change the state of a simulated GPU: fail="lost", present=0, foreign=9000 …; None removes a key."""
        simulation.change_keys(str(self.simulation / f"gpu{number}" / "state"), **keys)

    def set_box(self, **keys: object) -> None:
        """Change the simulation as a whole: fail="text", release_ms=200."""
        simulation.change_keys(str(self.simulation / "box"), **keys)

    # ---- looking ----

    def queue(self, name: str = "list") -> Path:
        return self.work / "gpusched-runs" / name

    @contextlib.contextmanager
    def store(self, name: str = "list", **options: bool) -> Iterator[Store]:
        store = Store(str(self.queue(name) / "queue.db"), **options)
        try:
            yield store
        finally:
            store.close()

    def jobs(self, name: str = "list") -> list[Row]:
        """All jobs in the order of the file; none while there is no queue yet."""
        if not (self.queue(name) / "queue.db").exists():
            return []
        with self.store(name, read_only=True) as store:
            rows = []
            for job in job_table.jobs(store):
                attempts = attempt_table.attempts(store, job.id)
                log = self.queue(name) / attempts[-1].log if attempts else None
                rows.append(Row(job, attempts, log))
            return rows

    def states(self, name: str = "list") -> list[str]:
        return [row.state for row in self.jobs(name)]

    def running(self, name: str = "list") -> int:
        """How many jobs are running and have begun (their logs exist)."""
        return sum(r.state == "running" and r.log is not None and r.log.exists() for r in self.jobs(name))

    def metrics(self, name: str = "list") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.queue(name) / "gpu_metrics.json").read_text())
        return found

    def read(self, name: str) -> str:
        """A file in the working directory; empty while it is not there."""
        try:
            return (self.work / name).read_text("utf-8", "surrogateescape")
        except FileNotFoundError:
            return ""

    def uuid(self, number: int) -> str:
        return simulation.read_keys(str(self.simulation / f"gpu{number}" / "state"))["uuid"]

    def claimed(self) -> set[str]:
        """UUIDs of the devices on which somebody holds a claim."""
        paths = (path for path in self.claims.glob("*.lock") if not path.name.startswith("ticket-"))
        return {path.stem for path in paths if locks.is_held(str(path))}

    def audit(self) -> AuditReport:
        return audit(str(self.simulation))

    def processes(self) -> list[int]:
        """Every live process that was started on this box, directly or not."""
        word = f"{MARK}={self.root}".encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and word in _environ(int(name)).split(b"\0"):
                found.append(int(name))
        return found

    def wait_until_empty(self) -> None:
        """Wait until none is left: a shepherd may end a moment after its dispatcher."""
        wait_for(lambda: not self.processes(), "the end of all processes", 10)

    def commands(self) -> list[str]:
        """The command lines of the processes of this box."""
        return [command_of(pid) for pid in self.processes()]

    # ---- ending ----

    def __enter__(self: B) -> B:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            time.sleep(0.01)
        for process in self._started:
            process.wait(10)


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
