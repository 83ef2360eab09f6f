"""`gpusched requeue`: the request in the store, the dispatcher that is woken, and the texts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpusched.core.model import JobState
from gpusched.host.store import job_table
from tests.support.command_line import Capture, call
from tests.support.sample import PID, Sample9, a_board, dispatched_by


def test_requeue_gives_the_tries_back(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    out = call(capsys, "requeue", "1-3", "8", "5", code=1)
    assert out == (
        "job 1: has succeeded: only failed and cancelled jobs are queued again (--again: succeeded ones too)\n"
        "jobs 2, 8: queued again\n"
        "job 3: is running: `gpusched cancel` stops it, and then it can be queued again\n"
        "job 5: is queued: only failed and cancelled jobs are queued again (--again: succeeded ones too)\n"
    )
    assert rung == [sample.place.path]
    assert (job_table.get(sample.store, 2).state, job_table.get(sample.store, 2).tries) == (JobState.QUEUED, 0)


def test_a_job_that_has_succeeded_is_queued_again_if_that_is_asked_for(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    assert call(capsys, "requeue", "1", "2", "--again") == "jobs 1-2: queued again\n"
    assert job_table.get(sample.store, 1).state is JobState.QUEUED
    assert "job 3: is running: `gpusched cancel` stops it" in call(capsys, "requeue", "3", "--again", code=1)


def test_requeue_all_that_failed_and_say_who_runs_them(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert call(capsys, "requeue", "--failed") == (
        "jobs 2, 4: queued again\nno dispatcher works on this queue; to run what is queued: gpusched run commands.txt\n"
    )
    assert call(capsys, "requeue", "--failed") == "no job was queued again\n"


def test_requeue_while_the_dispatcher_leaves(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    sample.publish(a_board(closed="stopping (Ctrl-C)"))
    assert "its dispatcher is stopping (Ctrl-C); to run what is queued: " in call(capsys, "requeue", "2")


@pytest.mark.slow
def test_the_words_come_out_of_a_pipe(sample: Sample9) -> None:
    done = subprocess.run([sys.executable, "-m", "gpusched", "requeue", "2"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("job 2: queued again\n"), done.stderr
