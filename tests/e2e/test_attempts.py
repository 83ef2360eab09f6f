"""The files and the processes of attempts: what a job may do to its own directory, and what is found of a lost one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.host import locks
from tests.support.box import Box, Running, wait_for
from tests.support.paths import TESTS

pytestmark = pytest.mark.slow

CRASH_DRIVER = [sys.executable, str(TESTS / "support" / "crash_driver.py")]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path)) if path.exists() else []


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["/*", ""])
def test_a_job_may_clear_its_own_directory(box: Box, what: str) -> None:
    ended = box.run(f'echo ran >> ran; touch "$GPUSCHED_ATTEMPT_DIR/x"; rm -rf "$GPUSCHED_ATTEMPT_DIR"{what}; env')
    assert ended.code == 0, ended.text
    assert box.read("ran") == "ran\n"
    (row,) = box.jobs()
    assert (row.outcome, len(row.attempts)) == ("exited 0", 1)
    assert "/lives/" not in row.said()


@pytest.mark.parametrize("instead", ["true", "mkdir", "mkfifo", "ln -s /dev/null"])
def test_an_attempt_whose_life_file_is_replaced_is_lost(box: Box, instead: str) -> None:
    life = "gpusched-runs/list/lives/1.1"
    replace = f"sleep 0.3; rm {life}; {instead} {life}"
    ended = box.run(f'echo $PPID >> shepherds; [ "$GPUSCHED_ATTEMPT" = 2 ] || {{ {replace}; }}')
    assert ended.code == 0, ended.text
    (row,) = box.jobs()
    assert [a.outcome.kind.value for a in row.attempts if a.outcome] == ["lost", "exited"]
    assert len(set(box.read("shepherds").split())) == 1  # it is not taken for a process that is left of the first
    assert "its life file is gone" in ended.out
    assert "begins anew" not in ended.text


@pytest.mark.parametrize("restored", [False, True])
def test_the_record_of_an_earlier_queue_counts_for_nothing(box: Box, restored: bool) -> None:
    """queue.db is removed and the records are left; the new queue dies before it has started the job of that number."""

    def die_at(step: str) -> None:
        ended = box.spawn("list.txt", step, "1", program=CRASH_DRIVER).wait()
        assert ended.code == -signal.SIGKILL, ended.text

    box.write("echo ran >> ran")
    die_at("handed over")
    life = box.queue() / "lives/1.1"
    wait_for(lambda: "record=whole" in life.read_text())
    stale = life.read_bytes()
    for path in box.queue().glob("queue.db*"):
        path.unlink()
    die_at("booked")
    if restored:
        life.write_bytes(stale)
    assert box.gpusched("run", "list.txt").code == 0
    assert box.read("ran") == "ran\n" * 2
    assert [len(row.attempts) for row in box.jobs()] == [2]


def test_what_is_booked_is_removed_and_what_jobs_keep_stays(box: Box) -> None:
    progress = 'echo \'{"done": 1, "total": 2}\' > "$GPUSCHED_PROGRESS"; echo said'
    long = f"true {'x' * 140_000}"
    ended = box.run(progress, 'touch "$GPUSCHED_ATTEMPT_DIR/kept"; exit 3', long, options="--retries 1")
    assert ended.code == 1, ended.text
    assert names(box.queue() / "lives") == []
    assert {name: names(box.queue() / "attempts" / name) for name in names(box.queue() / "attempts")} == {
        "2.1": ["kept"],
        "2.2": ["kept"],
    }
    assert box.gpusched("logs", "1").out == "said\n"
    assert box.metrics()["jobs"][0]["progress"] == {"done": 1, "total": 2}


def test_the_next_start_removes_what_a_killed_dispatcher_has_booked(box: Box) -> None:
    box.write("true", "echo two")
    killed = box.spawn("list.txt", "booked", "2", program=CRASH_DRIVER, environment={"GPUSCHED_MAX_GPUS": "1"}).wait()
    assert killed.code == -signal.SIGKILL, killed.text
    lives, attempts = box.queue() / "lives", box.queue() / "attempts"
    begun = [name for name in names(lives) if not name.endswith(".seen")]
    assert begun == ["1.1", "2.1"]  # the first is booked, the second has not begun
    for old in ("7.1", "8.1"):  # as version 0.1 left them
        (attempts / old).mkdir()
        (attempts / old / "life").touch()
    (attempts / "8.1" / "kept").touch()
    with open(lives / "9.1", "wb") as held:  # a job of a queue.db that was removed still runs
        assert locks.try_lock(held.fileno())
        assert box.gpusched("run", "list.txt").code == 0
    assert names(lives) == ["9.1"]
    assert (names(attempts), names(attempts / "8.1")) == (["8.1"], ["kept"])


# ---- processes -------------------------------------------------------------------------------------

# what setproctitle does to the environment, in a process that has left its session and its parents; slow to end
HIDE = """
import ctypes, os, signal, sys, time
if sys.argv[1] == "own session":
    if os.fork():
        os._exit(0)
    os.setsid()
if os.fork():
    os._exit(0)
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
ctypes.memset(int(fields[47]), 0, int(fields[48]) - int(fields[47]))
def end(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
assert b"GPUSCHED" not in open("/proc/self/environ", "rb").read()
open("hidden.new", "w").write(str(os.getpid()))
os.rename("hidden.new", "hidden")
time.sleep(600)
"""
ONCE = 'if [ -e hidden ]; then grep -qs "State:.[RSD]" "/proc/$(cat hidden)/status" && touch beside; true; else {}; fi'


@pytest.mark.parametrize(
    ("where", "poll", "killed"),
    [
        ("own session", "0.05", ["shepherd"]),
        ("own session", "0.05", ["dispatcher", "shepherd"]),
        pytest.param("same session", "60", ["shepherd"], marks=pytest.mark.soak),
        ("same session", "60", ["dispatcher", "shepherd"]),
    ],
)
def test_a_process_without_its_environment_is_found(tmp_path: Path, where: str, poll: str, killed: list[str]) -> None:
    """The shepherd is killed: nothing starts on the GPU before the last process of its job has been ended."""
    with Box(tmp_path, gpus="1", environment={"GPUSCHED_POLL_INTERVAL": poll}) as box:
        (box.work / "hide.py").write_text(HIDE)
        running = box.start("run", box.write(ONCE.format(f"python3 -S hide.py '{where}'; sleep 600")))
        wait_for(lambda: box.read("hidden"))
        mark, seen = box.queue() / "lives/1.1", box.queue() / "lives/1.1.seen"
        wait_for(lambda: "session=" in mark.read_text(), "the mark of the shepherd")
        if where == "own session":  # without its environment only a poll beside its shepherd can tell whose it is
            wait_for(lambda: seen.exists() and f"{box.read('hidden')} " in seen.read_text(), "a poll that sees it")
        life = dict(line.split("=", 1) for line in mark.read_text().split("\n") if line)
        if "dispatcher" in killed:
            running.signal(signal.SIGKILL)
            running.wait()
        os.kill(int(life["pid"]), signal.SIGKILL)
        if "dispatcher" in killed:
            running = box.start("run", "list.txt")
        assert running.wait(150).code == 0  # a claim that is not free yet is tried again at the next poll
        assert not (box.work / "beside").exists()
        assert [attempt.outcome and attempt.outcome.kind.value for attempt in box.jobs()[0].attempts] == [
            "lost",
            "exited",
        ]


# ---- shepherds that are stopped --------------------------------------------------------------------

STOP = "kill -STOP $PPID; "
STOP_ALWAYS = "trap '' TERM; while :; do kill -STOP $PPID; done"


def start_one_that_stops_its_shepherd(box: Box, command: str) -> Running:
    running = box.start("run", box.write(f"touch begun; {command}"), "--grace", "0.5")
    wait_for(lambda: (box.work / "begun").exists())
    time.sleep(0.3)
    return running


def test_a_job_that_stops_its_shepherd_ends_as_usual(box: Box) -> None:
    ended = box.run(STOP + "exit 3")
    assert (ended.code, box.jobs()[0].outcome) == (1, "exited 3")


@pytest.mark.parametrize("command", [STOP + "sleep 600", STOP_ALWAYS])
@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_stopped_shepherd_keeps_nobody_from_cancelling(box: Box, command: str, is_adopted: bool) -> None:
    running = start_one_that_stops_its_shepherd(box, command)
    if is_adopted:
        running.signal(signal.SIGKILL)
        running.wait()
        running = box.start("run", "list.txt", "--grace", "0.5")
        running.wait_until_said("taken over")
    assert box.gpusched("cancel", "1").code == 0
    assert running.wait(20).code == 1
    assert box.jobs()[0].outcome == "cancelled"
    box.wait_until_empty()


@pytest.mark.parametrize("command", [STOP + "sleep 600", STOP_ALWAYS])
def test_a_stopped_shepherd_keeps_no_dispatcher_from_leaving(box: Box, command: str) -> None:
    running = start_one_that_stops_its_shepherd(box, command)
    running.signal(signal.SIGTERM)
    assert running.wait(20).code == 143
    assert box.jobs()[0].outcome == "interrupted"
    box.wait_until_empty()


def test_without_a_dispatcher_a_stopped_shepherd_is_continued_to_cancel(box: Box) -> None:
    running = start_one_that_stops_its_shepherd(box, STOP + "sleep 600")
    running.signal(signal.SIGKILL)
    running.wait()
    for pid in box.processes():
        if "shepherd" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGSTOP)
    assert box.gpusched("cancel", "1").code == 0
    wait_for(lambda: box.processes() == [], "the end of the job", timeout_s=20)
