"""`gpusched status`: one queue, several, and queues that cannot be read."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusched.cli import main as front
from gpusched.core.model import JobSpec, Requirements
from gpusched.host.queue import queue_dirs
from gpusched.host.store import dispatch_table, job_table, submission
from tests.support.command_line import Capture, shown
from tests.support.golden import golden
from tests.support.sample import EXIT_3, NOW, OK, PID, Sample9, a_board, dispatched_by, stand_still


def test_status_of_the_only_queue(dispatched: Sample9, capsys: Capture) -> None:
    golden("status", shown(capsys, "status"), home=dispatched.home)


def test_status_lists_every_job(dispatched: Sample9, capsys: Capture) -> None:
    golden("status-v", shown(capsys, "status", "-v"), home=dispatched.home)


def test_status_without_a_dispatcher_says_how_to_go_on(sample: Sample9, capsys: Capture) -> None:
    sample.publish(a_board())  # left by a dispatcher that was killed
    golden("status-at-rest", shown(capsys, "status", "-q", "commands"), home=sample.home)


def test_names_tags_and_priority_in_the_order_of_the_start(dispatched: Sample9, capsys: Capture) -> None:
    lines = {
        b"python -m gpusched.commands.esd --model tiny/one --out /results": Requirements(),
        b"python -m gpusched.commands.esd --model tiny/two --out /results": Requirements(prio=5, tags=("b", "c")),
        b"python plot.py": Requirements(name="plot-all", tags=("b",)),
    }
    specs = [JobSpec(text, text, line) for line, text in enumerate(lines)]
    submission.submit(dispatched.store, specs, lambda spec: lines[spec.command], NOW, append=True)
    out = shown(capsys, "status")
    waiting = out[out.index("WAITING") : out.index("FAILED")].splitlines()
    words = [text.split() for text in waiting if text.split()[:1] and text.split()[0].isdigit()]
    assert [row[0] for row in words] == ["11", "5", "6", "7", "10", "12"]
    assert words[0] == [
        "11",
        "1",
        "5",
        "b,c",
        *["python", "-m", "gpusched.commands.esd", "--model", "tiny/two", "--out", "/results"],
    ]
    assert words[-1] == ["12", "2", "b", "plot-all"]
    assert any(row.split()[-2:] == ["b", "plot-all"] for row in shown(capsys, "status", "-v").splitlines())
    page = shown(capsys, "explain", "plot-all")
    assert page.startswith("job 12 (plot-all), line 2, tags b: queued\n  python plot.py\n")


def test_a_finished_queue_sums_up_its_last_start_and_all_of_them(sample: Sample9, capsys: Capture) -> None:
    done = Sample9(sample.home, "done")
    lines = [b"true #%d" % n for n in range(4)]
    with done.store.transaction():
        submission.submit(done.store, [JobSpec(t, t, 1) for t in lines], lambda _: Requirements(), NOW - 3600)
        for since, until in ((0, 1000), (1800, 3600)):
            number = dispatch_table.begin(done.store, NOW - 3600 + since, "1.0")
            dispatch_table.touch(done.store, number, NOW - 3600 + until)
        done.attempt(1, EXIT_3, 0, 720, gpus=(0, 1))
        done.attempt(2, OK, 1800, 2520, gpus=(0,))
        done.attempt(3, OK, 1800, 3240, gpus=(0,))  # shares the GPU
        done.attempt(4, OK, 1900, 2000, gpus=(0,))
    done.close()
    queue_dirs.remember(done.place)
    out = shown(capsys, "status", "done")
    assert "all jobs have ended; no dispatcher is needed\n0 running, 0 queued, 3 succeeded, 1 failed\n" in out
    assert "last start 08:23:20 to 08:53:20 (30:00): 3 succeeded, 3 attempts, 0.40 GPU hours\n" in out
    assert (
        "all 2 starts 07:53:20 to 08:53:20 (dispatched for 46:40): 3 succeeded, 1 failed, 4 attempts, 0.80 GPU hours\n"
        in out
    )
    assert re.search(r"1 +1 +07:53:20 +08:05:20 +12:00 +exit 3 +true #0\n", out)


def test_a_killed_start_counts_up_to_the_last_end_that_it_has_stored(sample: Sample9, capsys: Capture) -> None:
    done = Sample9(sample.home, "done")
    with done.store.transaction():
        submission.submit(done.store, [JobSpec(b"true", b"true", 1)], lambda _: Requirements(), NOW - 3600)
        dispatch_table.begin(done.store, NOW - 3600, "1.0")
        done.attempt(1, OK, 0, 25, gpus=(0,))
        number = dispatch_table.begin(done.store, NOW - 1800, "1.0")
        dispatch_table.touch(done.store, number, NOW - 1790)
    done.close()
    queue_dirs.remember(done.place)
    assert "all 2 starts 07:53:20 to 08:23:30 (dispatched for 0:35): 1 succeeded" in shown(capsys, "status", "done")


def test_status_of_several_queues_is_a_line_each(dispatched: Sample9, capsys: Capture) -> None:
    other = Sample9(dispatched.home, "sweep")
    other.close()
    queue_dirs.remember(other.place)
    elsewhere = Sample9(dispatched.home / "b", "commands")
    lines = [JobSpec(text, text, 1) for text in (b"true", b"true 2", b"true 3")]
    submission.submit(elsewhere.store, lines, lambda _: Requirements(), NOW)
    for held in (2, 3):
        job_table.hold(elsewhere.store, held)
    elsewhere.close()
    queue_dirs.remember(elsewhere.place)
    golden("status-all", shown(capsys, "status"), home=dispatched.home)
    found = json.loads(shown(capsys, "status", "--json"))["queues"]
    assert {queue["name"] for queue in found} == {"commands", "sweep"} and len(found) == 3


def test_a_broken_queue_hides_no_other(dispatched: Sample9, capsys: Capture) -> None:
    other = Sample9(dispatched.home, "sweep")
    other.close()
    queue_dirs.remember(other.place)
    Path(other.place.database).write_bytes(b"no database at all, but long enough" * 9)
    out, err = shown(capsys, "status").split("--- stderr\n")
    assert "commands" in out and "is damaged" in err


def test_status_as_json(dispatched: Sample9, capsys: Capture) -> None:
    (found,) = json.loads(shown(capsys, "status", "--json"))["queues"]
    assert (found["dispatcher"], found["total_jobs"], found["failed_jobs"]) == (PID, 8, 2)
    jobs = {job["id"]: job for job in found["jobs"]}
    assert jobs[3]["state"] == "running" and "***" in jobs[3]["command"]
    assert jobs[5]["waits_for"].startswith(
        "waits for a GPU (GPU 0: runs a job of this queue, GPU 1 is used by bo (59.6 GiB, python), "
    )
    assert jobs[6]["waits_for"].startswith("behind job 5")
    assert jobs[7]["waits_for"] == "tried again in 15 s"
    assert [device["state"] for device in found["devices"]] == ["running", "busy", "checking", "free"]


@pytest.mark.parametrize("held", [False, True])
def test_reason_knows_a_job_that_began_since_the_last_look(dispatched: Sample9, capsys: Capture, held: bool) -> None:
    devices = tuple(replace(each, view=replace(each.view, held=held)) for each in a_board().devices)
    dispatched.publish(a_board(devices=devices))
    dispatched.start(6, 3599, gpus=(2,))
    (found,) = json.loads(shown(capsys, "status", "--json"))["queues"]
    waits = next(job["waits_for"] for job in found["jobs"] if job["id"] == 5)
    assert "2 GPUs run your jobs" in waits and "free" not in waits, waits


def test_status_sees_a_full_disk_and_an_old_look(
    dispatched: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched.publish(a_board(at=NOW - 621))
    assert "which read the GPUs 10:21 ago" in shown(capsys, "status")
    dispatched.publish(a_board(gpus_closed="NVML does not answer"))
    out = shown(capsys, "status")
    assert "which cannot read the GPUs: NVML does not answer" in out and "which read the GPUs" not in out
    real, blocks = os.statvfs(dispatched.home), {"f_bavail": 0, "f_bfree": 0}
    fields = {name: getattr(real, name) for name in dir(real) if name.startswith("f_")}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**fields, **blocks}))
    out = shown(capsys, "status")
    assert f"the disk is full ({dispatched.place.path}): until" in out
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
        (["explain", "x"], "there is no job 'x'"),
        (["explain", "1-2"], "1-2 names 2 jobs, but this takes a single one"),
        (["logs", "5"], "job 5 is queued and has written nothing yet\n  `gpusched explain 5 -q commands` says why"),
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
