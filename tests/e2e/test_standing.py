"""Submission to a standing queue: its dispatcher is started, stays for what comes, leaves, and loses no job."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched import __version__
from gpusched.common import simulation
from gpusched.host.store import Store
from tests.support.box import GPUSCHED, UNTIL_GO, Box, wait_for
from tests.support.paths import ROOT


class Desk(Box):
    """A box whose settings stand in the user's file, since a dispatcher in the background gets none from the shell."""

    def __init__(self, root: Path, **settings: object) -> None:
        super().__init__(root, gpus="")
        for name in [name for name in self.environment if name.startswith("GPUSCHED_")]:
            del self.environment[name]
        self.settings = {
            "simulate": "2",
            "claims_dir": self.claims,
            "max_checks": 1,
            "poll_interval": 0.05,
            "grace": 2,
            "idle_exit": 30,
            **settings,
        }
        self.configure()

    def configure(self, **settings: object) -> None:
        """Write the user's file anew, with these settings beside the others."""
        self.settings |= settings
        path = self.home / ".config/gpusched/config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{name}: {value}\n" for name, value in self.settings.items() if value is not None))

    def queue(self, name: str = "default") -> Path:
        return self.home / ".local/state/gpusched/on" / os.uname().nodename / name

    def submit(self, *words: str, **environment: str | None) -> list[int]:
        ended = self.gpusched("submit", *words, **environment)
        assert ended.code == 0, ended.text
        return [int(word) for word in ended.out.split()]

    def dispatcher(self) -> int | None:
        """The pid of the dispatcher, by its session: those of the jobs are others."""
        for pid in self.processes():
            with contextlib.suppress(FileNotFoundError):  # it has just ended
                if b"\0start\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def tally(self) -> Counter[str]:
        return Counter(row.state for row in self.jobs("default"))

    def wait_for_ends(self, succeeded: int) -> None:
        wait_for(lambda: self.tally() == Counter(succeeded=succeeded), "all to end")

    def dispatches(self) -> int:
        with Store(str(self.queue() / "queue.db"), read_only=True) as store:
            return int(store.scalar("SELECT count(*) FROM dispatches"))

    def log(self) -> str:
        return (self.queue() / "dispatcher.log").read_text()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as desk:
        yield desk


@pytest.mark.parametrize("again", range(2))
def test_twenty_submissions_at_once_start_one_dispatcher(desk: Desk, again: int) -> None:
    submissions = [desk.start("submit", "--", "true") for _ in range(20)]
    ended = [submission.wait() for submission in submissions]
    assert [each.code for each in ended] == [0] * 20, ended
    assert sorted(int(each.out) for each in ended) == list(range(1, 21))
    desk.wait_for_ends(20)
    assert desk.dispatches() == 1
    assert desk.log().count("INFO dispatching") == 1 and "leaving" not in desk.log()


def _submit_and_wait(desk: Desk, jobs: int) -> None:
    """Submit jobs to a dispatcher that leaves whenever it has none, at random moments."""
    rng = random.Random(jobs)
    for _ in range(jobs):
        desk.submit("--", "true")
        time.sleep(rng.uniform(0, 0.6))
    desk.wait_for_ends(jobs)


def test_submissions_at_the_moment_of_the_exit(tmp_path: Path) -> None:
    with Desk(tmp_path, idle_exit=0.1) as desk:
        _submit_and_wait(desk, 8)
        assert desk.dispatches() > 1


@pytest.mark.soak
def test_many_submissions_at_the_moment_of_the_exit(tmp_path: Path) -> None:
    with Desk(tmp_path, idle_exit=0) as desk:
        _submit_and_wait(desk, 200)


def test_dispatcher_that_was_killed_is_started_again(desk: Desk) -> None:
    desk.submit("--", "sleep 1; echo whole")
    wait_for(lambda: desk.tally()["running"] == 1)
    killed = desk.dispatcher()
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    desk.submit("--", "true")
    desk.wait_for_ends(2)
    first = desk.jobs("default")[0]
    assert len(first.attempts) == 1 and first.said() == "whole\n"
    assert desk.dispatcher() != killed


def test_nothing_of_the_shell_stays(desk: Desk) -> None:
    """Neither its directory, its GPUs, its settings, its terminal, nor a file that it has open."""
    read, write = os.pipe()
    with subprocess.Popen(
        [*GPUSCHED, "submit", "--", "true"],
        cwd=desk.work,
        env={**desk.environment, "CUDA_VISIBLE_DEVICES": "1", "GPUSCHED_MAX_GPUS": "1", "PWD": str(desk.work)},
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.communicate() == (b"1\n", b"")
    os.close(write)
    os.set_blocking(read, False)
    assert os.read(read, 1) == b""  # nobody else has the other end
    os.close(read)
    desk.wait_for_ends(1)
    pid = desk.dispatcher()
    assert pid is not None
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.getsid(pid) == pid
    assert [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)] == [
        "/dev/null",
        *[f"{desk.queue()}/dispatcher.log"] * 2,
    ]
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0] for entry in environment}
    assert not names & {b"CUDA_VISIBLE_DEVICES", b"GPUSCHED_MAX_GPUS", b"PWD", b"OLDPWD"}
    assert str(desk.work).encode() not in b"\0".join(environment)


def test_log_of_a_dispatcher_in_the_background_has_each_line_once(desk: Desk) -> None:
    desk.submit("--", "exit 3")
    wait_for(lambda: desk.tally() == Counter(failed=1))
    desk.submit("--", "true")
    wait_for(lambda: desk.tally()["succeeded"] == 1)
    texts = [line.split(" ", 2)[2] for line in desk.log().splitlines()]
    assert len(texts) == len(set(texts)), desk.log()
    assert sum("exit 3" in text and "failed" in text for text in texts) == 1


def test_a_dispatcher_in_the_background_claims_where_the_shell_says(tmp_path: Path) -> None:
    with Desk(tmp_path, claims_dir=None) as desk:
        desk.submit("--", "true", GPUSCHED_CLAIMS_DIR=str(desk.claims), GPUSCHED_SIMULATE="7")
        wait_for(lambda: desk.states("default") == ["succeeded"], "the end")
        (device,) = desk.jobs("default")[0].attempts[0].devices
        assert (desk.claims / f"{device.uuid}.lock").exists()


def test_waiting_in_a_script_never_guesses_the_queue(desk: Desk) -> None:
    assert desk.run("true", "false", name="list.txt").code == 1
    desk.submit("--", "true")
    wait_for(lambda: desk.states("default") == ["succeeded"], "the end")
    refused = desk.gpusched("wait", "1")
    assert (refused.code, refused.out) == (2, "")
    assert "it is not clear which queue is meant" in refused.err and "list/JOB, default/JOB" in refused.err
    assert desk.gpusched("wait", "default/1").code == 0 and desk.gpusched("wait", "list/2").code == 1


@pytest.mark.parametrize("how", ["--no-start", "autostart: false"])
def test_no_dispatcher_is_started_where_none_is_wanted(desk: Desk, how: str) -> None:
    if how == "--no-start":
        desk.submit("--no-start", "--", "true")
    else:
        desk.configure(autostart="false")
        desk.submit("--", "true")
    time.sleep(1)
    assert desk.dispatcher() is None and desk.tally() == Counter(queued=1)
    assert desk.gpusched("start", "--idle-exit", "0").code == 0
    assert desk.tally() == Counter(succeeded=1)


def test_start_detached_goes_by_what_was_stated(desk: Desk) -> None:
    """The flags and variables of a start by hand hold, in place of those of the file."""
    desk.submit("--no-start", "--", "sleep 30")
    desk.submit("--no-start", "--", "sleep 30")
    ended = desk.gpusched("start", "--detach", "--max-gpus", "1", GPUSCHED_MAX_CHECKS="2")
    assert ended.code == 0 and f"{desk.queue()}" in ended.err
    wait_for(lambda: desk.tally()["running"] == 1)
    again = desk.gpusched("start", "--detach")
    assert again.code == 75 and "dispatched already" in again.err
    assert desk.tally() == Counter(running=1, queued=1)


def test_a_stop_right_after_the_submission_is_heard(desk: Desk) -> None:
    """The dispatcher has the lock, and has not begun yet."""
    desk.submit("--", "sleep 1; true")
    stopped = desk.gpusched("stop", "-q", "default")
    assert "starts nothing new, and leaves" in stopped.out
    wait_for(lambda: desk.dispatcher() is None, "the dispatcher to leave")
    assert "gpusched stop: nothing new starts" in desk.log()


@pytest.mark.parametrize("how", [[], ["--now"]])
def test_a_job_that_is_submitted_while_the_dispatcher_leaves_gets_another_one(desk: Desk, how: list[str]) -> None:
    desk.submit("--", "echo $$ > begun; trap 'sleep 1; exit' TERM; sleep 3 & wait; sleep 1")
    wait_for(lambda: (desk.work / "begun").exists(), "the job to run")
    assert desk.gpusched("stop", "-q", "default", *how).code == 0
    desk.submit("--", "true")
    wait_for(lambda: [row.state for row in desk.jobs("default")][-1] == "succeeded", "the second job to end")
    assert desk.dispatches() == 2


def test_what_waited_before_a_stop_goes_on_waiting(desk: Desk) -> None:
    desk.configure(max_gpus=1)
    desk.submit("--", "touch begun; sleep 1")
    desk.submit("--", "true")
    wait_for(lambda: (desk.work / "begun").exists(), "the first job to run")
    assert desk.gpusched("stop", "-q", "default").code == 0
    wait_for(lambda: desk.dispatcher() is None, "the dispatcher to leave")
    assert desk.tally() == Counter(succeeded=1, queued=1)
    assert desk.dispatches() == 1


def test_what_can_never_start_is_said_wherever_one_looks(desk: Desk) -> None:
    desk.submit("--gpus", "7", "--", "true")
    wait_for(lambda: (desk.queue() / "devices.json").exists(), "the dispatcher to publish the GPUs")
    why = "waits in vain: wants 7 GPUs, and 2 are allowed here"
    again = desk.gpusched("submit", "--gpus", "7", "--", "true")
    assert (again.out, again.err) == ("2\n", f"gpusched: job 2: {why}\n")
    assert desk.gpusched("submit", "--mem", "1G", "--", "true").err == ""
    assert "waits in vain: wants 9216000 MiB" in desk.gpusched("submit", "--mem", "9000G", "--", "true").err
    assert f"jobs 1-2: {why.replace('waits', 'wait')}" in desk.gpusched("wait", "--timeout", "1").err
    for verb in ("explain", "status", "status -v"):
        assert why.removeprefix("waits") in desk.gpusched(*verb.split(), "-q", "default").out, verb
    following = desk.start("run", "--gpus", "7", "--", "true")
    following.wait_until_said(f"job 5 is queued: {why}")


def test_status_shows_at_once_where_a_job_runs_and_that_the_dispatcher_leaves(desk: Desk) -> None:
    """Between two looks at the GPUs, a minute apart, a job starts, and another one in the foreground."""
    desk.submit("--", "true")
    desk.wait_for_ends(1)
    desk.gpusched("set", "poll-interval=60", "-q", "default")
    held = desk.start("exec", "--", "sleep", "60")
    wait_for(lambda: desk.tally()["running"] == 1)
    row = next(line for line in desk.gpusched("status", "default").out.splitlines() if line.startswith("  0"))
    assert row.split()[4:6] == ["job", "2"]
    held.signal(signal.SIGTERM)
    desk.submit("--", "sleep 60")
    desk.gpusched("stop", "-q", "default")
    pid = desk.dispatcher()
    assert f"dispatched by pid {pid}, which starts nothing new: stopping" in desk.gpusched("status", "default").out


def test_submission_to_a_paused_queue_says_so(desk: Desk) -> None:
    desk.submit("--no-start", "--", "true")
    assert desk.gpusched("pause", "-q", "default").out.startswith("the queue default is paused: ")
    assert "the queue is paused; to go on: gpusched resume -q default" in desk.gpusched("submit", "--", "true").err
    desk.start("run", "--", "true").wait_until_said("job 3 is queued: the queue is paused; to go on")


def test_job_of_another_queue_is_named_with_the_queue(desk: Desk) -> None:
    desk.write("true")
    assert desk.gpusched("run", "list.txt", "--simulate", "1").code == 0
    desk.submit("-c", "true {n}", "-p", "n=1..3", "--no-start")
    for word in ("3", "2-3"):
        ended = desk.gpusched("explain", word)
        assert f"there is no job {word} in the queue gpusched-runs/list" in ended.err
        assert f"your own queue has it: default/{word}" in ended.err
    assert "it has jobs 1 to 1" in desk.gpusched("explain", "4").err


# ---- run -- COMMAND --------------------------------------------------------------------------------


def test_a_single_command_is_followed_to_its_exit_code(desk: Desk) -> None:
    ended = desk.gpusched("run", "--quiet", "--", "bash", "-c", "echo $PWD; sleep 0.5; echo last >&2; exit 7")
    assert (ended.code, ended.out, ended.err) == (7, f"{desk.work}\nlast\n", "")
    assert desk.gpusched("run", "--", "kill -9 $$").code == 137
    assert desk.gpusched("run", "--gpus-per-job", "0", "--", "true").code == 0
    assert [row.job.gpus for row in desk.jobs("default")] == [1, 1, 0]


def test_a_single_command_says_how_it_ended_and_that_it_is_tried_again(desk: Desk) -> None:
    limited = desk.gpusched("run", "--time", "1s", "--", "sleep 20")
    assert limited.code == 143 and "job 1 ended: time limit\n" in limited.err
    postponed = desk.gpusched("run", "--", "[ -e again ] && exit 3; touch again; exit 75")
    said = [line for line in postponed.err.splitlines() if "job 2 ended" in line]
    assert postponed.code == 3
    assert said == ["gpusched: job 2 ended: exit 75; it is tried again", "gpusched: job 2 ended: exit 3"]


def test_an_interrupt_leaves_a_single_command_running(desk: Desk) -> None:
    running = desk.start("run", "--", f"echo begun; {UNTIL_GO}; echo whole")
    running.wait_until_said("begun")
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130 and "gpusched logs -f 1 -q default" in ended.err
    (desk.work / "go").touch()
    followed = desk.gpusched("logs", "-f", "1", "-q", "default")
    assert (followed.code, followed.out) == (0, "begun\nwhole\n")


@pytest.mark.parametrize("words", [["list.txt"], ["--gpu-list", "1"], ["--dry-run"], ["--follow"], ["-c", "true"]])
def test_what_is_of_a_list_or_a_dispatcher_does_not_go_with_a_single_command(desk: Desk, words: list[str]) -> None:
    desk.write("true")
    ended = desk.gpusched("run", *words, "--", "true")
    assert ended.code == 2 and "does not go with -- COMMAND" in ended.err
    assert not desk.queue().exists()


def test_dispatcher_of_a_user_who_lingers_is_in_a_scope(desk: Desk) -> None:
    """It gets the lock through systemd-run, too."""
    programs = desk.root / "bin"
    programs.mkdir()
    texts = {"loginctl": "echo Linger=yes", "systemd-run": f'echo "$@" >> {desk.root}/scopes; exec "${{@:5}}"'}
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    desk.submit("--", "true", PATH=f"{programs}:{desk.environment['PATH']}")
    assert desk.gpusched("start", "--detach").code == 75
    desk.wait_for_ends(1)
    last = (desk.root / "scopes").read_text().splitlines()[-1]
    assert last.startswith("--user --scope --quiet -- ") and " gpusched start -q " in last


# ---- another version, and GPUs that come back ------------------------------------------------------


class OwnCopy(Desk):
    """A desk with a copy of the package that can be replaced, whose dispatcher looks at it often."""

    def __init__(self, root: Path, **settings: object) -> None:
        super().__init__(root, **settings)
        self.package = root / "installed/gpusched"
        shutil.copytree(ROOT / "gpusched", self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.environment["PYTHONPATH"] = str(self.package.parent)
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.replace("operations/run/renewal.py", "LOOK_EVERY_S = 60.0", "LOOK_EVERY_S = 0.3")

    def replace(self, name: str, before: str, after: str) -> None:
        text = (self.package / name).read_text()
        assert before in text
        (self.package / name).write_text(text.replace(before, after))

    def versions(self) -> list[str]:
        with Store(str(self.queue() / "queue.db"), read_only=True) as store:
            return [version for (version,) in store.rows("SELECT version FROM dispatches ORDER BY id")]


def test_dispatcher_goes_on_with_the_version_that_was_installed(tmp_path: Path) -> None:
    with OwnCopy(tmp_path) as desk:
        desk.submit("--", f"{UNTIL_GO}; echo whole")
        wait_for(lambda: desk.running("default") == 1)
        pid = desk.dispatcher()
        desk.replace("__init__.py", f'__version__ = "{__version__}"', '__version__ = "99.1"')
        wait_for(lambda: desk.versions() == [__version__, "99.1"])
        assert desk.dispatcher() == pid
        assert desk.gpusched("start", "--detach").code == 75
        (desk.work / "go").touch()
        desk.wait_for_ends(1)
        job = desk.jobs("default")[0]
        assert (job.said(), len(job.attempts)) == ("whole\n", 1)
        assert "gpusched 99.1 was installed" in desk.log()
        time.sleep(1)
        assert desk.versions() == [__version__, "99.1"]


def test_without_gpus_cpu_jobs_run_and_the_others_wait_until_there_are_some(tmp_path: Path) -> None:
    with OwnCopy(tmp_path, simulate=None) as desk:
        desk.environment[simulation.ENV_DIRECTORY] = str(desk.simulation)
        simulation.create(str(desk.simulation), simulation.parse_spec("1"))
        desk.set_box(fail="the driver is gone")
        ended = desk.gpusched("submit", "--", "true", **{simulation.ENV_DIRECTORY: None})
        assert ended.out == "1\n" and "shows no GPU" in ended.err
        assert "GPU" not in desk.gpusched("submit", "--no-start", "--gpus", "0", "--", "true").err
        wait_for(lambda: "INFO dispatching" in desk.log())
        again = desk.gpusched("submit", "--once", "3", "--", "true", **{simulation.ENV_DIRECTORY: None})
        assert "GPU" not in again.err  # the dispatcher that works may simulate some, and its status says what it sees
        desk.gpusched("stop", "-q", "default")
        wait_for(lambda: desk.dispatcher() is None)
        desk.start("start", "--idle-exit", "1")
        wait_for(lambda: desk.tally() == Counter(succeeded=1, queued=2))
        wait_for(lambda: "waits for a GPU" in desk.gpusched("explain", "1", "-q", "default").out, timeout_s=15)
        assert desk.gpusched("explain", "1", "-q", "default").out.startswith("job 1: queued\n")  # of no list: no line
        assert "LINE" not in desk.gpusched("status", "-v", "default").out
        desk.set_box(fail=None)
        desk.wait_for_ends(3)


def test_submission_to_a_dispatcher_of_version_01_is_refused(desk: Desk) -> None:
    desk.submit("--", "sleep 30")
    wait_for(lambda: desk.tally()["running"] == 1)
    with Store(str(desk.queue() / "queue.db")) as store:
        store.execute("UPDATE dispatches SET version = ''")
    ended = desk.gpusched("submit", "--", "true")
    assert ended.code == 3 and f"kill -QUIT {desk.dispatcher()}" in ended.err and ended.out == ""
    assert len(desk.jobs("default")) == 1
    pid = desk.dispatcher()
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    wait_for(lambda: desk.dispatcher() is None)
    with Store(str(desk.queue() / "queue.db")) as store:
        store.execute("UPDATE dispatches SET last_seen_at = last_seen_at - 100")
    assert desk.submit("--", "true") == [2]


# ---- another pid namespace -------------------------------------------------------------------------

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]


def _needs_namespaces() -> None:
    if shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here")


def test_submission_from_another_pid_namespace_starts_no_second_dispatcher(desk: Desk) -> None:
    """As from a container that shares the home directory: the lock counts, not the pids."""
    _needs_namespaces()
    desk.submit("--", "sleep 1")
    pid = desk.dispatcher()
    ended = desk.spawn("submit", "--", "true", program=[*UNSHARE, *GPUSCHED]).wait()
    assert (ended.code, ended.out) == (0, "2\n"), ended
    desk.wait_for_ends(2)
    assert desk.dispatches() == 1 and desk.dispatcher() == pid


def test_dispatcher_that_ends_with_its_pid_namespace_loses_nothing(desk: Desk) -> None:
    """As one that was started in a container, which is gone now."""
    _needs_namespaces()
    ended = desk.spawn("submit", "--", "echo ran >> ran", program=[*UNSHARE, *GPUSCHED]).wait()
    assert (ended.code, ended.out) == (0, "1\n"), ended
    wait_for(lambda: desk.dispatcher() is None)
    desk.submit("--", "true")
    desk.wait_for_ends(2)
    assert (desk.work / "ran").read_text() == "ran\n"
