"""Signals, stops and ends of processes: to the dispatcher, to its jobs, and to what jobs leave behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import UNTIL_GO, Box, Running, wait_for

pytestmark = pytest.mark.slow

# tells every signal that it gets, and goes on
COUNT = """
import os, signal, sys, time
def note(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(signal.Signals(number).name + "\\n")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT):
    signal.signal(number, note)
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    time.sleep(0.02)
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        (box.work / "count.py").write_text(COUNT)
        yield box


def count(name: str, seconds: float) -> str:
    return f"exec python3 -S count.py {name} {seconds}"


def ready(box: Box, *jobs: int) -> bool:
    """Whether these jobs have said so."""
    rows = {row.job.id: row for row in box.jobs()}
    return all(job in rows and rows[job].log and "ready" in rows[job].said() for job in jobs)


def start(box: Box, *lines: str, options: str = "") -> Running:
    return box.start("run", box.write(*lines), *options.split())


# ---- Ctrl-C ----------------------------------------------------------------------------------------


def test_one_interrupt_lets_running_jobs_finish_and_starts_nothing(box: Box) -> None:
    running = start(box, count("a", 1.0), count("b", 1.0), "true")
    wait_for(lambda: ready(box, 1, 2))
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    ended = running.wait()
    assert ended.code == 130
    assert box.states() == ["succeeded", "succeeded", "queued"]
    assert box.read("a") == box.read("b") == ""  # no signal reached them
    assert "nothing new starts" in ended.out and "once more" in ended.out
    found = box.metrics()
    assert (found["successful_jobs"], found["queued_jobs"]) == (2, 1)
    assert box.jobs()[2].attempts == []
    assert box.gpusched("run", "list.txt").code == 0
    assert box.states() == ["succeeded"] * 3
    assert [len(row.attempts) for row in box.jobs()] == [1, 1, 1]


def test_two_interrupts_stop_the_jobs_and_queue_them_again(box: Box) -> None:
    running = start(box, count("a", 3600), count("b", 3600), "true", options="--grace 0.5")
    wait_for(lambda: ready(box, 1, 2))
    os.killpg(running.pid, signal.SIGINT)
    running.wait_until_said("nothing new starts")
    os.killpg(running.pid, signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130
    assert "Traceback" not in ended.text
    assert box.states() == ["queued", "queued", "queued"]
    assert [row.outcome for row in box.jobs()] == ["interrupted", "interrupted", ""]
    assert [row.job.tries for row in box.jobs()] == [0, 0, 0]
    assert box.read("a").splitlines().count("SIGTERM") == 1  # once, and no other
    assert set(box.read("a").splitlines()) <= {"SIGTERM", "SIGCONT"}
    assert box.metrics()["failed_jobs"] == 0
    box.wait_until_empty()
    assert box.claimed() == set()


def test_terminate_is_the_same_as_two_interrupts(box: Box) -> None:
    running = start(
        box, "sleep 3600", "trap 'sleep 0.2; echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    )
    wait_for(lambda: ready(box, 2) and box.running() == 2)
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert [row.outcome for row in box.jobs()] == ["interrupted", "interrupted"]
    assert box.states() == ["queued", "queued"]
    assert box.read("saved") == "saved\n"
    box.wait_until_empty()


def test_interrupt_before_anything_runs(box: Box) -> None:
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = start(box, "true")
    wait_for(lambda: (box.queue() / "devices.json").exists())
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert box.states() == ["queued"]
    assert box.metrics()["queued_jobs"] == 1


def test_a_job_that_ends_after_the_first_interrupt_keeps_its_outcome(box: Box) -> None:
    running = start(box, "echo ready; sleep 0.6; exit 5", "true")
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert box.jobs()[0].outcome == "exited 5"


def test_interrupts_from_a_real_terminal(box: Box) -> None:
    """Ctrl-C typed at a terminal: the line discipline signals the foreground group."""
    import pty

    box.write(count("a", 1.0), "true", "true #2")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        words = ["python", "-m", "gpusched", "run", "list.txt", "--max-gpus", "1"]
        os.execvpe("python", words, {**box.environment, "TERM": "xterm", "COLUMNS": "100"})
    said = b""

    def listen(until: object = None) -> bytes:
        nonlocal said
        while True:
            try:
                more = os.read(terminal, 65536)
            except OSError:
                return said
            if not more:
                return said
            said += more
            if callable(until) and until():
                return said

    listen(lambda: ready(box, 1))
    os.write(terminal, b"\x03")
    listen()
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130, said.decode()
    assert b"Traceback" not in said
    assert box.states() == ["succeeded", "queued", "queued"]


# ---- leaving without the jobs ----------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGQUIT, 131), (signal.SIGKILL, -9)])
def test_the_next_start_adopts_what_goes_on(box: Box, number: int, code: int) -> None:
    held = f"echo ready; {UNTIL_GO}"
    lines = [f"{held}; exit 7", f"{held}; echo end >> ends", "echo third >> ends"]
    running = start(box, *lines)
    wait_for(lambda: ready(box, 1, 2))
    running.signal(number)
    ended = running.wait()
    assert ended.code == code
    assert box.states() == ["running", "running", "queued"]
    assert len(box.claimed()) == 2
    starts = box.start("run", "list.txt")
    wait_for(lambda: starts.said().count("taken over") == 2)
    (box.work / "go").touch()
    assert starts.wait().code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 7", "exited 0", "exited 0"]
    assert sorted(box.read("ends").split()) == ["end", "third"]
    assert [len(row.attempts) for row in box.jobs()] == [1, 1, 1]
    assert box.claimed() == set()


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGKILL])
def test_true_exit_codes_of_what_ended_meanwhile(box: Box, number: int) -> None:
    running = start(box, "echo ready; sleep 0.3; exit 7", "echo ready; sleep 0.3; kill -6 $$", "true")
    wait_for(lambda: ready(box, 1, 2))
    running.signal(number)
    running.wait()
    box.wait_until_empty()
    assert box.claimed() == set()
    gone_at = time.time()
    assert box.gpusched("run", "list.txt").code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 7", "signalled 6", "exited 0"]
    assert box.metrics()["jobs"][0]["ended_at"] <= gone_at  # when it ended, not when that was seen


def test_a_claim_outlives_a_killed_dispatcher_and_another_queue_waits(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        running = start(box, "echo ready; sleep 1; date +%s%N > first")
        wait_for(lambda: ready(box, 1))
        running.signal(signal.SIGKILL)
        running.wait()
        other = box.gpusched("run", box.write("date +%s%N > second", name="other.txt"))
        assert other.code == 0
        assert int(box.read("first")) < int(box.read("second"))


def test_hang_up_goes_on_without_the_terminal(box: Box) -> None:
    running = start(box, f"echo ready; {UNTIL_GO}", "true", "true #2")
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGHUP)
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 0
    assert box.states() == ["succeeded"] * 3
    assert "the terminal is gone" in (box.queue() / "dispatcher.log").read_text()


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_closed_terminal(box: Box, term: str) -> None:
    """The window is closed: SIGHUP, and every write to the terminal fails from then on."""
    import pty

    box.write(f"echo ready; {UNTIL_GO}; sleep 0.2", "sleep 0.1", "true", "true #2")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(box.work)
        words = ["python", "-m", "gpusched", "run", "list.txt", "--max-gpus", "1"]
        os.execvpe("python", words, {**box.environment, "TERM": term})
    wait_for(lambda: ready(box, 1))
    os.close(terminal)
    (box.work / "go").touch()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert box.states() == ["succeeded"] * 4
    assert "Traceback" not in (box.queue() / "dispatcher.log").read_text()


def test_nohup_is_kept(box: Box) -> None:
    running = box.spawn("run", box.write(f"echo ready; {UNTIL_GO}"), program=["nohup", "python", "-m", "gpusched"])
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGHUP)
    (box.work / "go").touch()
    assert running.wait().code == 0


def test_what_was_ignored_at_the_start_stays_so(box: Box) -> None:
    """A background job of a script: the shell has it ignore SIGINT and SIGQUIT."""
    box.write(f"echo ready; {UNTIL_GO}")
    running = box.spawn("-c", "trap '' INT QUIT; exec python -m gpusched run list.txt", program=["bash"])
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGINT)
    running.signal(signal.SIGQUIT)
    (box.work / "go").touch()
    assert running.wait().code == 0
    assert box.states() == ["succeeded"]


def test_a_reader_that_leaves(box: Box) -> None:
    """`gpusched run … | head -1`: the queue goes on to its end."""
    box.write("sleep 0.1", "sleep 0.1 #2", "sleep 0.1 #3", "sleep 0.1 #4")
    script = "python -m gpusched run list.txt | head -1; exit ${PIPESTATUS[0]}"
    ended = box.spawn("-c", script, program=["bash"]).wait()
    assert box.states() == ["succeeded"] * 4
    assert ended.code == 0
    assert "Traceback" not in ended.err


# ---- shutdown of the box ---------------------------------------------------------------------------


def _term_everything(box: Box) -> None:
    for pid in box.processes():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass


def test_a_shutdown_is_no_failure(box: Box) -> None:
    running = start(box, "sleep 3600", "echo ready; sleep 3600", "true")
    wait_for(lambda: ready(box, 2) and box.running() == 2)
    _term_everything(box)
    running.wait()
    box.wait_until_empty()
    again = box.start("run", "list.txt", "--time-limit", "0.3").wait()
    assert again.code == 1
    first, second, third = box.jobs()
    for row in (first, second):
        assert [a.outcome.kind.value for a in row.attempts if a.outcome] == ["interrupted", "timed_out"]
        assert row.job.tries == 1
    assert third.state == "succeeded"


def test_a_shutdown_while_nobody_dispatches(box: Box) -> None:
    running = start(box, "sleep 3600", "echo ready; sleep 3600")
    wait_for(lambda: ready(box, 2) and box.running() == 2)
    running.signal(signal.SIGKILL)
    running.wait()
    _term_everything(box)
    box.wait_until_empty()
    running = box.start("run", "list.txt")
    wait_for(lambda: [len(row.attempts) for row in box.jobs()] == [2, 2])
    assert [row.attempts[0].outcome.kind.value for row in box.jobs() if row.attempts[0].outcome] == ["interrupted"] * 2
    running.signal(signal.SIGTERM)
    running.wait()


# ---- stops by request ------------------------------------------------------------------------------


def test_cancel_of_running_and_waiting_jobs(box: Box) -> None:
    running = start(box, count("a", 3600), f"echo ready; {UNTIL_GO}", "touch third", options="--grace 0.5")
    wait_for(lambda: ready(box, 1, 2))
    assert box.gpusched("cancel", "1", "3").code == 0
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 1
    assert box.states() == ["cancelled", "succeeded", "cancelled"]
    assert box.jobs()[0].outcome == "cancelled"
    assert "SIGTERM" in box.read("a")
    assert not (box.work / "third").exists()
    assert box.gpusched("run", "list.txt").code == 1  # a person cancelled them: they stay so
    assert box.states() == ["cancelled", "succeeded", "cancelled"]


def test_cancel_of_an_adopted_job(box: Box) -> None:
    running = start(box, count("a", 3600), options="--grace 0.3")
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGKILL)
    running.wait()
    running = box.start("run", "list.txt")
    running.wait_until_said("taken over")
    assert box.gpusched("cancel", "1").code == 0
    assert running.wait().code == 1
    assert box.jobs()[0].outcome == "cancelled"
    box.wait_until_empty()


def test_cancel_while_nobody_dispatches(box: Box) -> None:
    running = start(box, count("a", 3600), "true", options="--grace 0.3")
    wait_for(lambda: ready(box, 1))
    running.signal(signal.SIGQUIT)
    running.wait()
    assert box.gpusched("cancel", "1").code == 0
    assert box.gpusched("run", "list.txt").code == 1
    assert box.jobs()[0].outcome == "cancelled"
    box.wait_until_empty()


def test_stop_and_stop_now(box: Box) -> None:
    running = start(box, f"echo ready; {UNTIL_GO}", "true", "true #2", options="--max-gpus 1")
    wait_for(lambda: ready(box, 1))
    assert box.gpusched("stop").code == 0
    (box.work / "go").touch()
    running.wait()
    assert box.states() == ["succeeded", "queued", "queued"]
    running = box.start("run", box.write(count("b", 3600), name="b.txt"), "--grace", "0.3")
    wait_for(lambda: (rows := box.jobs("b")) and rows[0].log and "ready" in rows[0].said())
    assert box.gpusched("stop", "--now").code == 0
    running.wait()
    assert box.jobs("b")[0].outcome == "interrupted"


def test_a_shell_that_is_stopped_does_not_go_on_with_its_next_command(box: Box) -> None:
    lines = [f"sleep 3600; touch next.{n}" for n in range(6)]
    assert box.run(*lines, options="--time-limit 0.2").code == 1
    assert [row.outcome for row in box.jobs()] == ["timed_out"] * 6
    assert not list(box.work.glob("next.*"))


# ---- what a command leaves behind ------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "nohup sleep 0.8 > /dev/null 2>&1 &",
        "(sleep 0.8 &) ; true",
        "setsid sleep 0.8 > /dev/null 2>&1 < /dev/null &",
        "python3 -S -c 'import os; os.fork() and os._exit(0); os.setsid(); os.fork() or os.system(\"sleep 0.8\")'",
    ],
)
def test_a_gpu_is_kept_until_the_last_process_has_ended(tmp_path: Path, line: str) -> None:
    with Box(tmp_path, gpus="1") as box:
        running = box.start("run", box.write(line, "pgrep -x sleep; true"), "--force")
        wait_for(lambda: any("sleep" in command for command in box.commands()))
        assert box.claimed() == {box.uuid(0)}
        assert running.wait().code == 0
        first, second = box.jobs()
        assert first.last.ended_at is not None
        assert first.last.ended_at - first.last.started_at >= 0.8
        assert second.last.started_at >= first.last.ended_at


def test_leftovers_are_named(box: Box) -> None:
    running = start(box, "sleep 1.5 & echo out", options="--force")
    life = box.queue() / "lives/1.1"
    wait_for(lambda: life.exists() and "leftovers=" in life.read_text())
    assert " sleep" in life.read_text()
    running.wait_until_said("its GPU is kept for them")
    assert running.wait().code == 0


def test_leftovers_can_be_stopped(box: Box) -> None:
    began = time.monotonic()
    ended = start(box, "setsid sleep 3600 & sleep 3600 & exit 3", options="--force --leftovers stop --grace 1").wait()
    assert ended.code == 1
    assert time.monotonic() - began < 30
    (row,) = box.jobs()
    assert (row.outcome, row.note) == ("exited 3", "leftovers stopped")
    box.wait_until_empty()


def test_the_code_of_a_leftover_counts(box: Box) -> None:
    ended = start(box, "(sleep 0.3; exit 4) &", "(sleep 0.3; exit 0) & exit 6", options="--force").wait()
    assert ended.code == 1
    assert [(row.outcome, row.note) for row in box.jobs()] == [("exited 4", "background"), ("exited 6", "")]


def test_the_time_limit_goes_on_for_leftovers(box: Box) -> None:
    ended = start(box, "setsid sleep 3600 &", options="--force --time-limit 0.8 --grace 0.5").wait()
    assert ended.code == 1
    (row,) = box.jobs()
    assert row.outcome == "timed_out" and row.last.outcome is not None and row.last.outcome.exit_code == 0
    assert re.fullmatch(r"the command had ended \(exit 0\), but left: \d+ sleep", row.note)
    assert re.search(rf"job 1 failed: time limit, after [\d.]+ s: {re.escape(row.note)}\n", ended.out)
    hint = f"hint  {row.note}; with --leftovers stop such processes are ended, and the command's own exit code counts"
    assert hint in box.gpusched("explain", "1").out
    box.wait_until_empty()


@pytest.mark.parametrize("how", ["cancel", "time limit"])
def test_everything_of_a_job_is_ended_and_nothing_else(box: Box, how: str) -> None:
    """Grandchildren, those that left the session, those that ignore TERM, those that are stopped."""
    (box.work / "deep.sh").write_text(
        "setsid sh -c 'trap \"\" TERM; sleep 2001; sleep 2002' &\n"
        "(setsid setsid sleep 2003 &)\n"
        "sleep 2004 & kill -STOP $!\n"
        "bash -c 'sleep 2005; true'\n"
    )
    limit = "--time-limit 1" if how == "time limit" else ""
    running = start(box, "bash deep.sh", f"{UNTIL_GO}; touch survived", options=f"--grace 0.5 {limit}")
    wait_for(lambda: sum("sleep 200" in command for command in box.commands()) >= 4)
    if how == "cancel":
        assert box.gpusched("cancel", "1").code == 0
    wait_for(lambda: box.states()[0] in ("cancelled", "failed"))
    assert [command for command in box.commands() if "sleep 200" in command] == []
    if how == "cancel":
        assert box.states()[1] == "running"
    (box.work / "go").touch()
    running.wait()
    assert box.jobs()[0].outcome == ("timed_out" if limit else "cancelled")
    assert (box.work / "survived").exists() == (how == "cancel")
