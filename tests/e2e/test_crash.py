"""The dispatcher is killed at each step and at random times; the next start must lose nothing and repeat nothing."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpusched.host import locks
from tests.support.paths import TESTS

DRIVER = str(TESTS / "support" / "crash_driver.py")
GPUS = 3
BOARD_GIB = 80
STEPS = (
    "read",
    "made",
    "submitted",
    "requested",
    "claim",
    "claimed",
    "prepared",
    "booking",
    "booked",
    "hand over",
    "handed over",
    "leaving",
    "left",
)
# each job tells when it began and ended, and where
JOB = 'echo "$GPUSCHED_JOB_ID $CUDA_VISIBLE_DEVICES begin $(date +%s%N)" >> ledger; sleep {pause}; ' + (
    'echo "$GPUSCHED_JOB_ID $CUDA_VISIBLE_DEVICES end $(date +%s%N)" >> ledger; exit {code} # {n}'
)


class Yard:
    """A place of its own for one queue: list, claims, home, simulation, ledger.

    `kind` is "sharing" for jobs that state budgets, "standing" for jobs that are submitted one by one.
    """

    def __init__(self, path: Path, jobs: int, *, pause: float, failing: int = 0, kind: str = "") -> None:
        sharing = kind == "sharing"
        self.path = path
        self.standing = [kind] if kind == "standing" else []
        self.jobs = jobs
        self.failing = failing
        self.budgets_gib = {n: 15 + 10 * (n % 3) if sharing else 0 for n in range(1, jobs + 1)}
        lines = [JOB.format(n=n, pause=pause, code=3 if n <= failing else 0) for n in range(1, jobs + 1)]
        if sharing:
            lines = [f"[mem={self.budgets_gib[n]}G] {line}" for n, line in enumerate(lines, 1)]
        (path / "list.txt").write_text("\n".join(lines) + "\n")
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(path),
            "GPUSCHED_CLAIMS_DIR": str(path / "claims"),
            "GPUSCHED_SIMULATE": str(GPUS),
            "TMPDIR": str(path),
            "GPUSCHED_MAX_CHECKS": "1",
            "GPUSCHED_POLL_INTERVAL": "0.05",
        }

    def start(self, step: str = "never", count: int = 1) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, DRIVER, "list.txt", step, str(count), *self.standing],
            cwd=self.path,
            env=self.environment,
            start_new_session=True,
        )

    def finish(self) -> int:
        return self.start().wait(timeout=60)

    def ledger(self) -> list[tuple[int, str, str, int]]:
        try:
            lines = (self.path / "ledger").read_text().split("\n")
        except FileNotFoundError:
            return []
        return [(int(a), b, c, int(d)) for a, b, c, d in (line.split() for line in lines if line)]

    def states(self) -> Counter[str]:
        db = sqlite3.connect(self.path / "gpusched-runs/list/queue.db")
        try:
            return Counter(state for (state,) in db.execute("SELECT state FROM jobs"))
        finally:
            db.close()

    def claims_held(self) -> int:
        return sum(locks.is_held(str(path)) for path in (self.path / "claims").glob("*.lock"))

    def check_everything_ran_once(self, *, at_least: bool = False) -> None:
        ends = Counter(job for job, _, kind, _ in self.ledger() if kind == "end")
        begins = Counter(job for job, _, kind, _ in self.ledger() if kind == "begin")
        assert set(ends) == set(range(1, self.jobs + 1)), "a job was lost"
        if not at_least:
            assert max(begins.values()) == 1, f"a job ran twice: {begins}"
        assert self.states() == Counter(succeeded=self.jobs - self.failing, failed=self.failing) - Counter()
        if not at_least:  # a job that was killed with its shepherd tells no end
            self.check_who_met()
        assert self.claims_held() == 0

    def check_who_met(self) -> bool:
        """A job without a budget met nobody on its device, and others no more than fits; whether any have met."""
        on: dict[str, set[int]] = {}
        met = False
        for job, device, kind, _ in sorted(self.ledger(), key=lambda row: row[3]):
            there = on.setdefault(device, set())
            if kind == "end":
                there.discard(job)
                continue
            there.add(job)
            met |= len(there) > 1
            budgets = [self.budgets_gib[other] for other in there]
            assert len(there) == 1 or all(budgets), f"jobs {there} met on GPU {device}"
            assert sum(budgets) + 0.5 <= BOARD_GIB, f"jobs {there} are too many for GPU {device}"
        return met


@pytest.fixture(params=["alone", "sharing", "standing"])
def yard(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Yard]:
    yield Yard(tmp_path, 6, pause=0.05, failing=1, kind=request.param)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step(yard: Yard, step: str, count: int) -> None:
    killed = yard.start(step, count).wait(timeout=60)
    reached = killed == -signal.SIGKILL
    assert reached or count == 2 or (step == "requested" and yard.standing)  # which asks nobody
    assert yard.finish() == 1  # one job fails on purpose
    yard.check_everything_ran_once()


def _random_kills(yard: Yard, rounds: int, rng: random.Random) -> None:
    for _ in range(rounds):
        process = yard.start()
        try:
            process.wait(timeout=rng.uniform(0.1, 0.6))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "sharing", "standing"])
def test_killed_at_random_times(tmp_path: Path, kind: str) -> None:
    yard = Yard(tmp_path, 40, pause=0.1, kind=kind)
    _random_kills(yard, 12, random.Random(7))
    assert yard.finish() == 0
    yard.check_everything_ran_once()
    assert yard.check_who_met() == (kind == "sharing")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_times_for_long(tmp_path: Path, seed: int) -> None:
    yard = Yard(tmp_path, 60, pause=0.1, kind=("alone", "sharing", "standing")[seed % 3])
    _random_kills(yard, 20, random.Random(seed))
    assert yard.finish() == 0
    yard.check_everything_ran_once()


@pytest.mark.slow
def test_two_at_once_and_one_killed(tmp_path: Path) -> None:
    """A second start is refused work while the first lives, and takes over when it is killed."""
    yard = Yard(tmp_path, 20, pause=0.1)
    first = yard.start()
    _wait_for(lambda: len(yard.ledger()) > 2)
    second = yard.start()
    assert second.wait(timeout=30) == 75
    first.kill()
    first.wait()
    assert yard.finish() == 0
    yard.check_everything_ran_once()


@pytest.mark.slow
def test_shepherds_killed_too(tmp_path: Path) -> None:
    """At least once, then: a job whose shepherd dies runs again, after what is left of it was ended."""
    yard = Yard(tmp_path, 8, pause=0.3)
    first = yard.start()
    _wait_for(lambda: len(yard.ledger()) >= 2)
    for pid in _children(first.pid):
        os.kill(pid, signal.SIGKILL)
    assert first.wait(timeout=60) == 0
    yard.check_everything_ran_once(at_least=True)


@pytest.mark.slow
def test_exit_codes_are_true_after_a_kill(tmp_path: Path) -> None:
    yard = Yard(tmp_path, 3, pause=0.6, failing=2)
    first = yard.start()
    _wait_for(lambda: len(yard.ledger()) == 3)
    first.kill()
    first.wait()
    _wait_for(lambda: len(yard.ledger()) == 6)
    assert yard.finish() == 1
    yard.check_everything_ran_once()
    db = sqlite3.connect(tmp_path / "gpusched-runs/list/queue.db")
    codes = [code for (code,) in db.execute("SELECT exit_code FROM attempts ORDER BY job_id")]
    db.close()
    assert codes == [3, 3, 0]


SUBMIT_STEPS = (
    ("operations.run.submit._open_made", "before"),
    ("operations.run.submit._open_made", "behind"),
    ("host.store.submission.add", "behind"),
    ("host.queue.queue_dirs.QueueDir.ring", "before"),
    ("operations.run.background.start_detached", "before"),
    ("operations.run.logout.scope_words", "before"),
    ("operations.run.background.start_detached", "behind"),
)
KILLED = """
import functools, os, pkgutil, sys
name, when = sys.argv[1:3]
owner = pkgutil.resolve_name("gpusched." + name.rpartition(".")[0])
real = getattr(owner, name.rpartition(".")[2])

@functools.wraps(real)
def fatal(*args, **more):
    if when not in ("before", "behind", *args):  # an argument with which it is called
        return real(*args, **more)
    result = real(*args, **more) if when == "behind" else None
    os.kill(os.getpid(), 9)

setattr(owner, name.rpartition(".")[2], fatal)
from gpusched.cli.main import main
main(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "when"), SUBMIT_STEPS)
def test_submission_that_is_killed(tmp_path: Path, name: str, when: str) -> None:
    """It has added its job or not; another one of the same key makes it one, which runs once."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CRASH": str(tmp_path)}
    settings = {
        "simulate": 1,
        "claims_dir": tmp_path / "claims",
        "max_checks": 1,
        "poll_interval": 0.05,
        "idle_exit": 1,
    }
    (tmp_path / ".config/gpusched").mkdir(parents=True)
    (tmp_path / ".config/gpusched/config.yaml").write_text("".join(f"{key}: {settings[key]}\n" for key in settings))
    submit = ["submit", "--once", "key", "--", "echo ran >> ledger"]
    killed = subprocess.run([sys.executable, "-c", KILLED, name, when, *submit], cwd=tmp_path, env=environment)
    assert killed.returncode == -signal.SIGKILL
    again = [sys.executable, "-m", "gpusched", *submit]
    done = subprocess.run(again, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    queue = tmp_path / ".local/state/gpusched/on" / os.uname().nodename / "default"
    _wait_for(lambda: "INFO job 1 succeeded" in _text(queue / "dispatcher.log"))
    _wait_for(lambda: not locks.is_held(str(queue / "dispatcher.lock")))
    assert (tmp_path / "ledger").read_text() == "ran\n"


EXEC_STEPS = (
    ("host.gpus.tickets.OwnTicket.hold", "before"),
    ("host.gpus.tickets.OwnTicket.hold", "behind"),
    ("host.gpus.tickets.OwnTicket.withdraw", "before"),
    ("host.gpus.claims.Claims.try_acquire", "behind"),
    ("host.queue.interactive.book", "before"),
    ("host.store.attempt_table.start", "behind"),
    ("host.queue.interactive.book", "behind"),
    ("operations.interactive.foreground.pass_on", "behind"),
    ("host.queue.interactive.Booking.close", "before"),
    ("host.store.attempt_table.close", "behind"),
    ("host.queue.interactive.Booking.close", "behind"),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "when"), EXEC_STEPS)
def test_interactive_command_that_is_killed(tmp_path: Path, name: str, when: str) -> None:
    """It leaves no GPU claimed, no ticket that counts, and at most one job, which has ended; the next one runs."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GPUSCHED_CLAIMS_DIR": str(tmp_path / "claims"),
        "GPUSCHED_SIMULATE": "1",
        "GPUSCHED_MAX_CHECKS": "3",
        "GPUSCHED_POLL_INTERVAL": "0.05",
    }
    command = ["exec", "--", "sh", "-c", "echo ran >> ledger"]
    killed = subprocess.run([sys.executable, "-c", KILLED, name, when, *command], cwd=tmp_path, env=environment)
    assert killed.returncode == -signal.SIGKILL
    claims = tmp_path / "claims"
    _wait_for(lambda: not any(locks.is_held(str(path)) for path in claims.glob("*.lock")))
    before = _text(tmp_path / "ledger")
    assert before == ("ran\n" if "lose" in name else "")
    again = subprocess.run([sys.executable, "-m", "gpusched", *command], cwd=tmp_path, env=environment)
    assert again.returncode == 0 and _text(tmp_path / "ledger") == f"{before}ran\n"
    assert not list(claims.glob("ticket-*"))
    queue = tmp_path / ".local/state/gpusched/on" / os.uname().nodename / "default"
    with closing(sqlite3.connect(queue / "queue.db")) as db:
        states = [state for (state,) in db.execute("SELECT state FROM jobs ORDER BY id")]
    assert states[-1] == "succeeded" and set(states[:-1]) <= {"failed", "succeeded"} and len(states) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("step", ["hold", "withdraw"])
def test_dispatcher_that_is_killed_at_its_ticket(tmp_path: Path, step: str, when: str) -> None:
    yard = Yard(tmp_path, 5, pause=0.3)
    name = f"host.gpus.tickets.OwnTicket.{step}"
    command = [sys.executable, "-c", KILLED, name, when, "run", "list.txt"]
    assert subprocess.run(command, cwd=tmp_path, env=yard.environment).returncode == -signal.SIGKILL
    assert yard.finish() == 0
    yard.check_everything_ran_once()
    assert not list((tmp_path / "claims").glob("ticket-*"))


CHANGES = {  # of one transaction, each with what it leaves behind
    "cancel 1": "SELECT state = 'cancelled' FROM jobs WHERE id = 1",
    "hold 1": "SELECT state = 'held' FROM jobs WHERE id = 1",
    "prio 1 5": "SELECT prio = 5 FROM jobs WHERE id = 1",
    "edit 1 --after 2": "SELECT count(*) FROM dependencies",
    "pause": "SELECT value <> '' FROM meta WHERE key = 'paused'",
    "set max-gpus=1": """SELECT value = '{"max_gpus": 1}' FROM meta WHERE key = 'set'""",
}


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("words", CHANGES)
def test_change_that_is_killed(tmp_path: Path, words: str, is_committed: bool) -> None:
    """It was made as a whole or not at all, whenever it was killed; the same one again is made."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GPUSCHED_AUTOSTART": "false"}
    command = [sys.executable, "-m", "gpusched"]
    for _ in range(2):
        subprocess.run([*command, "submit", "--", "true"], cwd=tmp_path, env=environment, check=True)
    step = ("host.queue.queue_dirs.QueueDir.ring", "before")
    step = step if is_committed else ("host.store.connection.Store.execute", "COMMIT")
    argv = [sys.executable, "-c", KILLED, *step, *words.split()]
    assert subprocess.run(argv, cwd=tmp_path, env=environment).returncode == -signal.SIGKILL
    database = tmp_path / ".local/state/gpusched/on" / os.uname().nodename / "default/queue.db"

    def is_done() -> bool:
        with closing(sqlite3.connect(database)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert db.execute("SELECT count(*), (SELECT sum(n) FROM counts) FROM jobs").fetchone() == (2, 2)
            return bool((db.execute(CHANGES[words]).fetchone() or [False])[0])

    assert is_done() is is_committed
    subprocess.run([*command, *words.split()], cwd=tmp_path, env=environment, check=False)
    assert is_done()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _wait_for(condition: object, timeout_s: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    text = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in text.stdout.split()]
