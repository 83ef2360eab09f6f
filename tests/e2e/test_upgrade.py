"""Version 0.1 (commit e8adee7) meets this one: its queues are taken over, and its dispatchers go on by these files."""

from __future__ import annotations

import array
import fcntl
import json
import marshal
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpusched.host.store import Store
from tests.support.box import Box, Row, wait_for
from tests.support.paths import CASES, ROOT

pytestmark = pytest.mark.slow

FIXTURE = CASES / "queue-0.1"
SHARD = (
    *("shard", "--total", "40", "--num-shards", "4", "--suffix", "shard", "--max-gpus", "1"),
    *("--log-dir", "gpusched-runs/part", "--merge", "part_{suffix}.jsonl", "--merge-output", "all.jsonl"),
)
PART = ("--", "./part.sh", "{start}", "{end}", "part_{suffix}.jsonl")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    """A box on which version 0.1 has left two queues behind."""
    with Box(tmp_path, "2xT4") as made:
        for path in FIXTURE.rglob("*"):
            if path.is_file() and path.name != "README.md":
                target = made.work / path.relative_to(FIXTURE)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = path.read_text("utf-8").replace("@ROOT@", str(tmp_path)).replace("@PYTHON@", sys.executable)
                if path.name == "queue.sql":
                    make_database(target.with_name("queue.db"), text)
                else:
                    target.write_text(text, "utf-8")
                    shutil.copymode(path, target)
        yield made


def make_database(path: Path, script: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()


def touch(box: Box, *names: str) -> None:
    """Make the files that let waiting commands end, and failing ones succeed."""
    for name in names:
        (box.work / name).touch()


def runs(box: Box, ledger: str = "ledger.txt") -> dict[str, int]:
    """How often each command has run, the runs of version 0.1 included."""
    return dict(Counter(box.read(ledger).split()))


def outcomes(row: Row) -> list[str]:
    return [attempt.outcome.kind.value for attempt in row.attempts if attempt.outcome is not None]


# ---- queues ----------------------------------------------------------------------------------------


def test_commands_that_only_read_show_an_old_queue(box: Box) -> None:
    database = box.queue() / "queue.db"
    before = database.read_bytes()
    (status,) = json.loads(box.gpusched("status", "-q", "list", "--json").out)["queues"]
    states = {job["id"]: job["state"] for job in status["jobs"]}
    assert " ".join(states[n] for n in sorted(states)) == (
        "succeeded failed running queued cancelled queued held cancelled"
    )
    shown = box.gpusched("status", "-q", "list")
    assert shown.code == 0 and "2 queued, 1 held, 1 succeeded, 1 failed, 2 cancelled" in shown.out
    explained = {n: box.gpusched("explain", str(n), "-q", "list").out for n in range(1, 9)}
    assert "exit 1" in explained[2] and explained[2].count("exit 1") >= 2
    assert "waits after job 3 (long, " in explained[6]
    assert all("Traceback" not in text for text in explained.values())
    assert database.read_bytes() == before


def test_the_same_list_goes_on_with_an_old_queue(box: Box) -> None:
    touch(box, "ready")
    done = box.gpusched("run", "list.txt", "--max-gpus", "1")
    assert done.code == 1, done.text
    rows = box.jobs()
    assert " ".join(row.state for row in rows) == (
        "succeeded failed succeeded succeeded cancelled succeeded held cancelled"
    )
    assert outcomes(rows[2]) == ["lost", "exited"]  # its shepherd is gone: judged lost, and run again
    assert runs(box) == {"done": 1, "bad": 2, "long": 2, "wide": 1, "after": 1}


def test_the_sets_of_an_old_queue_are_counted_anew(box: Box) -> None:
    database = box.queue() / "queue.db"
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("UPDATE jobs SET state = 'cancelled', cause = 'not_needed' WHERE id = 3")
        members = db.execute("SELECT count(*) FROM members WHERE upstream_id = 3").fetchone()
        assert members > (0,)
        db.execute("UPDATE sets SET cancelled = 1 WHERE id IN (SELECT set_id FROM members WHERE upstream_id = 3)")
    for _ in range(2):
        Store(str(database)).close()
        with closing(sqlite3.connect(database)) as db:
            assert db.execute("SELECT sum(cancelled), sum(unneeded) FROM sets").fetchone() == (0, *members)


def test_failed_jobs_of_an_old_queue_are_tried_again_when_asked_for(box: Box) -> None:
    touch(box, "ready", "mended")
    done = box.gpusched("run", "list.txt", "--max-gpus", "1", "--retry-failed")
    assert "Traceback" not in done.text
    assert [row.state for row in box.jobs()][:6] == ["succeeded"] * 6
    assert runs(box) == {"done": 1, "bad": 3, "long": 2, "wide": 1, "after": 1, "behind": 1}


def test_the_same_shards_go_on_with_an_old_plan(box: Box) -> None:
    touch(box, "ready")
    first = box.gpusched(*SHARD, *PART)
    assert first.code == 1, first.text
    assert runs(box, "parts.txt") == {"0": 1, "10": 1, "20": 2, "30": 1}
    touch(box, "mended")
    second = box.gpusched(*SHARD, "--retry-failed", *PART)
    assert second.code == 0, second.text
    assert runs(box, "parts.txt") == {"0": 1, "10": 2, "20": 2, "30": 1}
    assert [json.loads(line)["item"] for line in box.read("all.jsonl").splitlines()] == list(range(40))


# ---- processes -------------------------------------------------------------------------------------

# how a launcher of version 0.1 starts a shepherd
BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpusched.host.shepherd import main; "
    "main(int(sys.argv[2])); import os; os._exit(0)"
)


class OldShepherd:
    """A shepherd started as a launcher of version 0.1 does, by the package of this version."""

    def __init__(self, box: Box) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(ROOT), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
                env=box.environment,
            )

    def start(self, box: Box, job: int, number: int, command: str) -> Path:
        """Hand an attempt over, in the format of version 0.1, with its lock; the directory of the attempt."""
        directory = box.queue() / "attempts" / f"{job}.{number}"
        directory.mkdir(exist_ok=True)
        (box.queue() / "logs").mkdir(exist_ok=True)
        life = os.open(directory / "life", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
        names = {"GPUSCHED_QUEUE": str(box.queue()), "GPUSCHED_JOB_ID": str(job), "GPUSCHED_ATTEMPT": str(number)}
        order = {
            "op": "start",
            "dir": str(directory),
            "argv": [b"/bin/sh", b"-c", command.encode()],
            "cwd": os.fsencode(box.work),
            "environment": {name.encode(): value.encode() for name, value in names.items()},
            "log": str(box.queue() / "logs" / "old.log"),
            "error_log": "",
            "time_limit": None,
            "grace": 10.0,
            "leftovers": "wait",
            "marker": tuple(f"{name}={value}".encode() for name, value in names.items()),
        }
        descriptors = array.array("i", [life])
        self.channel.sendmsg([marshal.dumps(order)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        os.close(life)
        return directory

    def hear(self) -> tuple[str, bool]:
        """The next message to the launcher: the directory of an attempt that has ended, and whether to go on."""
        self.channel.settimeout(30)
        directory, reusable = marshal.loads(self.channel.recv(8192))
        return directory, reusable

    def leave(self) -> None:
        self.channel.close()
        self.process.wait(30)


def fields(directory: Path) -> dict[str, str]:
    text = (directory / "life").read_text("utf-8").rstrip("\n")
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_an_old_launcher_runs_jobs_by_the_shepherd_of_this_version(box: Box) -> None:
    shepherd = OldShepherd(box)
    for number, command, code in ((2, "echo here; exit 0", "0"), (3, "exit 7", "7")):
        directory = shepherd.start(box, 3, number, command)
        assert shepherd.hear() == (str(directory), True)
        record = fields(directory)
        assert (record["exit_code"], record["record"]) == (code, "whole")
    assert (box.queue() / "logs" / "old.log").read_text() == "here\n"
    directory = shepherd.start(box, 3, 4, "sleep 60")
    wait_for(lambda: "pid" in fields(directory))
    shepherd.channel.send(marshal.dumps({"op": "stop", "dir": str(directory)}))
    assert shepherd.hear() == (str(directory), True)
    assert (fields(directory)["stopped"], fields(directory)["signal"]) == ("requested", "15")
    shepherd.leave()


def test_a_job_that_an_old_dispatcher_left_running_is_adopted(box: Box) -> None:
    shepherd = OldShepherd(box)
    directory = shepherd.start(box, 3, 1, "echo long >> ledger.txt; until test -e ready; do sleep 0.05; done")
    wait_for(lambda: "pid" in fields(directory))
    shepherd.channel.close()  # the old dispatcher is gone
    run = box.start("run", "list.txt", "--max-gpus", "1")
    run.wait_until_said("job 3")
    assert box.states()[2] == "running"
    touch(box, "ready")
    assert run.wait().code == 1
    shepherd.process.wait(30)
    assert outcomes(box.jobs()[2]) == ["exited"] and box.states()[2] == "succeeded"
    assert runs(box) == {"done": 1, "bad": 2, "long": 2, "wide": 1, "after": 1}


def test_an_old_dispatcher_gets_an_answer_from_the_nvml_child_of_this_version(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "gpusched.host.nvml"],
            cwd="/",
            env={"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(60)
        ours.sendall(b"null\n")
        answer = json.loads(ours.makefile("rb").readline())
        assert {"devices", "samples", "nameless", "versions", "at"} <= answer.keys() or len(answer["trouble"]) == 2
    assert child.wait(30) == (1 if "trouble" in answer else 0)
