"""The shepherds in real runs: ones that cannot start, orders too large for a message, claims, records on bad disks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.box import Box, Running, wait_for
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

UNTIL = "while [ ! -e {} ]; do sleep 0.05; done; echo done"  # a job that goes on until this file is there


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


@pytest.fixture
def package(box: Box) -> Path:
    """A copy of the package, by which the box runs gpusched."""
    copy = box.root / "package" / "gpusched"
    shutil.copytree(ROOT / "gpusched", copy, ignore=shutil.ignore_patterns("__pycache__"))
    box.environment["PYTHONPATH"] = str(copy.parent)
    return copy


# ---- shepherds that cannot start -------------------------------------------------------------------


def test_jobs_stay_queued_while_no_shepherd_can_be_started(box: Box, package: Path) -> None:
    """The package is replaced just then: that is no job's fault."""
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write(*[f"echo {n} >> ran" for n in range(6)]))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    package.rename(package.with_name("away"))
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said("no shepherd can be started: ModuleNotFoundError")
    wait_for(lambda: not box.claimed(), "giving the GPUs back")
    wait_for(lambda: "ModuleNotFoundError" in box.gpusched("explain", "1", PYTHONPATH=None).out)
    assert box.states() == ["queued"] * 6
    package.with_name("away").rename(package)
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert [(len(row.attempts), row.job.tries, row.job.losses) for row in box.jobs()] == [(1, 1, 0)] * 6
    assert sorted(box.read("ran").split()) == list("012345")
    assert ended.text.count("no shepherd can be started") == 1
    assert ended.text.count("shepherds can be started again") == 1


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("raise OSError(105, 'No room for a message')", "no message can be sent: No room for a message"),
        ("os.kill(os.getpid(), 9)", "it ended without a word, with exit status -9"),
    ],
)
def test_a_shepherd_that_cannot_greet_says_why(box: Box, package: Path, step: str, said: str) -> None:
    wire = package / "host" / "attempts" / "wire.py"
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    text = wire.read_text()
    wire.write_text(text.replace("channel.sendmsg([data], rights)", step))
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said(f"no shepherd can be started: {said}")
    wire.write_text(text)
    assert running.wait().code == 0


def test_an_idle_shepherd_that_is_stopped_keeps_nobody_from_leaving(box: Box) -> None:
    running = box.start("run", box.write("echo $PPID > shepherd", UNTIL.format("go")))
    wait_for(lambda: box.states() == ["succeeded", "running"])
    os.kill(int(box.read("shepherd")), signal.SIGSTOP)
    (box.work / "go").touch()
    assert running.wait(20).code == 0


def test_a_shepherd_that_is_never_ready_is_given_up(box: Box, package: Path) -> None:
    late = package / "host" / "attempts" / "starter.py"
    late.write_text(late.read_text().replace("READY_WITHIN_S = 30.0", "READY_WITHIN_S = 1.0"))
    program = package / "host" / "attempts" / "attempt_dir.py"
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    text = program.read_text()
    program.write_text(text.replace("import os\n", "import os, time\ntime.sleep(600)\n", 1))
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said("no shepherd can be started: not ready within 1 s")
    program.write_text(text)
    assert running.wait().code == 0
    assert [len(row.attempts) for row in box.jobs()] == [1]


def speak(package: Path, version: int) -> None:
    """Make the package speak this version of the protocol, from the next start of a process on."""
    wire = package / "host" / "attempts" / "wire.py"
    wire.write_text(re.sub(r"^PROTOCOL = \d+", f"PROTOCOL = {version}", wire.read_text(), flags=re.MULTILINE))


def test_shepherds_of_another_version_get_no_order(box: Box, package: Path) -> None:
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    speak(package, 9)
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said("it speaks version 9, and this dispatcher 2: gpusched was replaced")
    assert box.states() == ["queued"]
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    assert box.gpusched("run", "list.txt").code == 0


def test_the_attempt_of_a_shepherd_of_another_version_is_adopted_by_its_files(box: Box, package: Path) -> None:
    speak(package, 9)
    running = box.start("run", box.write(UNTIL.format("go"), UNTIL.format("never")))
    wait_for(lambda: box.running() == 2)
    kill(running.pid)
    running.wait()
    speak(package, 2)
    running = box.start("run", "list.txt")
    running.wait_until_said("job 2 was left by an earlier dispatcher: taken over")
    (box.work / "go").touch()
    wait_for(lambda: box.states()[0] == "succeeded")
    assert box.gpusched("cancel", "2").code == 0
    assert running.wait().code == 1
    assert [len(row.attempts) for row in box.jobs()] == [1, 1]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_run_ends_well_though_the_package_is_gone(box: Box, package: Path, options: tuple[str, ...]) -> None:
    box.write(UNTIL.format("go"), "true", "false")
    running = box.start("run", "list.txt", "--max-gpus", "1", *options)
    wait_for(lambda: box.running() == 1)
    shutil.rmtree(package)
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    assert ('"max_rss_bytes"' if options else "next     the same command") in ended.out
    assert box.states() == ["succeeded", "succeeded", "failed"]


# ---- orders that are too large, or break their shepherd -----------------------------------------------


def test_large_variables_reach_the_job_or_fail_it_alone(box: Box) -> None:
    kib = "x" * 1024
    jobs = {
        "3 of 100": {f"V{n}": kib * 100 for n in range(3)},
        "12 of 100": {f"V{n}": kib * 100 for n in range(12)},
        "one of 130": {"V0": kib * 130},
        "40 of 100": {f"V{n}": kib * 100 for n in range(40)},
        "none": {},
    }
    listed = [{"run": f"env | wc -c # {name}", "env": variables} for name, variables in jobs.items()]
    (box.work / "jobs.yaml").write_text(json.dumps({"jobs": listed}))
    ended = box.gpusched("run", "jobs.yaml")
    assert ended.code == 1, ended.text
    rows = box.jobs("jobs")
    assert [row.state for row in rows] == ["succeeded", "succeeded", "failed", "failed", "succeeded"]
    assert [int(row.said()) // 102400 for row in rows[:2]] == [3, 12]
    for row in rows[2:4]:
        assert (len(row.attempts), row.cause) == (1, "bad_command")
        assert "Argument list too long: a word or variable may have 128 KiB, all together" in row.note
    assert "no job can be started" not in ended.text


def test_the_crash_of_a_shepherd_on_an_order_is_the_reason_of_that_job(box: Box, package: Path) -> None:
    shepherd = package / "host" / "attempts" / "shepherd.py"
    text = shepherd.read_text()
    assert "logs: list[int] = []\n" in text
    crash = "logs: list[int] = []\n        assert b'# hard' not in order['argv'][-1], 'this order is hard'\n"
    shepherd.write_text(text.replace("logs: list[int] = []\n", crash))
    running = box.start("run", box.write("true # hard", "echo two >> ran", "echo three >> ran"))
    wait_for(lambda: box.read("ran").split() == ["two", "three"])
    wait_for(lambda: box.jobs()[0].job.losses == 1)
    first = box.jobs()[0].attempts[0].outcome
    assert first is not None and first.kind.value == "not_started"
    assert first.note == "its shepherd ended before it: AssertionError: this order is hard"
    running.signal(signal.SIGKILL)
    running.wait()


# ---- claims that live as long as the job --------------------------------------------------------------

STUBBORN = "trap '' TERM; while :; do sleep 0.1; done"
# its own parent closes every descriptor for it, and ends
CLOSED = (
    "import subprocess; subprocess.Popen(['bash', '-c', \"trap '' TERM; echo $$ > left; "
    'while :; do sleep 0.1; done"], start_new_session=True)'
)


def shepherds(box: Box, name: str = "list") -> list[int]:
    """The shepherds of the running attempts, as their marks name them."""
    texts = [path.read_text("utf-8", "replace") for path in (box.queue(name) / "lives").iterdir()]
    return [int(line[4:]) for text in texts for line in text.splitlines() if line.startswith("pid=")]


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def stays_taken(box: Box, rival: Running, alive: Callable[[], bool]) -> None:
    """While processes of the job live, another list on the same GPU does not start."""
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        held = bool(box.claimed())
        assert held or not alive(), "the claim is gone, and a process of the job is not"
        assert box.states("rival") != ["running"] or not alive()
        time.sleep(0.01)
    assert rival.process.poll() is None


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="1", environment={"GPUSCHED_GRACE": "20"}) as box:
        yield box


@pytest.mark.parametrize("job", ["bash", "closed"])
@pytest.mark.parametrize("case", ["taken over", "both killed", "shepherd killed"])
def test_a_killed_shepherd_leaves_the_gpu_to_what_is_left_of_its_job(one: Box, job: str, case: str) -> None:
    (one.work / "closed.py").write_text(CLOSED)
    command = f"echo $$ > left; {STUBBORN}" if job == "bash" else f"{sys.executable} closed.py"
    one.write("true", name="rival.txt")
    running = one.start("run", one.write(command))
    left = int(wait_for(lambda: one.read("left").strip()))
    if job == "closed":
        wait_for(lambda: "leftovers" in one.read("gpusched-runs/list/lives/1.1"))
    (shepherd,) = shepherds(one)
    if case != "shepherd killed":
        kill(running.pid)
        running.wait()
    if case == "both killed":
        kill(shepherd)
        if job == "bash":  # the processes hold the claim; a parent that closed it and ended is not promised
            assert one.claimed()
    if case != "shepherd killed":
        running = one.start("run", "list.txt")
        running.wait_until_said("taken over")
    if case != "both killed":
        time.sleep(0.3)
    rival = one.start("run", "rival.txt")
    wait_for(lambda: one.states("rival") == ["queued"])
    if case != "both killed":
        kill(shepherd)
    stays_taken(one, rival, lambda: Path(f"/proc/{left}").exists())
    kill(left)
    wait_for(lambda: one.jobs()[0].job.losses == 1)
    kill(running.pid)
    assert rival.wait().code == 0


# ---- records that cannot be written -------------------------------------------------------------------

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each write fails to a file whose path contains a word of the file that FULL_DISK names. */
static int is_full(int fd) {
    char link[64], path[4096], words[256], *word;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    FILE *file = fopen(getenv("FULL_DISK"), "r");
    if (!file) return 0;
    int has_words = fgets(words, sizeof words, file) != NULL;
    fclose(file);
    if (length < 0 || !has_words) return 0;
    path[length] = 0;
    for (word = strtok(words, " \\n"); word; word = strtok(NULL, " \\n")) {
        if (strstr(path, word)) { errno = ENOSPC; return 1; }
    }
    return 0;
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (is_full(fd)) return -1;
    if (!real) real = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
    return real(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }
"""


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes writes fail as a full copy-on-write disk does."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = tmp_path_factory.mktemp("shim") / "full.c"
    source.write_text(SHIM)
    library = source.with_suffix(".so")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def full(box: Box, shim: Path) -> Path:
    """The file that names parts of the paths of the files that take nothing."""
    runtime = box.root / "runtime"
    runtime.mkdir(mode=0o700)
    path = box.root / "full"
    box.environment |= {"LD_PRELOAD": str(shim), "FULL_DISK": str(path), "XDG_RUNTIME_DIR": str(runtime)}
    return path


def copies(box: Box) -> list[Path]:
    return list((box.root / "runtime" / "gpusched").glob("*"))


def test_a_record_that_cannot_be_written_is_told_and_booked(box: Box, full: Path) -> None:
    running = box.start("run", box.write(*[UNTIL.format("go") + f"; exit {n}" for n in (0, 7)], "echo three"))
    wait_for(lambda: box.running() == 2)
    full.write_text("/lives/")
    (box.work / "go").touch()
    wait_for(lambda: box.states()[:2] == ["succeeded", "failed"])
    full.unlink()
    assert running.wait().code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 0", "exited 7", "exited 0"]
    assert [len(row.attempts) for row in box.jobs()][:2] == [1, 1]
    wait_for(lambda: not box.processes())
    assert copies(box) == []


def test_a_record_that_cannot_be_written_waits_for_the_next_dispatcher(box: Box, full: Path) -> None:
    running = box.start("run", box.write(UNTIL.format("go") + "; exit 7"), "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    kill(running.pid)
    running.wait()
    full.write_text("/lives/")
    (box.work / "go").touch()
    wait_for(lambda: not box.claimed(), "giving the GPU back")
    assert copies(box)
    ended = box.gpusched("run", "list.txt")
    assert ended.code == 1, ended.text
    assert [attempt.outcome.exit_code for attempt in box.jobs()[0].attempts if attempt.outcome] == [7]
    wait_for(lambda: not box.processes())
    assert copies(box) == []


def test_the_copy_of_a_record_outlives_its_shepherd(box: Box, full: Path) -> None:
    running = box.start("run", box.write(UNTIL.format("go")), "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    kill(running.pid)
    running.wait()
    full.write_text("/lives/")
    (box.work / "go").touch()
    wait_for(lambda: copies(box))
    kill(*shepherds(box))
    full.unlink()
    assert box.gpusched("run", "list.txt").code == 0
    (row,) = box.jobs()
    assert (len(row.attempts), row.outcome) == (1, "exited 0")
    assert copies(box) == []


def test_nothing_is_lost_while_the_store_is_on_the_full_disk_too(box: Box, full: Path) -> None:
    running = box.start("run", box.write(*[UNTIL.format("go") + f" # {n}" for n in range(2)], "echo three"))
    wait_for(lambda: box.running() == 2)
    full.write_text("/lives/ queue.db")
    (box.work / "go").touch()
    running.wait_until_said("the disk is full")
    kill(running.pid)
    running.wait()
    wait_for(lambda: not box.claimed(), "giving the GPUs back")
    full.unlink()
    assert box.gpusched("run", "list.txt").code == 0
    assert [(len(row.attempts), row.outcome) for row in box.jobs()] == [(1, "exited 0")] * 3


@pytest.fixture
def btrfs(tmp_path: Path) -> Iterator[Path]:
    """A small file system that writes copies, never in place; on a loop device."""
    maker, mount = shutil.which("mkfs.btrfs"), tmp_path / "disk"
    if os.getuid() or maker is None:
        pytest.skip("needs root and mkfs.btrfs")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(128 << 20)
    subprocess.run([maker, "-q", "--mixed", str(image)], check=True)
    mount.mkdir()
    if subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True).returncode:
        pytest.skip("cannot mount a loop device here")
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_a_full_copy_on_write_disk_loses_no_exit_code(btrfs: Path, tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        queue = str(btrfs / "queue")
        box.write(*[UNTIL.format("go") + f"; exit {n}" for n in range(4)])
        options = ["--log-dir", queue, "--max-jobs-per-gpu", "2", "--cpu-jobs", "4", "--gpus-per-job", "0"]
        running = box.start("run", "list.txt", *options)
        wait_for(lambda: len(list(Path(queue, "logs").glob("*.log"))) == 4)
        wait_for(lambda: all("pid=" in p.read_text() for p in Path(queue).glob("lives/*.1")))
        with contextlib.suppress(OSError), open(btrfs / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(65536))
        os.sync()
        (box.work / "go").touch()
        time.sleep(3)
        (btrfs / "filler").unlink()
        ended = running.wait()
        assert ended.code == 1, ended.text
        metrics = json.loads(Path(queue, "gpu_metrics.json").read_text())
        assert [(job["exit_code"], job["attempts"]) for job in metrics["jobs"]] == [(n, 1) for n in range(4)]
        wait_for(lambda: not box.processes())
