"""`gpusched wait`: the exit code, what keeps jobs from starting, and jobs that are not there."""

from __future__ import annotations

import json
import threading
import time

import pytest

from gpusched.cli import main as front
from gpusched.core.jobs.lifecycle import JobEvent, judge
from gpusched.core.model import JobState, Outcome
from gpusched.host.queue import queue_dirs
from gpusched.host.store import Store, attempt_table, cleaning, job_table
from gpusched.host.store.attempt_table import AttemptEnd
from gpusched.operations.look.wait import LOOK_S, wait_for
from tests.support.command_line import Capture, call, shown
from tests.support.sample import EXIT_3, NOW, OK, Sample9


@pytest.mark.parametrize(
    ("jobs", "code"),
    [
        (["1"], 0),
        (["1", "2"], 1),
        (["8"], 1),  # cancelled by a person
        (["9"], 1),  # its line is gone, but who names it means it
        (["1", "3", "--any"], 0),
        (["2", "3", "--any"], 1),
        (["3", "--timeout", "0.1"], 124),
        (["99"], 2),
    ],
)
def test_the_exit_code_is_that_of_a_run_of_these_jobs(
    jobs: list[str], code: int, dispatched: Sample9, capsys: Capture
) -> None:
    call(capsys, "wait", *jobs, code=code)


def test_what_makes_the_code_bad_is_named(dispatched: Sample9, capsys: Capture) -> None:
    said = shown(capsys, "wait", "1", "2", "8", "9", code=1)
    assert "1 job failed: 2\n" in said and "2 jobs cancelled: 8-9\n" in said


def test_it_is_said_how_to_leave_old_jobs_of_a_standing_queue_out(
    dispatched: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wait_for(dispatched.place, ["2"]).code == 1 and "earlier" not in shown(capsys, "wait", "2", code=1)
    for job_id in (3, 5, 6, 7):
        dispatched.store.execute("UPDATE jobs SET state = 'succeeded', ended_at = 1 WHERE id = ?", (job_id,))
    assert "earlier jobs" not in shown(capsys, "wait", code=1)  # of a list, they are what is meant
    monkeypatch.setattr(queue_dirs, "is_standing", lambda queue: True)
    assert "name those that are meant, or `gpusched clean -q " in shown(capsys, "wait", code=1)


def test_without_a_job_all_are_meant_that_are_there_now(dispatched: Sample9, capsys: Capture) -> None:
    store = dispatched.store
    for job_id in (5, 6, 7):
        job_table.cancel(store, job_id, NOW)
    call(capsys, "wait", "--timeout", "0", code=124)  # job 3 runs
    end(store, 3, OK)
    call(capsys, "wait", code=1)  # some have failed
    cleaning.remove(store, NOW + 10)
    call(capsys, "wait", code=0)


def test_a_wait_ends_with_the_job_and_is_awake_at_once(dispatched: Sample9) -> None:
    noted: list[float] = []

    def live() -> None:
        with Store(dispatched.place.database) as store:
            job_table.hold(store, 6)  # a change that ends nothing
            end(store, 3, EXIT_3)
            noted.append(time.monotonic())

    writer = threading.Timer(0.3, live)
    writer.start()
    report = wait_for(dispatched.place, ["3"], timeout_s=20)
    late_s = time.monotonic() - noted[0]
    writer.join()
    assert (report.code, [job.state for job in report.jobs]) == (1, [JobState.FAILED])
    assert late_s < LOOK_S - 1  # 0.1 s on a machine at rest


def test_a_job_that_was_queued_again_meanwhile_is_waited_for(dispatched: Sample9) -> None:
    def live() -> None:
        with Store(dispatched.place.database) as store:
            job_table.requeue(store, 2)  # it had ended when the wait began
            end(store, 3, OK)

    writer = threading.Timer(0.3, live)
    writer.start()
    report = wait_for(dispatched.place, ["2", "3"], timeout_s=3)
    writer.join()
    assert report.code == 124


def test_what_keeps_jobs_from_starting_is_said_at_once(sample: Sample9, capsys: Capture) -> None:
    job_table.hold(sample.store, 5)
    assert front.run(["wait", "5-7", "--timeout", "0"]) == 124
    said = capsys.readouterr().err
    assert "job 5 is held: `gpusched release JOB -q commands` lets a job start" in said
    assert "no dispatcher works on this queue; to go on: gpusched run commands.txt" in said
    assert "3 jobs of 3 have not ended in time" in said


def test_a_job_that_is_cleaned_away_ends_the_wait(sample: Sample9, capsys: Capture) -> None:
    cleaning.remove(sample.store, NOW + 10)
    assert front.run(["wait", "2"]) == 2
    assert "job 2 was cleaned away" in capsys.readouterr().err


def test_a_wait_as_json(dispatched: Sample9, capsys: Capture) -> None:
    found = json.loads(call(capsys, "wait", "1-2", "--json", code=1))
    assert found == {
        "schema_version": 1,
        "exit_code": 1,
        "jobs": [{"id": 1, "state": "succeeded", "cause": None}, {"id": 2, "state": "failed", "cause": None}],
    }


def end(store: Store, job_id: int, outcome: Outcome) -> None:
    """End the first attempt of a job."""
    verdict = judge(outcome, job_table.get(store, job_id), cancel_asked=False)
    verdict = verdict._replace(event=JobEvent.SUCCEEDED if outcome.ok else JobEvent.FAILED)
    attempt_table.close(store, job_id, 1, AttemptEnd(outcome, NOW), verdict, now=NOW)
