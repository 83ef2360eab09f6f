"""Settings that a queue keeps, and its pause: stored, shown, counted at a start, and refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.config import layers
from gpusched.config.settings import Settings
from gpusched.core.model import JobState
from gpusched.host.store import job_table, meta_table, request_table
from gpusched.operations.run.list_queue import submit_options
from gpusched.operations.run.resume import resume_command
from gpusched.operations.run.stored import read_set, with_stored
from tests.cli.change.test_cancel import live_attempt
from tests.support.command_line import Capture, call
from tests.support.sample import PID, Sample9, a_board, dispatched_by


def kept(sample: Sample9) -> Settings:
    return Settings.from_json(meta_table.read(sample.store, "settings") or "")


def test_settings_are_stored_until_they_are_set_again(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert call(capsys, "set") == "nothing is set for this queue\n"
    assert call(capsys, "set", "max-gpus", "poll_interval") == (
        "max-gpus=4  (not set for this queue)\npoll_interval=2  (not set for this queue)\n"
    )
    assert call(capsys, "set", "max-gpus=2", "--json") and read_set(sample.store) == {"max_gpus": 2}
    out = call(capsys, "set", "max_jobs_per_gpu=3", "poll-interval=5")
    assert out.splitlines() == [
        "max-gpus=2",
        "max-jobs-per-gpu=3",
        "poll-interval=5",
        "no dispatcher works on this queue: this counts from its next start on",
    ]
    assert (kept(sample).max_gpus, kept(sample).max_jobs_per_gpu, kept(sample).poll_interval) == (2, 3, 5.0)
    assert "max-gpus" not in call(capsys, "set", "max-gpus=")
    assert kept(sample).max_gpus is None and rung
    assert json.loads(call(capsys, "set", "--json"))["set"] == {"max_jobs_per_gpu": 3, "poll_interval": 5.0}
    assert request_table.open_requests(sample.store) == []


def test_a_dispatcher_is_asked_to_go_by_them(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    assert call(capsys, "set", "max-gpus=2") == "max-gpus=2\n"
    assert [kind for _, kind, _ in request_table.open_requests(sample.store)] == ['set {"max_gpus": 2}']


def test_what_is_set_counts_more_than_files_and_less_than_a_flag(
    sample: Sample9, rung: list[str], capsys: Capture
) -> None:
    Path(sample.home, "gpusched.yaml").write_text("max_gpus: 7\nretries: 1\n")
    call(capsys, "set", "max-gpus=2")
    assert with_stored(layers.load(), sample.store).max_gpus == 2
    assert with_stored(layers.load({"max_gpus": "5"}), sample.store).max_gpus == 5
    assert with_stored(layers.load(environ={"GPUSCHED_MAX_GPUS": "6"}), sample.store).max_gpus == 6
    assert submit_options(sample.place, layers.load()).settings.max_gpus == 2
    assert "--max-gpus" not in resume_command(sample.place, sample.store)
    call(capsys, "set", "max-gpus=")
    assert submit_options(sample.place, layers.load()).settings.max_gpus == 7
    assert kept(sample).max_gpus == 7


def test_what_is_set_counts_for_a_start_beside_a_dispatcher(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    Path(sample.home, "gpusched.yaml").write_text("max_gpus: 7\n")
    call(capsys, "set", "max-gpus=2")
    assert submit_options(sample.place, layers.load()).settings.max_gpus == 2
    assert submit_options(sample.place, layers.load({"max_gpus": "3"})).settings.max_gpus == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["max-gpu=2"], "max-gpu=2: is no setting with its value\n  did you mean max-gpus=2?"),
        (["max-gpu"], "max-gpu: is no setting with its value\n  did you mean max-gpus=VALUE?"),
        (["max-gpus=x"], "max_gpus is 'x', but must be"),
        (["max-gpus=2", "retries=3"], "retries: cannot change while a queue is dispatched\n  it is of each job"),
        (["log-dir=x"], "cannot change while a queue is dispatched\n  it is taken when a dispatcher starts"),
        (["simulate=4"], "cannot change while a queue is dispatched"),
    ],
)
def test_what_cannot_be_set_changes_nothing(words: list[str], says: str, sample: Sample9, capsys: Capture) -> None:
    assert front.run(["set", *words]) == 2
    assert says in capsys.readouterr().err
    assert read_set(sample.store) == {}


def test_a_limit_that_lets_no_job_start_is_refused(sample: Sample9, capsys: Capture) -> None:
    meta_table.write(sample.store, "settings", Settings(gpus_per_job=4).to_json())
    assert front.run(["set", "max-gpus=2"]) == 2
    assert "max-gpus=2: would let no job start\n  each job of this queue gets 4 GPUs" in capsys.readouterr().err
    assert read_set(sample.store) == {}


def test_surplus_gpus_are_handed_back_without_a_dispatcher(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert "no more GPUs are in use than may be" in call(capsys, "set", "--now")
    sample.start(5, 3500, gpus=(2,))
    shepherd, life = live_attempt(sample, 5)
    try:
        out = call(capsys, "set", "max-gpus=1", "--now")
        assert "job 5: is being stopped, and queued again: no try is spent\n" in out
        assert shepherd.wait(5) == -15
    finally:
        shepherd.kill()
        os.close(life)
    assert [kind for _, kind, _ in request_table.open_requests(sample.store)] == []
    assert "job 5: is no longer seen running\n" in call(capsys, "set", "--now", code=1)


def test_surplus_gpus_are_handed_back_by_the_dispatcher(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    sample.publish(a_board())
    sample.start(5, 3500, gpus=(2,))
    assert "no more GPUs are in use" in call(capsys, "set", "--now")
    assert "job 5: is being stopped, and queued again" in call(capsys, "set", "max-gpus=1", "--now")
    kinds = [kind for _, kind, _ in request_table.open_requests(sample.store)]
    assert kinds == ["hand_back", 'set {"max_gpus": 1}', "hand_back"]
    assert job_table.get(sample.store, 5).state is JobState.RUNNING  # that is for the dispatcher to change


# ---- pause -----------------------------------------------------------------------------------------


def test_a_paused_queue_says_so_everywhere(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert call(capsys, "pause") == (
        "the queue gpusched-runs/commands is paused: nothing new starts, what runs goes on (1 job)\n"
        "to go on: gpusched resume -q commands\n"
    )
    assert rung == [sample.place.path]
    why = f"the queue is paused; to go on: gpusched resume -q {sample.place.name}"
    assert f"why   {why}\n" in call(capsys, "explain", "5")
    page = call(capsys, "status")
    assert "paused: nothing new starts; no dispatcher; to go on: gpusched resume -q commands\n" in page and why in page
    assert json.loads(call(capsys, "status", "--json"))["queues"][0]["waits_for"] == why
    assert call(capsys, "requeue", "2") == f"job 2: queued again\n{why}\n"
    assert "was paused before" in call(capsys, "pause", "commands")
    resumed = json.loads(call(capsys, "resume", "--json"))
    assert (resumed["paused"], resumed["changed"]) == (False, True)
    assert resumed["notes"] == [
        "the queue gpusched-runs/commands goes on",
        "no dispatcher works on this queue; to run what is queued: gpusched run commands.txt",
    ]
    assert call(capsys, "resume").startswith("the queue gpusched-runs/commands is not paused\n")
    assert "paused" not in call(capsys, "status")
