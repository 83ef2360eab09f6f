"""`gpusched clean`: what goes, what stays, and that a kill in the middle loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.model import JobState
from gpusched.host.queue import queue_dirs
from gpusched.host.store import Store, cleaning, environment_table, job_table, meta_table, queue_totals, submission
from gpusched.lists.submit import SubmitOptions, read
from tests.support.command_line import Capture, call
from tests.support.sample import EXIT_3, NOW, OK, PID, Sample9, dispatched_by

RULES = SubmitOptions(Settings(), b"/")


def submit(sample: Sample9, text: str, now: float = NOW - 3600) -> None:
    """Submit a list, in the place of the one before."""
    submission.submit(sample.store, read(text.encode(), RULES, "x").specs, RULES.needs, now)


@pytest.fixture
def empty(sample: Sample9) -> Sample9:
    """A queue without jobs."""
    made = Sample9(sample.home, "list")
    queue_dirs.remember(made.place)
    return made


def test_finished_jobs_go_with_their_logs(sample: Sample9, capsys: Capture) -> None:
    logs = [sample.log(1, 1, b"x"), sample.log(2, 1, b"x"), sample.log(2, 2, b"x"), sample.log(3, 1, b"runs")]
    kept = Path(sample.place.state, "attempts/2.1")
    kept.mkdir(parents=True)
    (kept / "model.pt").write_bytes(b"weights")
    shown = call(capsys, "clean", "--dry-run")
    assert shown == (
        "queue commands (gpusched-runs/commands)\n"
        "  5 jobs (1 succeeded, 2 failed, 2 cancelled): 1-2, 4, 8-9\n"
        "  it stays, and knows the lines that have run: they do not run again (--forget: they do)\n"
        "  3 logs, 0.0 MiB\n"
        "  the files that jobs kept in 1 attempt directory stay (--with-files removes them)\n"
    )
    assert len(job_table.ids(sample.store)) == 9
    assert call(capsys, "clean", "--yes") == shown + "removed\n"
    assert job_table.ids(sample.store) == [3, 5, 6, 7]
    assert [path.exists() for path in logs] == [False, False, False, True]
    assert (kept / "model.pt").exists()
    counts = job_table.counts(sample.store)
    assert {state: n for state, n in counts.items() if n} == {JobState.RUNNING: 1, JobState.QUEUED: 3}
    assert queue_totals.times(sample.store)["started_jobs"] == 2
    assert sample.store.row("PRAGMA foreign_key_check") is None
    assert "attempt directory\n" in call(capsys, "clean", "--yes", "--with-files")
    assert not kept.exists()
    assert call(capsys, "clean", "--yes") == "there is nothing to clean\n"


def test_without_a_terminal_only_with_yes(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nobody:
        monkeypatch.setattr("sys.stdin", nobody)
        assert front.run(["clean"]) == 2
    out, err = capsys.readouterr()
    assert "5 jobs (" in out and "nobody can be asked here: nothing was removed\n  --yes" in err
    assert len(job_table.ids(sample.store)) == 9
    assert front.run(["clean", "--older-than", "30"]) == 2
    assert "a time with its unit, such as 30d" in capsys.readouterr().err


def test_only_what_is_old_goes(sample: Sample9, capsys: Capture) -> None:
    call(capsys, "clean", "--older-than", "3505s", "--yes")  # NOW - 3505 s: after the ends of 1 and 2, before that of 8
    assert job_table.ids(sample.store) == [3, 4, 5, 6, 7, 8, 9]


def test_what_others_depend_on_stays_as_long_as_they_do(empty: Sample9, capsys: Capture) -> None:
    submit(empty, "[name=a] true 1\n[name=b after=a] true 2\n[after=b] true 3\n[tag=t] true 4\n[after=t] true 5\n")
    for job_id in (1, 2, 4, 5):
        empty.attempt(job_id, OK, job_id, job_id + 1)
    call(capsys, "clean", "-q", "list", "--yes")
    assert job_table.ids(empty.store) == [1, 2, 3]  # 3 waits, for 2; 2 waited for 1
    assert empty.store.scalar("SELECT count(*) FROM sets") == 2
    empty.attempt(3, OK, 10, 11)
    call(capsys, "clean", "-q", "list", "--yes")
    assert job_table.ids(empty.store) == []
    assert [empty.store.scalar(f"SELECT count(*) FROM {table}") for table in ("sets", "members", "dependencies")] == [
        *(0, 0, 0)
    ]


def test_finished_lines_do_not_run_again_unless_forgotten(empty: Sample9, capsys: Capture) -> None:
    text = "[name=prep] true\nfalse\n[after=prep] true 2\n"
    submit(empty, text)
    empty.attempt(1, OK, 1, 2)
    empty.attempt(2, EXIT_3, 3, 4)
    empty.attempt(3, OK, 3, 4)
    call(capsys, "clean", "-q", "list", "--yes")
    submit(empty, text + "[after=prep] new\n")
    (job,) = job_table.jobs(empty.store)
    assert (job.id, job.command, job.blocked) == (4, b"new", False)  # what it waits for has succeeded
    assert "3 lines cleaned away before will run again" in call(capsys, "clean", "-q", "list", "--forget", "--yes")
    submit(empty, text)
    assert [job.command for job in job_table.jobs(empty.store, [JobState.QUEUED])] == [b"true", b"false", b"true 2"]


def test_a_wait_for_what_failed_and_was_cleaned_is_refused(empty: Sample9) -> None:
    submit(empty, "[name=prep] false\n[name=good] true\n")
    empty.attempt(1, EXIT_3, 1, 2)
    empty.attempt(2, OK, 1, 2)
    cleaning.remove(empty.store, NOW)
    for line in ("[after=prep] true 2", "[after-failed=good] true 2"):
        with pytest.raises(GpuschedError, match="there is no job or tag"):
            submit(empty, f"[name=prep] false\n[name=good] true\n{line}\n")
    submit(empty, "[name=prep] false\n[name=good] true\n[name=z] sleep 1\n[after-any=good,z after-ended=good] true 2\n")
    assert [job.blocked for job in job_table.jobs(empty.store)] == [False, False]


def test_environments_that_no_job_needs_go_too(empty: Sample9) -> None:
    submit(empty, "true\ntrue 2\n")
    for job_id in (1, 2):
        number = environment_table.store_content(empty.store, b"A=%d\0" % job_id)
        empty.store.execute("UPDATE jobs SET environment_id = ? WHERE id = ?", (number, job_id))
    empty.attempt(1, OK, 1, 2)
    cleaning.remove(empty.store, NOW)
    assert empty.store.rows("SELECT content FROM environments") == [(b"A=2\0",)]


def test_a_queue_that_nobody_needs_goes(empty: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(empty.place.path)
    submit(empty, "true\n")
    empty.attempt(1, OK, 1, 2)
    assert "the queue itself" not in call(capsys, "clean", "-q", "list", "--yes")  # it knows what has run
    (path / "cluster.json").write_text("{}")  # of a cluster whose queue it was
    (path / "devices.json.tmp0123456789abcdef").touch()  # of a dispatcher that was killed while it wrote
    (path / "results.csv").write_text("mine")
    assert "the queue itself" not in call(capsys, "clean", "-q", "list", "--forget", "--yes")
    (path / "results.csv").unlink()
    meta_table.write(empty.store, "set", "{}")
    assert call(capsys, "clean", "-q", "list", "--yes") == "there is nothing to clean\n"
    empty.store.execute("DELETE FROM meta WHERE key = 'set'")
    with monkeypatch.context() as patch:
        dispatched_by(patch, PID)
        assert call(capsys, "clean", "-q", "list", "--yes") == "there is nothing to clean\n"
    assert "the queue itself: no job is left in it" in call(capsys, "clean", "--all", "--yes")
    assert not path.exists()
    assert "list" not in [queue.name for queue in queue_dirs.list_queues()]


def test_a_submission_while_the_queue_is_removed_is_refused_and_a_second_clean_finishes(
    empty: Sample9, capsys: Capture
) -> None:
    assert cleaning.close(empty.store)  # as far as a clean came that was killed
    with pytest.raises(GpuschedError, match="this queue was removed just now"):
        submit(empty, "true\n")
    call(capsys, "clean", "-q", "list", "--yes")
    assert not Path(empty.place.path).exists()


def test_logs_that_a_killed_clean_has_left_go_with_the_next(sample: Sample9, capsys: Capture) -> None:
    log, other = sample.log(1, 1, b"x"), sample.log(99, 1, b"of a later job")
    cleaning.remove(sample.store, NOW)
    assert "1 log, " in call(capsys, "clean", "--yes")
    assert not log.exists() and other.exists()


def test_a_queue_whose_directory_is_gone(tmp_path: Path, sample: Sample9, capsys: Capture) -> None:
    place = queue_dirs.QueueDir(str(tmp_path / "gpusched-runs" / "far"), str(tmp_path / "state" / "far"))
    queue_dirs.prepare(place)
    with Store(place.database, create=True) as store:
        submission.submit(store, read(b"true\n", RULES, "x").specs, RULES.needs, NOW - 50)
        queue_dirs.remember(place)
        os.rename(place.path, tmp_path / "away")
        assert call(capsys, "clean", "--all", "--dry-run").count("queue ") == 1  # its job waits
        job_table.cancel(store, 1, NOW)
    assert "the queue itself: its directory is gone" in call(capsys, "clean", "--all", "--yes")
    assert not place.exists()


@pytest.mark.parametrize("step", range(6))
def test_a_kill_at_any_moment_loses_nothing_and_the_next_clean_finishes(
    step: int, empty: Sample9, capsys: Capture
) -> None:
    submit(empty, "".join(f"true {n}\n" for n in range(400)))
    for job_id in range(1, 400):
        empty.attempt(job_id, OK, job_id, job_id + 1)
        empty.log(job_id, 1, b"x")
    last = empty.log(400, 1, b"waits")
    process = subprocess.Popen([sys.executable, "-c", KILLED % (step, empty.place.path)], cwd=empty.home)
    assert process.wait(60) == -signal.SIGKILL
    left = job_table.ids(empty.store)
    assert left in ([400], list(range(1, 401)))  # all or none
    logs = {int(path.name[:4]) for path in Path(empty.place.logs).iterdir()}
    assert logs >= set(left)
    call(capsys, "clean", "-q", "list", "--yes")
    assert job_table.ids(empty.store) == [400]
    assert list(Path(empty.place.logs).iterdir()) == [last]
    submit(empty, "true 0\n")
    assert job_table.jobs(empty.store, [JobState.QUEUED]) is not None
    assert [job.command for job in job_table.jobs(empty.store, [JobState.QUEUED])] == []


KILLED = """
import os, signal, sys, time
from gpusched.cli import main
from gpusched.host.queue import job_files
from gpusched.host.store import cleaning, connection
step = %d
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def after(function, calls):
    def wrapper(*words, **options):
        nonlocal calls
        done = function(*words, **options)
        calls -= 1
        if not calls:
            die()
        return done
    return wrapper
if step < 3:
    connection.Store.execute = after(connection.Store.execute, 3 + 2 * step)
elif step == 3:
    cleaning.remove = after(cleaning.remove, 1)
else:
    os.unlink = after(os.unlink, 1 + (step - 4) * 200)
main.run(["clean", "-q", "%s", "--yes"])
"""


def test_a_run_says_that_lines_were_cleaned_away(empty: Sample9, capsys: Capture) -> None:
    (empty.home / "list.txt").write_text("[gpus=0] true 1\n[gpus=0] true 2\n")
    assert front.run(["run", "list.txt", "--quiet"]) == 0
    cleaning.remove(empty.store, float("inf"))
    says = "2 lines were run before and cleaned away: not run again (`gpusched clean --forget` lets lines run again)\n"
    assert f"is empty\n{says}" in call(capsys, "run", "list.txt", "--dry-run")
    assert f"0 failed of 0 jobs in 0:00 of 2 starts\n{says}" in call(capsys, "run", "list.txt")
    (empty.home / "list.txt").write_text("[gpus=0] true 2\n[gpus=0] true 3\n")
    assert f"would add 1\n{says.replace('2 lines were', '1 line was')}" in call(capsys, "run", "list.txt", "--dry-run")
