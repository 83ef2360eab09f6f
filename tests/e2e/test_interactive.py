"""A GPU in the foreground: what the keys of a terminal do, how it ends, and who still holds the GPU then."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import GPUSCHED, Box, wait_for
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

EXEC = " ".join([*GPUSCHED, "exec"])


class Seat(Box):
    """A box whose jobs are those of the default queue."""

    def queue(self, name: str = "default") -> Path:
        return self.home / ".local/state/gpusched/on" / os.uname().nodename / name

    def last(self) -> str:
        """How the newest job has ended, as people see it: its state, and the end of its attempt."""
        row = self.jobs("default")[-1]
        outcome = row.attempts[-1].outcome
        if outcome is None:
            return row.state
        return f"{row.state}: {outcome.kind.value} {outcome.exit_code if outcome.signal is None else outcome.signal}"

    def runs(self) -> bool:
        return self.states("default")[-1:] == ["running"]


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    with Seat(tmp_path, "1") as seat:
        yield seat


def shell(seat: Seat) -> Terminal:
    """An interactive shell with job control on a terminal of its own."""
    environment = {**seat.environment, "PS1": "$ ", "SHELL": "/bin/bash"}
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], seat.work, environment, columns=160)
    terminal.await_text("$")
    return terminal


def test_help_lists_what_is_advised(seat: Seat) -> None:
    for verb in ("exec", "reserve"):
        assert "--idle-timeout TIME" in seat.gpusched(verb, "--help").out


# ---- the keys --------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_command_and_its_code_is_passed_on(seat: Seat) -> None:
    with shell(seat) as terminal:
        terminal.press(f"{EXEC} bash -c 'trap \"exit 9\" INT; echo up; while :; do sleep 0.1; done'; echo code $?\r")
        terminal.await_text("\nup")
        terminal.press("\x03")
        terminal.await_text("code 9")
    assert seat.last() == "failed: exited 9" and not seat.claimed()


def test_stopped_and_brought_back_to_the_foreground_twice(seat: Seat) -> None:
    with shell(seat) as terminal:
        terminal.press(f"{EXEC} bash -c 'echo up; while ! [ -e go ]; do sleep 0.1; done; echo went; exit 3'\r")
        terminal.await_text("\nup")
        for _ in range(2):
            terminal.press("\x1a")
            terminal.await_text("Stopped")
            assert seat.claimed() == {seat.uuid(0)}
            terminal.press("clear\r")
            terminal.listen(lambda: "Stopped" not in "\n".join(terminal.shown()))
            terminal.press("fg\r")
            wait_for(lambda: all(_state(pid) != "T" for pid in seat.processes()), "all to go on")
            time.sleep(0.3)
            assert all(_state(pid) != "T" for pid in seat.processes())
        (seat.work / "go").touch()
        terminal.await_text("went")
        terminal.press("echo code $?\r")
        terminal.await_text("code 3")
    assert seat.last() == "failed: exited 3"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def test_inner_shell_has_job_control_of_its_own(seat: Seat) -> None:
    with shell(seat) as terminal:
        terminal.press(f"{EXEC}\r")
        terminal.await_text("for 8h (--for); it ends after 2h without a process of yours there (--idle-timeout)")
        wait_for(lambda: any(command.startswith("/bin/bash") for command in seat.commands()))
        terminal.press("PS1='inner> '\r")
        terminal.await_text("\ninner>")
        terminal.press("sleep 100\r")
        wait_for(lambda: any(command.startswith("sleep 100") for command in seat.commands()))
        terminal.press("\x1a")
        terminal.await_text("Stopped")
        terminal.press("kill %1; echo gpu=$CUDA_VISIBLE_DEVICES,$CUDA_DEVICE_ORDER\r")
        terminal.await_text("gpu=0,PCI_BUS_ID")
        terminal.press("sleep 200\r")
        wait_for(lambda: any(command.startswith("sleep 200") for command in seat.commands()))
        terminal.press("\x03")
        wait_for(lambda: not any(command.startswith("sleep 200") for command in seat.commands()))
        assert seat.runs()
        terminal.press("exit 5\r")
        wait_for(lambda: not seat.runs())
        terminal.press("echo code $?\r")
        terminal.await_text("code 5")


def test_command_sees_the_size_of_the_terminal_change(seat: Seat) -> None:
    with shell(seat) as terminal:
        code = 'trap "echo now $(stty size)" WINCH; echo up; while ! [ -e go ]; do sleep 0.1; done'
        (seat.work / "sized.sh").write_text(
            "trap 'echo now $(stty size)' WINCH\necho up\n" + code.partition("echo up; ")[2]
        )
        terminal.press(f"{EXEC} bash sized.sh\r")
        terminal.await_text("\nup")
        terminal.resize(100, 30)
        terminal.await_text("now 30 100")
        (seat.work / "go").touch()
        wait_for(lambda: seat.last() == "succeeded: exited 0")


# ---- its time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["sleep 100", "bash --norc -i"])
def test_time_that_is_over_ends_it(seat: Seat, command: str) -> None:
    with shell(seat) as terminal:
        terminal.press(f"{EXEC} --for 2s {command}; echo code $?\r")
        terminal.await_text("its time is over (--for): ending it")
        terminal.await_text("\ncode 1")
    assert seat.last().startswith("failed: timed_out") and not seat.claimed()


def test_time_goes_by_when_the_terminal_is_gone(seat: Seat) -> None:
    with shell(seat) as terminal:
        terminal.press(f"(trap '' HUP; {EXEC} --for 3s sleep 100)\r")
        terminal.await_text("for 3s (--for)")
    wait_for(lambda: not seat.runs() and not seat.claimed(), "its end")
    assert seat.last() == "failed: timed_out 15"


def test_time_goes_by_while_it_is_stopped(seat: Seat) -> None:
    with shell(seat) as terminal:
        terminal.press(f"{EXEC} --for 3s sleep 100\r")
        terminal.await_text("for 3s (--for)")
        wait_for(lambda: any(command.startswith("sleep 100") for command in seat.commands()))
        terminal.press("\x1a")
        terminal.await_text("Stopped")
        wait_for(lambda: not seat.runs() and not seat.claimed(), "its end")
    assert seat.last() == "failed: timed_out 15"


def test_idle_one_is_ended_and_one_that_uses_its_gpu_is_not(seat: Seat) -> None:
    options = ["--idle-timeout", "1", "--idle-action", "stop"]
    used = seat.gpusched("exec", *options, "--", *simjob(seat, hold_s=2.5))
    assert (used.code, seat.last()) == (0, "succeeded: exited 0"), used.text
    row = seat.jobs("default")[-1].attempts[-1]
    assert row.usage.peak_memory_bytes == 300 << 20
    idle = seat.gpusched("exec", *options, "--", "sleep", "100")
    assert idle.code == 143 and "no process of yours was on it for 1s (--idle-timeout): ending it" in idle.err
    outcome = seat.jobs("default")[-1].attempts[-1].outcome
    assert outcome is not None and outcome.cause == "idle" and seat.last() == "failed: timed_out 15"


def simjob(seat: Seat, hold_s: float) -> list[str]:
    from tests.support.box import SIMJOB

    return [*SIMJOB.split(), "--mem", "300", "--hold", str(hold_s)]


# ---- the wait --------------------------------------------------------------------------------------


def test_wait_that_runs_out_says_why_and_leaves_nothing(seat: Seat) -> None:
    seat.colleague(0, 9000)
    ended = seat.gpusched("exec", "--wait", "1", "true")
    assert ended.code == 75 and "waits for a GPU (GPU 0 is used by bo (8.8 GiB" in ended.err, ended.err
    assert not seat.jobs("default") and not seat.claimed()


def test_memory_that_no_gpu_has_is_refused_at_once(seat: Seat) -> None:
    ended = seat.gpusched("exec", "--mem", "400G", "true")
    assert ended.code == 2 and "only 0 of your GPUs can have so much memory free" in ended.err


def test_wait_for_all_jobs_does_not_wait_for_interactive_ones(seat: Seat) -> None:
    seat.start("exec", "sleep", "100")
    wait_for(seat.runs)
    assert seat.gpusched("wait", "--timeout", "5").code == 0


def test_gpu_is_had_alone_and_the_second_one_waits(seat: Seat) -> None:
    first = seat.start("exec", "sleep", "2")
    wait_for(seat.runs)
    second = seat.gpusched("exec", "true")
    assert second.code == 0 and "GPU 0: claimed by your gpusched for an interactive session" in second.err, second.err
    assert first.wait().code == 0 and seat.states("default") == ["succeeded", "succeeded"]


def test_command_that_is_not_there_waits_for_no_gpu(seat: Seat) -> None:
    seat.gpusched("reserve", "--for", "1h")
    seat.write("true", name="list.txt")
    for program, code, says in (("pythn", 127, "No such file or directory"), ("./list.txt", 126, "Permission denied")):
        ended = seat.gpusched("exec", program, "x.py")
        assert ended.code == code and f"{program}: cannot be started: {says}" in ended.err, ended.text
        assert "waits" not in ended.err and len(seat.jobs("default")) == 1


def test_command_that_cannot_be_started(seat: Seat) -> None:
    (seat.work / "script").write_text("#!/no/such/interpreter\n")
    (seat.work / "script").chmod(0o755)
    ended = seat.gpusched("exec", "./script")
    assert ended.code == 127 and "./script: cannot be started: No such file" in ended.err
    assert seat.last() == "failed: not_started None" and not seat.claimed()


# ---- who holds the GPU -----------------------------------------------------------------------------


def test_gpu_is_kept_by_what_the_command_leaves_running_which_is_named(seat: Seat) -> None:
    ended = seat.gpusched("exec", "bash", "-c", "sleep 3 & exit 4")
    assert ended.code == 4 and "is kept by what the command left running: " in ended.err and "sleep" in ended.err
    assert seat.claimed() == {seat.uuid(0)} and seat.last() == "failed: exited 4"
    wait_for(lambda: not seat.claimed())


def test_parent_that_was_killed_leaves_the_gpu_to_its_command(seat: Seat) -> None:
    running = seat.start("exec", "bash", "-c", "while ! [ -e go ]; do sleep 0.1; done")
    wait_for(lambda: any(command.startswith("bash -c") for command in seat.commands()))
    os.kill(running.process.pid, signal.SIGKILL)
    running.wait()
    shown = seat.gpusched("status").out
    assert "is interactive" in shown and "no dispatcher is needed" in shown and seat.runs()
    assert seat.gpusched("exec", "--wait", "0.5", "true").code == 75
    (seat.work / "go").touch()
    wait_for(lambda: not seat.claimed())
    assert "no jobs" in seat.gpusched("status").out
    assert seat.last() == "failed: lost None"


def test_one_that_is_killed_at_any_moment_leaves_neither_a_claim_nor_a_running_job(seat: Seat) -> None:
    for tenths in range(1, 7):
        running = seat.start("exec", "bash", "-c", "sleep 0.1")
        time.sleep(tenths / 10)
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.process.pid, signal.SIGKILL)
        running.wait()
        wait_for(lambda: not seat.claimed())
        seat.gpusched("status")
        assert "running" not in seat.states("default") and "queued" not in seat.states("default")
    assert seat.gpusched("exec", "true").code == 0


def test_cancelled_and_never_queued_again(seat: Seat) -> None:
    running = seat.start("exec", "sleep", "100")
    wait_for(lambda: any(command.startswith("sleep 100") for command in seat.commands()))
    assert seat.gpusched("cancel", "1").out == "job 1: is being stopped\n"
    assert running.wait().code == 143 and seat.last() == "cancelled: cancelled 15"
    refused = seat.gpusched("requeue", "1")
    assert refused.code != 0 and "is an interactive one, which nobody starts again" in refused.out
    assert seat.gpusched("exec", "false").code == 1
    assert seat.gpusched("requeue", "--failed").text.count("no job was queued again") == 1
    assert "interactive" in seat.gpusched("history").out
    assert "went to its terminal" in seat.gpusched("logs", "1").err
    assert "all" in seat.gpusched("usage").out


def test_it_counts_in_the_limit_of_a_dispatcher_that_leaves_it_alone(tmp_path: Path) -> None:
    with Seat(tmp_path, "2") as seat:
        running = seat.start("exec", "bash", "-c", "while ! [ -e go ]; do sleep 0.1; done")
        wait_for(seat.runs)
        seat.gpusched("submit", "--no-start", "--", "true")
        assert seat.gpusched("wait", "--timeout", "0.2").code == 124
        dispatcher = seat.start("start", "--max-gpus", "1")
        wait_for(lambda: "this queue holds 1 of the 1 GPUs that it may" in seat.gpusched("explain", "2").out)
        assert seat.states("default") == ["running", "queued"]
        seat.gpusched("stop", "--now")
        dispatcher.wait()
        assert seat.runs() or seat.states("default") == ["running", "queued"]
        dispatcher = seat.start("start", "--max-gpus", "1")
        (seat.work / "go").touch()
        assert running.wait().code == 0
        wait_for(lambda: seat.states("default") == ["succeeded", "succeeded"])
        seat.gpusched("stop")
        dispatcher.wait()


# ---- a reservation ---------------------------------------------------------------------------------


def test_reservation_holds_a_gpu_until_it_is_given_back(seat: Seat) -> None:
    ended = seat.gpusched("reserve", "--for", "1h")
    assert (ended.code, ended.out) == (0, "export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0\n"), ended.text
    assert " is yours until " in ended.err and "unset CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES\n" in ended.err
    assert seat.claimed() == {seat.uuid(0)} and seat.runs()
    assert "for a reservation until " in seat.gpusched("devices").out
    assert seat.gpusched("reserve", "--end", "7").code == 2 and seat.runs()
    assert "reservation 1 is given back; in the shell that had it: unset CUDA_" in seat.gpusched("reserve", "--end").err
    assert not seat.runs() and not seat.claimed()
    assert seat.last() == "succeeded: exited 0"
    assert "your reservations: none" in seat.gpusched("reserve", "--end").err


@pytest.mark.parametrize(
    "words", ["--for 1h --wait 0.2", "--for 1h --gpus 9", "--for nonsense", "--wait 3s", "--fro 1h"]
)
def test_eval_of_a_reservation_that_fails_fails(seat: Seat, words: str) -> None:
    seat.gpusched("reserve", "--for", "1h")
    ended = seat.gpusched("reserve", *words.split())
    assert ended.code != 0 and ended.out == "false\n", ended.text
    assert seat.gpusched("reserve", "--help").out.startswith("Usage")


def test_eval_of_a_reservation_that_is_ended_while_it_waits_fails(seat: Seat) -> None:
    seat.gpusched("reserve", "--for", "1h")
    waiting = seat.start("reserve", "--for", "1h")
    waiting.wait_until_said("GPU 0")
    waiting.signal(signal.SIGTERM)
    ended = waiting.wait()
    assert (ended.code, ended.out) == (143, "false\n"), ended.text


def test_reservation_ends_at_its_time_and_when_nothing_was_there_for_long(seat: Seat) -> None:
    assert seat.gpusched("reserve", "--for", "1").code == 0
    wait_for(lambda: seat.last() == "succeeded: exited 0" and not seat.claimed())
    assert seat.gpusched("reserve", "--for", "1h", "--idle-timeout", "1", "--idle-action", "stop").code == 0
    wait_for(lambda: seat.last() == "failed: timed_out None" and not seat.claimed())


def test_reservation_whose_process_was_killed_is_closed_by_who_looks(seat: Seat) -> None:
    seat.gpusched("reserve", "--for", "1h")
    (holder,) = seat.processes()
    os.kill(holder, signal.SIGKILL)
    wait_for(lambda: not seat.claimed())
    seat.gpusched("status")
    assert seat.last() == "failed: lost None"


def test_shell_of_a_reservation_waits_for_no_gpu_that_only_it_holds(tmp_path: Path) -> None:
    with Seat(tmp_path, "2") as seat:
        seat.gpusched("reserve", "--for", "1h")
        seat.write("true")
        for words in ("run list.txt", "exec true", "reserve --for 1h"):
            refused = seat.gpusched(*words.split(), CUDA_VISIBLE_DEVICES="0")
            assert refused.code == 2 and "allows only what your reservation holds" in refused.err, refused.text
            assert "unset CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES" in refused.err
        assert seat.gpusched("run", "list.txt", CUDA_VISIBLE_DEVICES="0,1").code == 0
        seat.gpusched("reserve", "--end")
        wait_for(lambda: not seat.claimed())
        assert seat.gpusched("exec", "true", CUDA_VISIBLE_DEVICES="0").code == 0


# ---- a block of Python -----------------------------------------------------------------------------

BLOCK = """
import os, subprocess, sys, time, gpusched
with gpusched.gpu(mem="10G") as device:
    print(device.index, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"], flush=True)
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
print("CUDA_VISIBLE_DEVICES" in os.environ, flush=True)
"""


def test_block_has_a_gpu_until_its_forked_children_have_ended(seat: Seat) -> None:
    import sys

    ended = seat.spawn("-c", BLOCK, program=[sys.executable]).wait()
    assert (ended.code, ended.out) == (0, "0 0 PCI_BUS_ID\nFalse\n"), ended.text
    assert seat.claimed() == {seat.uuid(0)} and seat.last() == "succeeded: exited 0"
    wait_for(lambda: not seat.claimed())


def test_block_is_refused_once_cuda_is_initialised(seat: Seat) -> None:
    import sys

    code = (
        "import sys, types, gpusched\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
        "with gpusched.gpu(): print('in')\n"
    )
    ended = seat.spawn("-c", code, program=[sys.executable]).wait()
    assert ended.code == 1 and "CUDA is initialised already" in ended.err and not ended.out
