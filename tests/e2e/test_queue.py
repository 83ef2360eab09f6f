"""The queue of a list: resumed, edited while it runs, shared with a second start, on bad disks, among bad files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.box import GPUSCHED, UNTIL_GO, Box, Ended, Running, wait_for
from tests.support.disk import fill, small_disk

pytestmark = pytest.mark.slow

HOLD = f"{UNTIL_GO}; : "


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


# ---- the same command again ------------------------------------------------------------------------


def test_resume_runs_what_is_left(box: Box) -> None:
    running = box.start("run", box.write("echo one >> ran", "sleep 3600 #2", "echo three >> ran"), "--max-gpus", "1")
    wait_for(lambda: box.states() == ["succeeded", "running", "queued"] and box.running())
    running.signal(signal.SIGTERM)
    running.wait()
    box.write("echo one >> ran", "echo three >> ran", "echo four >> ran")
    assert box.gpusched("run", "list.txt").code == 0
    assert sorted(box.read("ran").split()) == ["four", "one", "three"]
    rows = {row.command: row for row in box.jobs()}
    assert (rows["sleep 3600 #2"].state, rows["sleep 3600 #2"].job.cause) == ("cancelled", "removed")
    assert box.metrics()["total_jobs"] == 3  # what was removed counts nowhere
    box.write("sleep 0.1 #2", "sleep 3600 #2")
    running = box.start("run", "list.txt")
    wait_for(lambda: {r.command: r.state for r in box.jobs()}["sleep 3600 #2"] == "running")  # back with its line
    running.signal(signal.SIGTERM)
    running.wait()


def test_options_of_the_newest_start_count(box: Box) -> None:
    assert box.run("sleep 3600", options="--time-limit 0.2").code == 1
    box.write("sleep 3600", "exit 1", "echo $CUDA_VISIBLE_DEVICES")
    options = ["--retries", "1", "--gpus-per-job", "2"]
    assert box.gpusched("run", "list.txt", *options).code == 1
    assert [len(row.attempts) for row in box.jobs()] == [1, 2, 1]
    assert box.jobs()[2].said() == "0,1\n"


def test_a_new_start_may_come_from_another_directory(box: Box) -> None:
    path = str(box.work / box.write("pwd", "false"))
    assert box.gpusched("run", "list.txt").code == 1
    other = box.root / "other"
    other.mkdir()
    ended = box.spawn("run", path, "--log-dir", str(box.queue()), "--retry-failed", cwd=other).wait()
    assert ended.code == 1
    assert [os.fsdecode(row.job.cwd) for row in box.jobs()] == [str(box.work), str(other)]


def test_another_file_of_the_same_stem(box: Box) -> None:
    (box.work / "b").mkdir()
    assert box.run("echo first").code == 0
    box.write("echo second", name="b/list.txt")
    ended = box.gpusched("run", "b/list.txt")
    assert ended.code == 0
    names = sorted(path.name for path in (box.work / "gpusched-runs").iterdir())
    assert names[0] == "list" and names[1].startswith("list-")
    assert box.jobs(names[1])[0].said() == "second\n"
    assert box.gpusched("run", "b/list.txt").code == 0
    assert len(list((box.work / "gpusched-runs").iterdir())) == 2


def test_the_log_dir_of_another_file_is_refused(box: Box) -> None:
    box.run("echo first")
    box.write("echo second", name="b.txt")
    ended = box.gpusched("run", "b.txt", "--log-dir", "gpusched-runs/list")
    assert ended.code == 2
    assert str(box.work / "list.txt") in ended.err
    assert len(box.jobs()) == 1


def test_strange_names_of_files(box: Box) -> None:
    for n, name in enumerate(("a b.txt", "-x.txt", "größe.txt", ".hidden", "noext", "caf\udce9.txt")):
        word = name if not name.startswith("-") else f"./{name}"
        ended = box.gpusched("run", os.fsdecode(os.fsencode(box.write(f"echo {n}", name=name) and word)))
        assert ended.code == 0, ended.text
    assert len(list((box.work / "gpusched-runs").iterdir())) == 6


# ---- the file is edited while it runs --------------------------------------------------------------


def test_an_edit_is_taken_while_it_runs(box: Box) -> None:
    running = box.start("run", box.write(HOLD + "1", HOLD + "2", "echo old", "echo kept"))
    wait_for(lambda: box.running() == 2)
    box.write("# a heading", HOLD + "1", HOLD + "2", "echo kept", "echo new")
    wait_for(lambda: {row.command for row in box.jobs() if row.state == "queued"} == {"echo kept", "echo new"})
    (box.work / "go").touch()
    assert running.wait().code == 0
    rows = {row.command: row for row in box.jobs()}
    assert (rows["echo old"].state, rows["echo old"].job.cause) == ("cancelled", "removed")
    assert rows["echo new"].said() == "new\n"
    assert rows[HOLD + "1"].job.line == 2


def test_half_saved_and_refused_edits_wait(box: Box) -> None:
    running = box.start("run", box.write(HOLD + "1", HOLD + "2", "echo three", "echo four"))
    wait_for(lambda: box.running() == 2)
    whole = (box.work / "list.txt").read_text()
    for text in (whole[:-7], ""):  # an editor or scp in the middle of it
        (box.work / "list.txt").write_text(text)
        wait_for(lambda text=text: running.said().count("looks half-saved") == 1 + (not text))  # type: ignore[misc]
        assert box.states() == ["running", "running", "queued", "queued"]
    (box.work / "list.txt").write_text(whole + "echo 'not closed\n")
    running.wait_until_said("list.txt:5")
    assert "list.txt:5" in running.said()
    assert box.states() == ["running", "running", "queued", "queued"]
    (box.work / "list.txt").unlink()
    time.sleep(0.3)
    (box.work / "list.txt").write_text(whole + "echo five\n")
    wait_for(lambda: len(box.jobs()) == 5)
    (box.work / "go").touch()
    assert running.wait().code == 0
    assert box.states() == ["succeeded"] * 5


def test_an_edit_at_the_very_end_is_not_lost(box: Box) -> None:
    """The last job appends to the list that it is from."""
    ended = box.run("sleep 0.1", "echo 'echo appended >> ran' >> list.txt")
    assert ended.code == 0
    assert box.read("ran") == "appended\n"


def test_follow_stays_for_later_lines_until_it_is_stopped(box: Box) -> None:
    running = box.start("run", box.write("echo one"), "--follow")
    wait_for(lambda: box.states() == ["succeeded"])
    with open(box.work / "list.txt", "a") as file:
        file.write("echo two\n")
    wait_for(lambda: box.states() == ["succeeded"] * 2)
    assert running.process.poll() is None
    assert box.gpusched("stop").code == 0
    said = running.wait().text
    assert "gpusched stop: nothing new starts\n" in said and "is queued" not in said


@pytest.mark.parametrize("now", [True, False])
def test_what_is_said_while_nothing_runs_and_nothing_waits(box: Box, now: bool) -> None:
    running = box.start("run", box.write("echo one"), "--follow")
    wait_for(lambda: box.states() == ["succeeded"])
    if now:
        stopped = box.gpusched("stop", "--now").out
        assert "starts nothing new, and leaves" in stopped and "0 running" not in stopped
    else:
        running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143 and ": leaving; nothing runs\n" in ended.out
    assert "next" not in ended.out and "queued" not in ended.out


def test_what_is_said_while_some_run_and_some_wait(box: Box) -> None:
    running = box.start("run", box.write("sleep 3600", "echo two"), "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    running.signal(signal.SIGINT)
    running.wait_until_said(
        "Ctrl-C: nothing new starts; 1 running job goes on to the end (once more: what runs is stopped and queued "
        "again); the same command goes on with what is queued\n"
    )
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert "Ctrl-C: stopping 1 running job: TERM, and KILL after 2 s; what is stopped is queued again\n" in ended.out
    assert "next     the same command goes on with what is queued\n" in ended.out


# ---- a second start --------------------------------------------------------------------------------


def test_a_second_start_hands_over_its_lines_and_leaves(box: Box) -> None:
    first = box.start("run", box.write(HOLD + "1", HOLD + "2"))
    wait_for(lambda: box.running() == 2)
    box.write(HOLD + "1", HOLD + "2", "echo three")
    second = box.gpusched("run", "list.txt", "--max-gpus", "1")
    assert second.code == 75
    assert str(first.pid) in second.err
    assert box.states() == ["running", "running", "queued"]
    board = box.queue() / "devices.json"
    wait_for(lambda: json.loads(board.read_text())["limits"]["max_gpus"] == 1, "the newer option")
    (box.work / "go").touch()
    assert first.wait().code == 0
    assert box.jobs()[2].said() == "three\n"


def test_second_starts_at_the_moment_of_leaving_strand_nothing(box: Box) -> None:
    """Again and again a start comes while another one is about to leave: every line runs, once."""
    lines = ["echo 0 >> ran"]
    running = [box.start("run", box.write(*lines))]
    for n in range(1, 9):
        time.sleep(0.23)
        lines.append(f"echo {n} >> ran")
        box.write(*lines, name="list.new")  # nobody reads half a list
        (box.work / "list.new").rename(box.work / "list.txt")
        running.append(box.start("run", "list.txt"))
    codes = {process.wait().code for process in running}
    assert codes <= {0, 75}
    assert sorted(box.read("ran").split(), key=int) == [str(n) for n in range(9)]


def test_a_second_start_while_the_first_drains_dispatches_itself(box: Box) -> None:
    first = box.start("run", box.write(HOLD, "echo two >> ran"), "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    first.signal(signal.SIGINT)
    first.wait_until_said("nothing new starts")
    second = box.start("run", "list.txt")
    (box.work / "go").touch()
    assert first.wait().code == 130
    assert second.wait().code == 0
    assert box.read("ran") == "two\n"


def test_two_queues_of_one_user_never_meet(box: Box) -> None:
    script = box.work / "use.sh"
    script.write_text('mkdir "gpu$CUDA_VISIBLE_DEVICES" || exit 9; sleep 0.1; rmdir "gpu$CUDA_VISIBLE_DEVICES"\n')
    running = [
        box.start("run", box.write(*[f"bash use.sh {n}" for n in range(8)], name=f"{name}.txt")) for name in "abc"
    ]
    assert [process.wait().code for process in running] == [0, 0, 0]


def test_cancelled_by_a_person_stays_so_until_requeued(box: Box) -> None:
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one", "echo two"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    assert box.gpusched("cancel", "2").code == 0
    wait_for(lambda: box.states() == ["queued", "cancelled"])
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    assert running.wait().code == 1
    assert box.gpusched("run", "list.txt").code == 1
    assert box.states() == ["succeeded", "cancelled"]
    assert box.gpusched("requeue", "2").code == 0
    assert box.gpusched("run", "list.txt").code == 0
    assert box.states() == ["succeeded", "succeeded"]


def test_requeue_while_it_is_dispatched(box: Box) -> None:
    running = box.start("run", box.write("[ -e go ]", HOLD))
    wait_for(lambda: box.states() == ["failed", "running"])
    wait_for(lambda: box.running() == 1)
    assert box.gpusched("requeue", "1").code == 0  # fails again
    wait_for(lambda: len(box.jobs()[0].attempts) == 2 and box.states()[0] == "failed")
    (box.work / "go").touch()
    assert running.wait().code == 1
    assert box.gpusched("requeue", "1").code == 0
    assert box.gpusched("run", "list.txt").code == 0
    assert box.states() == ["succeeded"] * 2


# ---- standard input --------------------------------------------------------------------------------


class Pipe:
    """A run that reads its lines from us."""

    def __init__(self, box: Box, *options: str, program: list[str] = GPUSCHED) -> None:
        read, self.write_end = os.pipe()
        self.running = box.spawn("run", "-", *options, stdin=read, program=program)
        os.close(read)

    def write(self, text: str) -> None:
        os.write(self.write_end, text.encode())

    def close(self) -> None:
        os.close(self.write_end)


def test_jobs_start_as_lines_arrive(box: Box) -> None:
    pipe = Pipe(box)
    pipe.write("echo one >> ran\necho tw")
    wait_for(lambda: box.read("ran") == "one\n")
    pipe.write("o >> ran\n")
    wait_for(lambda: box.read("ran") == "one\ntwo\n")
    pipe.write("echo last >> ran")
    pipe.close()
    assert pipe.running.wait().code == 0
    assert box.read("ran") == "one\ntwo\nlast\n"
    (queue,) = (box.work / "gpusched-runs").iterdir()
    assert queue.name.startswith("stdin-")


def test_a_line_that_cannot_be_right_in_a_stream_fails_the_run_alone(box: Box) -> None:
    pipe = Pipe(box)
    pipe.write("echo one >> ran\necho 'open\necho two >> ran\n")
    pipe.close()
    ended = pipe.running.wait()
    assert ended.code == 1
    assert "not closed" in ended.text
    assert sorted(box.read("ran").split()) == ["one", "two"]


def test_a_stream_resumes_in_its_log_dir(box: Box) -> None:
    pipe = Pipe(box, "--log-dir", "q")
    pipe.write("echo one >> ran\nsleep 3600\n")
    wait_for(lambda: box.read("ran") and "sleep 3600" in box.commands())
    pipe.running.signal(signal.SIGTERM)
    pipe.running.wait()
    pipe.close()
    again = Pipe(box, "--log-dir", "q", "--time-limit", "0.5")
    again.write("echo one >> ran\nsleep 3600\necho three >> ran\n")
    again.close()
    assert again.running.wait().code == 1
    assert box.read("ran") == "one\nthree\n"


def test_a_pipe_by_name_is_a_stream(box: Box) -> None:
    """`gpusched run <(make-commands)`: /dev/fd/63 says nothing of what comes out of it."""
    for word in ("one", "two"):
        script = f"python -m gpusched run <(echo 'echo {word} >> ran')"
        assert box.spawn("-c", script, program=["bash"]).wait().code == 0
    assert box.read("ran") == "one\ntwo\n"
    assert all(path.name.startswith("stdin-") for path in (box.work / "gpusched-runs").iterdir())


def test_retry_failed_is_asked_for_once(box: Box) -> None:
    assert box.run("echo ran >> ran; false").code == 1
    running = box.start("run", box.write("echo ran >> ran; false", "sleep 2"), "--retry-failed")
    wait_for(lambda: box.read("ran") == "ran\nran\n")
    box.write("echo ran >> ran; false", "sleep 2", "echo new")
    assert running.wait().code == 1
    assert box.read("ran") == "ran\nran\n"
    for _ in range(2):
        pipe = Pipe(box, "--log-dir", "q", "--retry-failed")
        pipe.write("echo stream >> stream; false\n")
        wait_for(lambda: box.read("stream"))
        pipe.close()
        assert pipe.running.wait().code == 1
    assert box.read("stream") == "stream\nstream\n"


def test_a_second_start_that_says_less_lifts_no_limit(box: Box) -> None:
    """What it does say is taken, and told."""
    listed = box.write(HOLD + "1", HOLD + "2", "echo three")
    running = box.start("run", listed, "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    assert box.gpusched("run", listed).code == 75
    assert box.gpusched("run", listed, "--retries", "2").code == 75
    assert box.states() == ["running", "queued", "queued"]
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 0
    assert "a newer start gave other options: retries 0 -> 2" in ended.out
    assert "max_gpus" not in ended.out


def test_a_failed_line_that_is_mended_counts_no_more(box: Box) -> None:
    assert box.run("false", "true").code == 1
    mended = box.run("true # mended", "true")
    assert mended.code == 0
    assert "2 succeeded, 0 failed of 2 jobs" in mended.out
    assert box.metrics()["failed_jobs"] == 0
    page = box.gpusched("status").out
    assert "2 succeeded, 0 failed\n" in page and "FAILED" not in page
    assert "its line is gone" in box.gpusched("status", "-v").out
    assert box.run("false", "true").code == 1  # its line is back, and so is its failure


def test_an_empty_stream_is_no_success(box: Box) -> None:
    pipe = Pipe(box)
    pipe.close()
    ended = pipe.running.wait()
    assert ended.code == 2 and ended.out == ""
    assert "standard input: was empty\n  did the program that writes the commands fail?" in ended.err
    assert not (box.work / "gpusched-runs").exists()


def test_an_empty_stream_for_a_queue_with_work_left(box: Box) -> None:
    for code in (1, 0, 2):  # one job waits; it is done by the empty stream; nothing is left to do
        pipe = Pipe(box, "--log-dir", "q", "--max-fails", "1", "--max-gpus", "1")
        if code == 1:
            pipe.write("[ -e go ]\necho two >> ran\n")
        pipe.close()
        assert pipe.running.wait().code == code
        (box.work / "go").touch()
        if code == 1:
            assert box.gpusched("requeue", "1", "-q", "q").code == 0
    assert box.read("ran") == "two\n"


def test_a_stream_whose_first_command_comes_late(box: Box) -> None:
    pipe = Pipe(box)
    pipe.write("# wait for it\n\necho o")
    time.sleep(0.2)
    pipe.write("ne >> ran\n# the end")
    pipe.close()
    assert pipe.running.wait().code == 0
    assert box.read("ran") == "one\n"
    pipe = Pipe(box)
    pipe.write("# nothing yet\n")
    unread = bytearray(4)
    wait_for(lambda: fcntl.ioctl(pipe.write_end, termios.FIONREAD, unread) == 0 and not any(unread), "its reading")
    pipe.running.signal(signal.SIGINT)
    assert pipe.running.wait().code == 130
    pipe.close()


def test_the_terminals_descriptor_is_left_as_it_was(box: Box) -> None:
    """Standard input is shared with the shell: a run must not leave it non-blocking."""
    pipe = Pipe(box)
    pipe.write("true\n")
    wait_for(
        lambda: list((box.work / "gpusched-runs").glob("*/logs/*")) if (box.work / "gpusched-runs").exists() else 0
    )
    flags = Path(f"/proc/{pipe.running.pid}/fdinfo/0").read_text()
    assert not int(next(line.split()[1] for line in flags.splitlines() if line.startswith("flags")), 8) & os.O_NONBLOCK
    pipe.close()
    assert pipe.running.wait().code == 0


# ---- bad disks, bad files --------------------------------------------------------------------------


def test_a_damaged_database_is_said_and_left_alone(box: Box) -> None:
    box.run("echo one")
    path = box.queue() / "queue.db"
    for name in ("queue.db-wal", "queue.db-shm"):
        (box.queue() / name).unlink(missing_ok=True)
    path.write_bytes(b"this is no database" * 1000)
    before = path.read_bytes()
    ended = box.gpusched("run", "list.txt")
    assert ended.code == 3
    assert "queue.db" in ended.err and "damaged" in ended.err
    assert "Traceback" not in ended.err
    assert path.read_bytes() == before
    for verb in (["status", "-q", "list"], ["logs", "1", "-q", "list"], ["cancel", "1", "-q", "list"]):
        ended = box.gpusched(*verb)
        assert ended.code != 0 and "Traceback" not in ended.err, ended.text


def test_a_database_that_is_damaged_in_the_middle(box: Box) -> None:
    box.run(*[f"echo {n}" for n in range(30)])
    path = box.queue() / "queue.db"
    assert not path.with_name("queue.db-wal").exists()
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    ended = box.gpusched("run", "list.txt")
    assert ended.code == 3
    assert "damaged" in ended.err and "Traceback" not in ended.err
    assert path.read_bytes() == data


FOREIGN = {
    "is empty": "",
    "is a database of another program": "CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine');",
    "is a database of another program ": "CREATE TABLE jobs (id); PRAGMA user_version = 3; PRAGMA journal_mode = WAL;",
}


@pytest.mark.parametrize(
    "problem", ["is damaged (database disk image is malformed)", "is damaged (file is not a database)", *FOREIGN]
)
def test_a_database_that_is_no_queue_is_named_and_left_alone(box: Box, problem: str) -> None:
    box.run("echo one")
    path = box.queue() / "queue.db"
    if script := FOREIGN.get(problem):
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(script)
    elif "malformed" in problem:
        os.truncate(path, 9000)
    else:
        path.write_bytes(b"" if problem == "is empty" else b"{}" * 40)
    before = path.read_bytes()
    verbs = (["run", "list.txt"], ["status"], ["cancel", "1"])
    for verb in verbs:
        ended = box.gpusched(*verb, *["-q", "list"] * (verb[0] != "run"))
        assert (ended.code, "Traceback" in ended.err) == (3, False), ended.text
        assert f"{path}: {problem.strip()}" in ended.err
        assert path.read_bytes() == before
        assert not [*path.parent.glob("queue.db-*")]


def test_a_database_of_a_later_version(box: Box) -> None:
    box.run("echo one")
    with contextlib.closing(sqlite3.connect(box.queue() / "queue.db")) as db:
        db.execute("PRAGMA user_version = 99")
    ended = box.gpusched("run", "list.txt")
    assert ended.code == 2
    assert "another version" in ended.err


def test_a_queue_directory_that_cannot_be_made(box: Box) -> None:
    (box.work / "file").write_text("x")
    ended = box.run("true", options="--log-dir file")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    ended = box.run("true", options="--log-dir /proc/nothing/here")
    assert ended.code == 2
    assert "Traceback" not in ended.err


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_queue_directory_of_another_user_is_refused(box: Box) -> None:
    path = box.work / "theirs"
    path.mkdir()
    os.chown(path, 65534, 65534)
    ended = box.run("true", options="--log-dir theirs")
    assert ended.code == 2
    assert "another user" in ended.err


NEEDS_SETPRIV = pytest.mark.skipif(os.getuid() == 0 and not shutil.which("setpriv"), reason="root may write all")


@contextlib.contextmanager
def readers(box: Box) -> Iterator[Callable[..., Ended]]:
    """`gpusched` as one who may read what is in the box, but write nothing."""
    for directory, folders, files in os.walk(box.root):
        for name in (".", *folders, *files):
            path = Path(directory, name)
            path.chmod(path.stat().st_mode & 0o555 | (0o555 if path.is_dir() else 0o444))
    powers = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]  # by which root may do all
    program = GPUSCHED if os.getuid() else [*powers, *GPUSCHED]

    def gpusched(*words: str) -> Ended:
        done = subprocess.run([*program, *words], cwd=box.work, env=box.environment, capture_output=True, text=True)
        return Ended(done.returncode, done.stdout, done.stderr)

    try:
        yield gpusched
    finally:
        for directory, folders, _ in os.walk(box.root):
            for name in (".", *folders):
                Path(directory, name).chmod(0o700)


@pytest.mark.slow
@NEEDS_SETPRIV
def test_a_queue_at_rest_that_cannot_be_written_is_read_from_a_copy_by_hand(box: Box) -> None:
    assert box.run("echo one", "false").code == 1
    before = (box.queue() / "queue.db").read_bytes()
    with readers(box) as gpusched:
        for words in (["status", "-q", "list"], ["requeue", "2", "-q", "list"]):
            ended = gpusched(*words)
            assert ended.code == 3 and "Traceback" not in ended.err
            assert "queue.db: you may not write to this database: " in ended.err
            assert f"cp -r {box.queue()} COPY" in ended.err
    assert (box.queue() / "queue.db").read_bytes() == before


@pytest.mark.slow
@NEEDS_SETPRIV
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, whose dispatcher goes on writing")
def test_a_queue_at_work_can_be_read_by_who_cannot_write_it(box: Box) -> None:
    running = box.start("run", box.write("sleep 3600"))
    wait_for(lambda: "sleep 3600" in box.commands())
    with readers(box) as gpusched:
        ended = gpusched("status", "-q", "list")
        assert ended.code == 0 and "1 running" in ended.out and "dispatched by pid" in ended.out, ended.text
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143


def test_planted_links_are_not_followed(box: Box) -> None:
    """In the claims directory, which all users can write, and in the queue's own directory."""
    precious = box.root / "precious"
    precious.write_text("mine")
    box.claims.mkdir(mode=0o1777)
    box.claims.chmod(0o1777)
    os.symlink(precious, box.claims / f"{box.uuid(0)}.lock")
    ended = box.run("true")
    assert precious.read_text() == "mine"
    assert "Traceback" not in ended.text
    os.unlink(box.claims / f"{box.uuid(0)}.lock")
    os.symlink(precious, box.claims / f"{box.uuid(0)}.lock.by-{os.getuid()}")
    assert box.run("true", "echo 2").code == 0
    assert precious.read_text() == "mine"
    logs = box.queue() / "logs"
    os.symlink(precious, logs / "0003.1-echo-three.log")
    box.run("true", "echo 2", "echo three")
    assert precious.read_text() == "mine"
    os.unlink(box.queue() / "gpu_metrics.json")
    os.symlink(precious, box.queue() / "gpu_metrics.json")
    box.run("true", "echo 2", "echo four")
    assert precious.read_text() == "mine"


def test_a_strange_file_in_the_place_of_a_claim(box: Box) -> None:
    box.claims.mkdir(mode=0o1777)
    box.claims.chmod(0o1777)
    os.mkfifo(box.claims / f"{box.uuid(0)}.lock")
    (box.claims / f"{box.uuid(1)}.lock").mkdir()
    running = box.start("run", box.write("true"))
    for number, kind in enumerate(("pipe", "directory")):
        running.wait_until_said(f"{box.uuid(number)}.lock is a {kind}: ask ")
    assert "is a pipe: ask" in box.gpusched("explain", "1").out
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143 and "Traceback" not in ended.text, ended.text


def test_a_claims_directory_that_is_not_fit(box: Box) -> None:
    (box.root / "file").write_text("x")
    ended = box.run("true", GPUSCHED_CLAIMS_DIR=str(box.root / "file"))
    assert ended.code == 3
    assert "1777" in ended.err and "Traceback" not in ended.err


def test_lock_files_that_a_cleaner_took_away(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        running = box.start("run", box.write(*[f"sleep 0.2 #{n}" for n in range(4)]))
        wait_for(lambda: box.running() == 1)
        for path in box.claims.iterdir():
            path.unlink()
        assert running.wait().code == 0
        assert box.claimed() == set()


# gpusched that tries again sooner after a disk was full
IMPATIENT = [
    GPUSCHED[0],
    "-c",
    "from gpusched.dispatcher import trouble\n"
    "trouble.TROUBLE_AGAIN_S = 0.5\n"
    "from gpusched.cli.main import main\nmain()",
]


def _disk_fills(box: Box, disk: Path, running: Running) -> None:
    """Jobs 1 and 2 run, are told to end while the disk is full; it has room again once that was seen."""
    wait_for(lambda: "sleep" in " ".join(box.commands()) and (disk / "q/devices.json").exists())
    fill(disk / "filler")
    (box.root / "go").touch()
    running.wait_until_said("disk is full")
    (disk / "filler").unlink()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_full_disk_stops_new_launches_and_loses_nothing(box: Box) -> None:
    with small_disk(box.root / "disk", 4) as disk:
        hold = f"while [ ! -e {box.root}/go ]; do sleep 0.05; done; exit"
        lines = [f"{hold} 0", f"{hold} 7", *[f"echo {n} >> {box.work}/ran" for n in range(3, 8)]]
        running = box.spawn("run", box.write(*lines), "--log-dir", str(disk / "q"), program=IMPATIENT)
        _disk_fills(box, disk, running)
        ended = running.wait()
        assert ended.code == 1
        assert "Traceback" not in ended.text and "Logging error" not in ended.text
        found = json.loads((disk / "q/gpu_metrics.json").read_text())
        assert [job["exit_code"] for job in found["jobs"]] == [0, 7, 0, 0, 0, 0, 0]
        assert sorted(box.read("ran").split()) == ["3", "4", "5", "6", "7"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_ctrl_c_and_cancel_on_a_full_disk(box: Box) -> None:
    with small_disk(box.root / "disk", 4) as disk:
        running = box.start("run", box.write("sleep 3600", "sleep 3601", "echo 3"), "--log-dir", str(disk / "q"))
        wait_for(lambda: {"sleep 3600", "sleep 3601"} <= set(box.commands()) and (disk / "q/devices.json").exists())
        fill(disk / "filler")
        ended = box.gpusched("cancel", "1", "-q", str(disk / "q"))
        assert ended.code in (0, 3) and "Traceback" not in ended.text
        running.signal(signal.SIGTERM)
        wait_for(lambda: not any("sleep 360" in command for command in box.commands()), "the end of the jobs")
        (disk / "filler").unlink()
        ended = running.wait()
        assert ended.code == 143
        assert "Traceback" not in ended.text and "Logging error" not in ended.text


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_lines_that_arrive_on_a_full_disk(box: Box) -> None:
    with small_disk(box.root / "disk", 4) as disk:
        pipe = Pipe(box, "--log-dir", str(disk / "q"), program=IMPATIENT)
        pipe.write(f"echo 1 >> {box.work}/ran\n")
        wait_for(lambda: box.read("ran"))
        fill(disk / "filler")
        # more than what is left in the pages that SQLite has already
        pipe.write("".join(f"echo {n} >> {box.work}/ran; : {'x' * 200}\n" for n in range(2, 100)))
        pipe.running.wait_until_said("disk is full")
        pipe.close()
        time.sleep(0.3)
        (disk / "filler").unlink()
        ended = pipe.running.wait()
        assert ended.code == 0, ended.text
        assert sorted(map(int, box.read("ran").split())) == list(range(1, 100))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_start_on_a_full_disk(box: Box) -> None:
    with small_disk(box.root / "disk", 4) as disk:
        fill(disk / "filler")
        ended = box.run("true", options=f"--log-dir {disk}/q")
        assert ended.code in (2, 3)
        assert "No space left" in ended.err or "full" in ended.err
        assert "Traceback" not in ended.text


WAITS = "while [ ! -e {0} ]; do sleep 0.05; done; "


def _no_room(box: Box, running: Running) -> None:
    """From now on the dispatcher cannot make its database longer, as on a full disk. Its other files are smaller."""
    size = (box.queue() / "queue.db-wal").stat().st_size
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("signals", "code"),
    [([signal.SIGTERM], 143), ([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGINT], 130)],
)
def test_a_dispatcher_ends_although_it_cannot_book_how_its_jobs_ended(box: Box, signals: list[int], code: int) -> None:
    box.write(WAITS.format("go") + "exit 7", WAITS.format("go2"), "echo three >> ran")
    running = box.start("run", "list.txt", "--max-gpus", "2")
    wait_for(lambda: box.running() == 2)
    _no_room(box, running)
    (box.work / "go").touch()
    running.wait_until_said("disk I/O error")
    for number in signals:
        running.signal(number)
        running.wait_until_said("TERM" if number == signal.SIGTERM else "Ctrl-C")
    (box.work / "go2").touch()
    ended = running.wait()
    assert ended.code == code, ended.text
    assert "how these jobs ended cannot be noted now: 1, 2;" in ended.out and "Traceback" not in ended.text
    assert "the same command records the jobs that have ended, and goes on" in ended.out
    box.wait_until_empty()
    assert box.claimed() == set()
    assert box.states() == ["running", "running", "queued"]
    assert "has ended; the next dispatcher notes how" in box.gpusched("status").out
    assert box.gpusched("run", "list.txt").code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 7", "exited 0", "exited 0"]
    assert len(box.jobs()[0].attempts) == 1
    assert box.read("ran") == "three\n"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_full_disk_is_told_by_whoever_is_asked(box: Box) -> None:
    with small_disk(box.root / "disk", 1) as disk:
        box.write("sleep 0.3; head -c 3000000 /dev/zero; exit 0", "echo second >> ran")
        options = ["--log-dir", str(disk / "q"), "--max-gpus", "1"]
        running = box.start("run", "list.txt", *options)
        running.wait_until_said(f"the disk is full ({disk}/q)")
        shown = box.gpusched("status").out
        assert f"the disk is full ({disk}/q): until" in shown
        assert f"the disk is full ({disk}/q):\n" in shown  # what job 2 waits for
        assert "has ended; how is noted once the disk has room" in shown
        assert f"why   the disk is full ({disk}/q)" in box.gpusched("explain", "2").out
        stop = box.gpusched("stop", "--now")
        assert stop.code == 3 and f"kill {running.pid}" in stop.err
        wait_for(lambda: box.claimed() == set(), "giving the GPU back")
        running.signal(signal.SIGTERM)
        ended = running.wait()
        assert ended.code == 143 and "the same command records the jobs that have ended" in ended.out
        for log in (disk / "q/logs").iterdir():
            log.unlink()
        assert box.gpusched("run", "list.txt", *options).code == 0
        assert box.read("ran") == "second\n"


def _pretend_network(box: Box, network: Path) -> list[str]:
    """A gpusched that finds `network` mounted by NFS."""
    code = (
        "import sys; from gpusched.host.gpus import claims; from gpusched.cli.main import main\n"
        "real = claims.file_system_type\n"
        f"claims.file_system_type = lambda path: 'nfs4' if path.startswith({str(network)!r}) else real(path)\n"
        "main()"
    )
    return [GPUSCHED[0], "-c", code]


def test_on_a_network_file_system_the_state_is_kept_on_a_local_one(box: Box) -> None:
    program = _pretend_network(box, box.work)
    local = box.root / "local"
    environment = {"GPUSCHED_STATE_DIR": str(local)}
    box.write("echo one", "false")
    ended = box.spawn("run", "list.txt", program=program, environment=environment).wait()
    assert ended.code == 1, ended.text
    here = {path.name for path in box.queue().iterdir()}
    assert {"gpu_metrics.json", "logs", "dispatcher.log", "host"} <= here
    assert not here & {"queue.db", "dispatcher.lock", "wake", "attempts"}
    (state,) = local.iterdir()
    assert (state / "queue.db").exists()
    assert state.stat().st_mode & 0o077 == 0 and local.stat().st_mode & 0o077 == 0
    ended = box.spawn("run", "list.txt", "--retry-failed", program=program, environment=environment).wait()
    assert ended.code == 1
    assert json.loads((box.queue() / "gpu_metrics.json").read_text())["jobs"][0]["attempts"] == 1
    ended = box.spawn("status", "-q", "list", program=program, environment=environment).wait()
    assert ended.code == 0 and "Traceback" not in ended.text
    (box.queue() / "host").write_text("another-box\n")
    ended = box.spawn("run", "list.txt", program=program, environment=environment).wait()
    assert ended.code == 75
    assert "another-box" in ended.err and socket.gethostname() in ended.err


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed(box: Box, closed: str) -> None:
    box.write("ls /proc/self/fd", "sleep 0.2")
    ended = box.spawn("-c", f"python -m gpusched run list.txt {closed}", program=["bash"]).wait()
    assert ended.code == 0, ended.text
    assert box.jobs()[0].said().split() == ["0", "1", "2", "230", "3"]


def test_a_queue_that_is_removed_while_it_runs(box: Box) -> None:
    running = box.start("run", box.write("sleep 2; echo one >> ran", "sleep 2; echo two >> ran", "echo three >> ran"))
    wait_for(lambda: box.running() == 2)
    while (box.work / "gpusched-runs").exists():  # the dispatcher may write meanwhile
        shutil.rmtree(box.work / "gpusched-runs", ignore_errors=True)
    ended = running.wait()
    assert ended.code == 3
    assert "were removed" in ended.err and "jobs that run go on" in ended.err
    assert len(box.claimed()) == 2
    wait_for(lambda: not box.claimed())
    assert sorted(box.read("ran").split()) == ["one", "two"]
    assert not (box.work / "gpusched-runs").exists()


def test_logs_that_are_cleared_away_while_it_runs(box: Box) -> None:
    running = box.start("run", box.write(HOLD + "1", HOLD + "2", "echo three", "echo four"))
    wait_for(lambda: box.running() == 2)
    shutil.rmtree(box.queue() / "logs")
    (box.work / "go").touch()
    assert running.wait().code == 0
    assert [row.said() for row in box.jobs()[2:]] == ["three\n", "four\n"]


def test_a_log_that_cannot_be_made_fails_no_job(box: Box) -> None:
    """That is the box's fault: the job waits until it can be started."""
    running = box.spawn("run", box.write(HOLD + "1", "echo two"), "--max-gpus", "1", program=IMPATIENT)
    wait_for(lambda: box.running() == 1)
    logs = box.queue() / "logs"
    logs.rename(box.work / "old")
    logs.write_text("in the way")
    (box.work / "go").touch()
    running.wait_until_said("no job can be started")
    logs.unlink()
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert box.jobs()[1].said() == "two\n"
    assert box.jobs()[1].job.tries == 1


def test_files_of_attempts_that_are_removed_while_they_run(box: Box) -> None:
    running = box.start("run", box.write("sleep 60", "sleep 60 #2"), "--max-gpus", "2")
    wait_for(lambda: box.running() == 2)
    shutil.rmtree(box.queue() / "attempts")
    shutil.rmtree(box.queue() / "lives")
    time.sleep(0.5)
    assert box.states() == ["running", "running"]
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    box.wait_until_empty()


@pytest.mark.parametrize("shift", [-3600, 3600])
def test_a_clock_that_is_set(box: Box, shift: int) -> None:
    """The box's time is corrected by an hour while a job waits: nothing waits for the old time."""
    code = (
        "import time; real = time.time\n"
        "time.time = lambda: real() + float(open('shift').read())\n"
        "from gpusched.cli.main import main; main()"
    )
    (box.work / "shift").write_text("0")
    box.set_gpu(1, foreign=9000)
    box.write("echo ready; sleep 0.5", "sleep 0.3", *[f"echo {n}" for n in range(3)])
    running = box.spawn("run", "list.txt", "--max-checks", "3", program=[sys.executable, "-c", code])
    wait_for(lambda: box.jobs() and box.jobs()[0].said() == "ready\n")
    (box.work / "new").write_text(str(shift))
    (box.work / "new").rename(box.work / "shift")
    box.set_gpu(1, foreign=0)
    assert running.wait().code == 0
    assert box.states() == ["succeeded"] * 5
    assert all(job["runtime_s"] >= 0 for job in box.metrics()["jobs"])


# ---- exit codes ------------------------------------------------------------------------------------


def test_cancel_makes_the_exit_code_1_and_what_was_removed_does_not(box: Box) -> None:
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one", "echo two"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    box.write("echo one")
    wait_for(lambda: box.states() == ["queued", "cancelled"])
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    assert running.wait().code == 0


def test_the_library_dispatches_without_a_terminal(box: Box) -> None:
    code = (
        "from gpusched import api\n"
        "assert api.dry_run('list.txt').reasons == {1: 'starts on GPU 0', 2: 'starts on GPU 1'}\n"
        "raise SystemExit(api.run('list.txt', max_checks=1))\n"
    )
    box.write("echo one", "false")
    ended = box.spawn("-c", code, program=[sys.executable]).wait()
    assert ended.code == 1, ended.text
    assert ended.text == ""
    assert box.states() == ["succeeded", "failed"]
