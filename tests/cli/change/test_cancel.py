"""`gpusched cancel`: the request in the store, the dispatcher that is woken, and the texts."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from gpusched.cli import main as front
from gpusched.common import processes
from gpusched.core.model import Attributes, JobSpec, JobState, Requirements
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir
from gpusched.host.store import job_table, submission
from gpusched.operations.addresses import find_jobs
from gpusched.operations.queues import open_store
from gpusched.views.changes import change_lines
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, PID, Sample9, dispatched_by


def test_cancel_stores_the_request_and_wakes_the_dispatcher(
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
        (["cancel", "7-5"], "there is no job 7-5 in the queue"),
        (["cancel", "five"], "there is no job 'five'"),
        (["cancel", "9" * 30], "there is no job '999"),
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


def test_without_a_dispatcher_the_shepherd_stops_the_job(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    shepherd, life = live_attempt(sample, 3)
    try:
        out = call(capsys, "cancel", "3")
        assert out == "job 3: is being stopped without a dispatcher, since none works on this queue\n"
        assert shepherd.wait(5) == -signal.SIGTERM
    finally:
        shepherd.kill()
        os.close(life)
    assert job_table.get(sample.store, 3).cancel_requested_at == NOW  # so that the next dispatcher knows why it ended
    assert "no longer seen running" in call(capsys, "cancel", "3")


def test_a_job_may_be_named(sample: Sample9, capsys: Capture) -> None:
    spec = JobSpec(b"sleep 9", b"sleep 9", 40, attributes=Attributes(name="wide"))
    submission.submit(sample.store, [spec], lambda _: Requirements(name="wide"), NOW, append=True)
    assert call(capsys, "cancel", "wide") == "job 10: cancelled\n"


@pytest.mark.parametrize("words", [["4,5"], ["4-5"], ["4..5"], ["4,", "5"]])
def test_jobs_are_named_by_ranges_and_commas(sample: Sample9, words: list[str]) -> None:
    with open_store(sample.place) as store:
        assert find_jobs(store, words) == [4, 5]


def test_the_verb_agrees_with_the_number_of_jobs() -> None:
    texts = {"is being stopped": [3, 4], "has failed before": [5, 7], "was cancelled before": [8], "held": [9, 10]}
    assert change_lines(texts) == [
        "jobs 3-4: are being stopped",
        "jobs 5, 7: have failed before",
        "job 8: was cancelled before",
        "jobs 9-10: held",
    ]
