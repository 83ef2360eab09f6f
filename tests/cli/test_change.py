"""`gpusched cancel`, `requeue` and `stop`: what they store, whom they tell, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.cli.change import change
from gpusched.common import processes
from gpusched.core.model import Attributes, JobSpec, JobState, Requirements
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, request_table, submission
from gpusched.views import words
from tests.support.sample import NOW, PID, Sample9, a_board, dispatched_by, stand_still

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample9]:
    stand_still(monkeypatch, tmp_path)
    made = Sample9(tmp_path)
    made.fill()
    queue_dirs.remember(made.place)
    yield made
    made.close()


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues whose dispatchers were woken."""
    found: list[str] = []
    monkeypatch.setattr(QueueDir, "ring", lambda self: found.append(self.path))
    return found


def call(capsys: Capture, *argv: str, code: int = 0) -> str:
    assert front.run(list(argv)) == code, capsys.readouterr().err
    return capsys.readouterr().out


# ---- cancel ----------------------------------------------------------------------------------------


def test_cancel_stores_the_wish_and_wakes_the_dispatcher(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    out = call(capsys, "cancel", "3-6", "8", "3", code=1)
    assert out == (
        "job 3: is being stopped: TERM, and KILL after the grace time\n"
        "job 4: has failed before: nothing to cancel\n"
        "jobs 5-6: cancelled\n"
        "job 8: was cancelled before\n"
    )
    assert rung == [sample.place.path]
    assert (
        job_table.get(sample.store, 3).cancel_requested_at == NOW
        and job_table.get(sample.store, 3).state is JobState.RUNNING
    )
    assert [job_table.get(sample.store, n).state for n in (5, 6)] == [JobState.CANCELLED] * 2


def test_cancel_all(sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatched_by(monkeypatch, PID)
    assert "jobs 5-7: cancelled\n" in call(capsys, "cancel", "--all")
    assert call(capsys, "cancel", "--all") == "job 3: is being stopped: TERM, and KILL after the grace time\n"


def test_a_removed_line_that_a_person_cancels_stays_so(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert call(capsys, "cancel", "9") == "job 9: was cancelled before\n"
    assert job_table.get(sample.store, 9).cause == ""


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["cancel"], "no job is named\n  ids such as 3 or 3-7, or --all"),
        (["cancel", "2", "--all"], "--all and jobs by id do not go together"),
        (["cancel", "5", "10"], "there is no job 10 in the queue"),
        (["cancel", "5-10"], "it has jobs 1 to 9"),
        (["cancel", "7-5"], "there is no job 7-5"),
        (["cancel", "five"], "'five' names no job"),
        (["cancel", "9" * 30], "names no job"),
        (["requeue"], "no job is named\n  ids such as 3 or 3-7, or --failed"),
        (["requeue", "0"], "there is no job 0"),
    ],
)
def test_a_wrong_id_changes_nothing(argv: list[str], says: str, sample: Sample9, capsys: Capture) -> None:
    before = sample.store.data_version()
    assert front.run(argv) == 2
    assert says in capsys.readouterr().err
    assert sample.store.data_version() == before


def live_attempt(sample: Sample9, job_id: int) -> tuple[subprocess.Popen[bytes], int]:
    """A process that stands for the shepherd of a running job, and the descriptor of its life lock."""
    shepherd = subprocess.Popen(["sleep", "60"])
    life = attempt_dir.make(attempt_dir.directory(sample.place.state, job_id, 1))
    assert locks.try_lock(life)
    start = processes.process_start(shepherd.pid)
    attempt_dir.write_mark(life, {"pid": shepherd.pid, "start_ticks": start, "boot_id": processes.boot_id()})
    return shepherd, life


def test_without_a_dispatcher_the_shepherd_is_told(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    shepherd, life = live_attempt(sample, 3)
    try:
        out = call(capsys, "cancel", "3")
        assert out == "job 3: is being stopped by its own shepherd, since no dispatcher works on this queue\n"
        assert shepherd.wait(5) == -signal.SIGTERM
    finally:
        shepherd.kill()
        os.close(life)
    assert job_table.get(sample.store, 3).cancel_requested_at == NOW  # so that the next dispatcher knows why it ended
    assert "no longer seen running" in call(capsys, "cancel", "3")


# ---- requeue ---------------------------------------------------------------------------------------


def test_requeue_gives_the_tries_back(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    out = call(capsys, "requeue", "1-3", "8", "5", code=1)
    assert out == (
        "job 1: has succeeded: only failed and cancelled jobs are queued again\n"
        "jobs 2, 8: queued again\n"
        "job 3: is running: only failed and cancelled jobs are queued again\n"
        "job 5: is queued: only failed and cancelled jobs are queued again\n"
    )
    assert rung == [sample.place.path]
    assert (job_table.get(sample.store, 2).state, job_table.get(sample.store, 2).tries) == (JobState.QUEUED, 0)


def test_requeue_all_that_failed_and_say_who_runs_them(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert call(capsys, "requeue", "--failed") == (
        "jobs 2, 4: queued again\nno dispatcher works on this queue; to run what is queued: gpusched run commands.txt\n"
    )
    assert call(capsys, "requeue", "--failed") == "no job has failed\n"


def test_requeue_while_the_dispatcher_leaves(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    sample.publish(a_board(closed="stopping (Ctrl-C)"))
    assert "its dispatcher is stopping (Ctrl-C); to run what is queued: " in call(capsys, "requeue", "2")


# ---- stop ------------------------------------------------------------------------------------------


def test_stop_without_a_dispatcher(sample: Sample9, capsys: Capture) -> None:
    assert call(capsys, "stop") == (
        "no dispatcher works on gpusched-runs/commands: there is nothing to stop\n"
        "1 job may still run by itself: gpusched status -q commands\n"
    )
    assert request_table.open_requests(sample.store) == []


@pytest.mark.parametrize(
    ("argv", "kind", "says"),
    [
        (["stop"], "stop", "starts nothing new, and leaves at the end of 1 running job\nto stop them too: "),
        (["stop", "--now"], "stop_now", "stops 1 running job, queues what it stops again, and leaves\n"),
    ],
)
def test_stop_waits_for_the_answer(
    argv: list[str], kind: str, says: str, sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    asked: list[str] = []

    def answer(self: QueueDir) -> None:
        store = Store(self.database)
        for request, wish, _ in request_table.open_requests(store):
            asked.append(wish)
            request_table.acknowledge(store, request, NOW)
        store.close()

    monkeypatch.setattr(QueueDir, "ring", answer)
    assert says in call(capsys, *argv)
    assert asked == [kind]


def test_stop_takes_the_wish_back_when_its_dispatcher_is_gone(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([PID, PID])  # while -q is resolved, and at the first look
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: next(seen, None))
    assert "has just left by itself" in call(capsys, "stop")
    assert request_table.open_requests(sample.store) == []  # the next dispatcher is not stopped by it


def test_stop_says_when_nobody_answers(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    monkeypatch.setattr(change, "ACK_WAIT_S", 0.0)
    assert "has been asked, but has not answered in 0 s" in call(capsys, "stop")
    assert [kind for _, kind, _ in request_table.open_requests(sample.store)] == ["stop"]


def test_a_real_lock_is_seen_and_rung(sample: Sample9, capsys: Capture) -> None:
    """No stand-in: this process is the dispatcher, and is woken through the pipe."""
    lock = sample.place.take()
    assert lock is not None
    pipe = os.open(sample.place.wake, os.O_RDWR | os.O_NONBLOCK)
    try:

        def work() -> None:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                try:
                    if os.read(pipe, 10):
                        break
                except BlockingIOError:
                    time.sleep(0.005)
            store = Store(sample.place.database)
            for request, _, _ in request_table.open_requests(store):
                request_table.acknowledge(store, request, NOW)
            store.close()

        worker = threading.Thread(target=work)
        worker.start()
        out = call(capsys, "stop")
        worker.join()
        assert f"(pid {os.getpid()}) starts nothing new" in out
    finally:
        os.close(pipe)
        os.close(lock)


@pytest.mark.parametrize(
    ("ids", "text"), [([1], "1"), ([3, 1, 2], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9"), ([7, 5], "5, 7")]
)
def test_ranges(ids: list[int], text: str) -> None:
    assert words.ranges(ids) == text


@pytest.mark.slow
def test_the_words_come_out_of_a_pipe(sample: Sample9) -> None:
    done = subprocess.run([sys.executable, "-m", "gpusched", "requeue", "2"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("job 2: queued again\n"), done.stderr


# ---- which queue, which job ------------------------------------------------------------------------


def test_a_job_may_be_named(sample: Sample9, capsys: Capture) -> None:
    spec = JobSpec(b"sleep 9", b"sleep 9", 40, attributes=Attributes(name="wide"))
    submission.submit(sample.store, [spec], lambda _: Requirements(name="wide"), NOW, append=True)
    assert call(capsys, "cancel", "wide") == "job 10: cancelled\n"


def test_what_is_to_be_changed_is_named_where_several_are_dispatched(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sample9(sample.home, "other")
    for made in (sample, other):
        queue_dirs.remember(made.place)
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: 4711)
    assert front.run(["cancel", "5"]) == 2
    assert "2 queues are being dispatched" in capsys.readouterr().err
    assert front.run(["cancel", "5", "-q", "commands"]) == 0
    assert front.run(["status"]) == front.run(["status", "-q", "other"]) == 0
    capsys.readouterr()
    front.run(["explain", "5"])  # what is only shown is shown of one, which is said
    assert "queue other, the newest that is dispatched" in capsys.readouterr().err
    other.close()
