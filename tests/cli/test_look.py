"""`gpusched status`, `explain`, `logs`, the summary of a run and the dry run, on queues filled by the store's verbs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusched.api import Queue
from gpusched.cli import main as front
from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings, load
from gpusched.core.model import JobSpec, Outcome, OutcomeKind, Requirements
from gpusched.host.queue import queue_dir
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations import summary
from tests.support.golden import golden
from tests.support.sample import EXIT_3, NOW, OK, PID, Sample9, a_board, dispatched_by, stand_still

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample9]:
    stand_still(monkeypatch, tmp_path)
    dispatched_by(monkeypatch, None)
    made = Sample9(tmp_path)
    made.fill()
    queue_dir.remember(made.place)
    yield made
    made.close()


@pytest.fixture
def dispatched(sample: Sample9, monkeypatch: pytest.MonkeyPatch) -> Sample9:
    dispatched_by(monkeypatch, PID)
    sample.publish(a_board())
    sample.log(3, 1, b"epoch 1\r\x1b[32mepoch 2, loss 0.5\x1b[0m\r\n")
    return sample


def shown(capsys: Capture, *argv: str, code: int = 0) -> str:
    assert front.run(list(argv)) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    return out + (f"--- stderr\n{err}" if err else "")


# ---- status ----------------------------------------------------------------------------------------


def test_status_of_the_only_queue(dispatched: Sample9, capsys: Capture) -> None:
    golden("status", shown(capsys, "status"), home=dispatched.home)


def test_status_lists_every_job(dispatched: Sample9, capsys: Capture) -> None:
    golden("status-v", shown(capsys, "status", "-v"), home=dispatched.home)


def test_status_without_a_dispatcher_says_how_to_go_on(sample: Sample9, capsys: Capture) -> None:
    sample.publish(a_board())  # left by a dispatcher that was killed
    golden("status-at-rest", shown(capsys, "status", "-q", "commands"), home=sample.home)


def test_status_of_several_queues_is_a_line_each(dispatched: Sample9, capsys: Capture) -> None:
    other = Sample9(dispatched.home, "sweep")
    other.close()
    queue_dir.remember(other.place)
    elsewhere = Sample9(dispatched.home / "b", "commands")
    elsewhere.store.submit([JobSpec(b"true", b"true", 1)], lambda _: Requirements(), NOW)
    elsewhere.close()
    queue_dir.remember(elsewhere.place)
    golden("status-all", shown(capsys, "status"), home=dispatched.home)
    found = json.loads(shown(capsys, "status", "--json"))["queues"]
    assert {queue["name"] for queue in found} == {"commands", "sweep"} and len(found) == 3


def test_a_broken_queue_hides_no_other(dispatched: Sample9, capsys: Capture) -> None:
    other = Sample9(dispatched.home, "sweep")
    other.close()
    queue_dir.remember(other.place)
    Path(other.place.database).write_bytes(b"no database at all, but long enough" * 9)
    out, err = shown(capsys, "status").split("--- stderr\n")
    assert "commands" in out and "is damaged" in err


def test_status_as_json(dispatched: Sample9, capsys: Capture) -> None:
    (found,) = json.loads(shown(capsys, "status", "--json"))["queues"]
    assert (found["dispatcher"], found["total_jobs"], found["failed_jobs"]) == (PID, 8, 2)
    jobs = {job["id"]: job for job in found["jobs"]}
    assert jobs[3]["state"] == "running" and "***" in jobs[3]["command"]
    assert jobs[5]["waits_for"].startswith("waits for a GPU (GPU 0: runs a job of this queue; GPU 1: ")
    assert jobs[6]["waits_for"].startswith("behind job 5")
    assert jobs[7]["waits_for"] == "tried again in 15 s"
    assert [device["state"] for device in found["devices"]] == ["running", "busy", "checking", "free"]


def test_status_sees_a_full_disk_and_an_old_look(
    dispatched: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched.publish(a_board(at=NOW - 621))
    assert "told nothing since it looked at the GPUs 10:21 ago" in shown(capsys, "status")
    real, blocks = os.statvfs(dispatched.home), {"f_bavail": 0, "f_bfree": 0}
    fields = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**fields, **blocks}))
    out = shown(capsys, "status")
    assert "the disk of gpusched-runs/commands is full: " in out
    assert f"the disk is full ({dispatched.place.path}):\n      5" in out
    (found,) = json.loads(shown(capsys, "status", "--json"))["queues"]
    assert found["waits_for"] == f"the disk is full ({dispatched.place.path})"
    blocks |= {"f_bavail": 1 << 20, "f_bfree": 1 << 20, "f_files": 100, "f_favail": 0}
    assert "is full" in shown(capsys, "status")  # no inode is left
    blocks |= {"f_files": 0}
    assert "is full" not in shown(capsys, "status")  # a file system that does not count them


def test_a_board_of_another_dispatcher_is_not_believed(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID + 1)
    sample.publish(a_board())
    assert "has not looked at the GPUs yet" in shown(capsys, "explain", "5")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["status", "-q", "nowhere"], "-q: there is no queue 'nowhere'\n  known here: commands"),
        (["explain", "99"], "there is no job 99 in the queue"),
        (["explain", "0"], "it has jobs 1 to 9"),
        (["explain", "x"], "'x' names no job"),
        (["explain", "1-2"], "1-2 names 2 jobs, but one is asked for"),
        (["logs", "5"], "job 5 is queued and has written nothing yet\n  `gpusched explain 5` says why"),
        (["logs", "2", "--attempt", "3"], "job 2 has no attempt 3: it has had 2"),
        (["logs", "2", "--err"], "--err: stdout and stderr of job 2 are in one log"),
        (["logs", "2"], "the log cannot be read"),
    ],
)
def test_what_is_not_there_is_named(argv: list[str], says: str, sample: Sample9, capsys: Capture) -> None:
    assert front.run(argv) == 2
    assert says in capsys.readouterr().err


def test_without_any_queue(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    assert front.run(["status"]) == 3
    assert "there is no queue yet" in capsys.readouterr().err


# ---- explain ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_explain(job: int, dispatched: Sample9, capsys: Capture) -> None:
    golden(f"explain-{job}", shown(capsys, "explain", str(job)), home=dispatched.home)


def test_what_waits_for_held_jobs_alone_needs_no_dispatcher(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    sample, rules = Sample9(tmp_path), SubmitOptions(Settings(), b"/")
    sample.store.submit(read(b"[name=a] true\n[after=a] true\n", rules, "x").specs, rules.needs, NOW)
    assert "no dispatcher; to go on: " in shown(capsys, "status", "-q", str(sample.place.path))
    sample.store.hold(1)
    out = shown(capsys, "status", "-q", str(sample.place.path))
    assert "what is queued waits for held jobs: gpusched explain JOB" in out
    sample.close()


def test_what_many_jobs_do_that_one_waits_for_is_told_together(sample: Sample9, capsys: Capture) -> None:
    lines = "".join(f"[tag=t] true {n}\n" for n in range(6)) + "[after=t after-any=1] true\n"
    store = sample.store
    store.submit(
        read(lines.encode(), SubmitOptions(Settings(), b"/"), "x").specs,
        SubmitOptions(Settings(), b"/").needs,
        NOW,
        append=True,
    )
    assert "waits after jobs 10-15, which are queued; after-any job 1, which has succeeded\n" in shown(
        capsys, "explain", "16"
    )
    sample.attempt(10, OK, 3590, 3591)
    sample.start(12, 3592)
    assert "waits after jobs 10-15, of which 10 has succeeded, 11, 13-15 are queued, 12 is running; " in shown(
        capsys, "explain", "16"
    )


def test_explain_without_a_dispatcher(sample: Sample9, capsys: Capture) -> None:
    golden("explain-at-rest", shown(capsys, "explain", "5"), home=sample.home)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome(OutcomeKind.EXITED, 127), "--setup FILE sources a file before each"),
        (Outcome(OutcomeKind.EXITED, 141), "`|| true`"),
        (Outcome(OutcomeKind.EXITED, 137), "dmesg"),
        (Outcome(OutcomeKind.SIGNALLED, signal=9), "dmesg"),
        (Outcome(OutcomeKind.EXITED, 1, cause="host_oom"), "main memory, not the GPU"),
        (Outcome(OutcomeKind.TIMED_OUT, signal=15), "--time-limit"),
        (Outcome(OutcomeKind.LOST), "systemd, logind, docker stop"),
    ],
)
def test_explain_gives_hints(outcome: Outcome, says: str, sample: Sample9, capsys: Capture) -> None:
    sample.attempt(5, outcome, 3000, 3010, gpus=(2,))
    assert says in shown(capsys, "explain", "5")


# ---- logs ------------------------------------------------------------------------------------------

DIRTY = b"one\n\xff\x1b[31mtwo\r\nthree"


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], DIRTY),
        (["-n", "1"], b"three"),
        (["-n", "2"], b"\xff\x1b[31mtwo\r\nthree"),
        (["-n", "9"], DIRTY),
        (["-n", "0"], b""),
        (["--attempt", "1"], b"first\n"),
        (["--attempt", "1", "-n", "1"], b"first\n"),
        (["-f"], DIRTY),  # it has ended: there is nothing to wait for
    ],
)
def test_logs_are_printed_byte_for_byte(
    options: list[str], printed: bytes, sample: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    sample.log(2, 1, b"first\n")
    sample.log(2, 2, DIRTY)
    assert front.run(["logs", "2", *options]) == 0
    assert capsysbinary.readouterr().out == printed


def test_the_last_lines_of_a_long_log(sample: Sample9, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [b"%06d" % n + b"x" * 90 for n in range(3000)]
    sample.log(2, 2, b"\n".join(lines) + b"\n")
    assert front.run(["logs", "2", "-n", "1500"]) == 0
    assert capsysbinary.readouterr().out.splitlines() == lines[-1500:]


@pytest.mark.slow
def test_logs_are_followed_through_the_attempts(
    dispatched: Sample9, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Job 5 starts, writes, fails, is tried again and succeeds, while it is followed."""
    path = dispatched.place.database

    def live() -> None:
        from gpusched.host.store import Store

        mine = Sample9.__new__(Sample9)
        mine.home, mine.place, mine.store = dispatched.home, dispatched.place, Store(path)
        log = mine.log(5, 1, b"begins\n")
        mine.start(5, 3599)
        log.write_bytes(b"begins\nfails\n")
        job = mine.store.job(5)
        from gpusched.core.jobs.lifecycle import judge

        verdict = judge(EXIT_3, retries=1, tries=0, losses=0, cancel_asked=False)
        mine.store.close_attempt(5, job.attempts, EXIT_3, verdict, NOW, now=NOW)
        mine.log(5, 2, b"again\n")
        mine.attempt(5, OK, 3599, 3600)
        mine.close()

    writer = threading.Timer(0.1, live)
    writer.start()
    assert front.run(["logs", "5", "-f"]) == 0
    writer.join()
    out, err = capsysbinary.readouterr()
    assert out == b"begins\nfails\nagain\n"
    assert b"job 5 has not started yet" in err and b"attempt 2 of job 5" in err


# ---- the end of a run ------------------------------------------------------------------------------


@pytest.fixture
def ended(sample: Sample9) -> Iterator[Queue]:
    queue = Queue(sample.place, Settings())
    yield queue
    queue.close()


@pytest.mark.parametrize("code", [1, 130, 131])
def test_the_summary(code: int, ended: Queue, sample: Sample9, capsys: Capture) -> None:
    summary.print_summary(ended, code, as_json=False)
    golden(f"summary-{code}", capsys.readouterr().out, home=sample.home)


def test_the_summary_as_json(ended: Queue, capsys: Capture) -> None:
    summary.print_summary(ended, 1, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["total_jobs"], found["failed_jobs"]) == (1, 8, 2)
    assert [job["id"] for job in found["failed"]] == [2, 4]


def test_a_long_list_of_failures_is_cut(sample: Sample9, ended: Queue, capsys: Capture) -> None:
    texts = [b"false %d" % n for n in range(30)]
    sample.store.submit([JobSpec(t, t, n) for n, t in enumerate(texts)], lambda _: Requirements(), NOW, append=True)
    with sample.store.transaction():
        for job_id in range(10, 40):
            sample.attempt(job_id, EXIT_3, 3590, 3591)
    summary.print_summary(ended, 1, as_json=False)
    out = capsys.readouterr().out
    assert out.count("exit 3") == 19 and "… and 12 more: gpusched status -q" in out


# ---- the dry run -----------------------------------------------------------------------------------


def dry_run(sample: Sample9, text: str, *, as_json: bool = False, retry_failed: bool = False) -> int:
    from gpusched.cli.run.options import RunOptions
    from gpusched.cli.run.session import print_dry_run
    from gpusched.operations.dry_run import dry_run as compute

    submission = SubmitOptions(Settings(simulate="4"), b"/", retry_failed=retry_failed)
    found = compute(sample.place, read(text.encode(), submission, "commands.txt"), submission)
    return print_dry_run(found, RunOptions(load({}), as_json=as_json))


LIST = "python prepare.py\npython train.py --lr 0.1\npython new.py --token abc123\npython eval.py --all\n"


def test_a_dry_run_says_what_would_be_done(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    before = sample.store.data_version()
    assert dry_run(sample, LIST, retry_failed=True) == 0
    golden("dry-run", capsys.readouterr().out, home=sample.home)
    assert sample.store.data_version() == before
    assert dry_run(sample, LIST, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert [job["would"] for job in found["jobs"]][:4] == ["keep", "keep", "add", "keep"]
    assert not (sample.home / "claims").exists()


def test_a_dry_run_makes_no_queue(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(tmp_path / "simulation"))
    (tmp_path / "list.txt").write_text("true\n")
    assert front.run(["run", "list.txt", "--simulate", "2", "--dry-run"]) == 0
    golden("dry-run-new", capsys.readouterr().out, home=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.txt", "simulation"]


def test_a_dry_run_ends_as_the_run_would(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    (sample.home / "commands.txt").write_text(LIST)
    argv = ["run", "commands.txt", "--simulate", "2", "--dry-run", "--gpus-per-job", "3", "--max-gpus", "3"]
    assert front.run(argv) == 2
    out, err = capsys.readouterr()
    assert "python new.py" in out and "can never give 3 to one job" in err


def test_a_dry_run_knows_who_waits_for_whom_and_what_each_gpu_is(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    lines = "[name=a gpus=0] true a\n[after=a] true b\n[after-ended=b] true c\n[name=b gpu-model=A100] true d\n"
    assert dry_run(sample, lines) == 0
    told = capsys.readouterr().out.partition("first:\n")[2]
    assert [line.split(": ", 1)[1] for line in told.splitlines()] == ["starts on the CPU", "starts on GPU 0"]
    with pytest.raises(GpuschedError, match="some jobs can never run here"):
        dry_run(sample, "[gpu-model=H100] true\n")
