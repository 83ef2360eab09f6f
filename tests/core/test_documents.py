"""The JSON documents made of a queue's rows: gpu_metrics.json, `status --json`, and a job's own progress."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.documents import job_document, metrics_head, parse_progress, shown_command
from gpusched.core.model import DeviceUse, JobState, Outcome, OutcomeKind, Usage
from tests.support import build

JOB = build.job_row(
    7,
    command=b"python train.py --hub_token hf_abcdefghijklmnopqrstuvwxyz0123456789",
    line=12,
    cwd=b"/home/ann/caf\xe9",
    state=JobState.FAILED,
    retries=1,
    tries=2,
    attempts=2,
    submitted_at=100.0,
    first_started_at=160.0,
    ended_at=330.0,
)
FIRST = build.attempt_row(
    7,
    started_at=160.0,
    ended_at=200.0,
    outcome=Outcome(OutcomeKind.EXITED, exit_code=1),
    log="logs/0007.1.log",
)
LAST = build.attempt_row(
    7,
    2,
    started_at=230.0,
    ended_at=330.0,
    outcome=Outcome(OutcomeKind.SIGNALLED, signal=9, cause="host_oom", note="background"),
    log="logs/0007.2.out.log",
    error_log="logs/0007.2.err.log",
    devices=(DeviceUse("GPU-a", 3, "A10"),),
    usage=Usage(50, 2000, 1500.0, 0.5, 9.0),
    max_rss_bytes=4000,
    cpu_s=12.5,
    progress='{"done": 5, "total": 10}',
)


# ---- progress --------------------------------------------------------------------------------------


def test_a_progress_file_as_it_should_be() -> None:
    told = {"done": 12, "total": 100.5, "unit": "layers", "message": "layer 12", "ready": True}
    assert parse_progress(json.dumps(told)) == told
    assert parse_progress(json.dumps(told).encode()) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "3",
        "[1]",
        '"done"',
        b"\xff\xfe",
        b'{"done": "\xff"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 9000,
    ],
)
def test_what_is_no_progress_is_none(text: str | bytes) -> None:
    assert parse_progress(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"done": "12", "total": null, "unit": 3, "message": ["x"], "ready": 1, "pid": 5}',
        '{"done": NaN, "total": Infinity}',
        '{"done": true, "total": 1e400}',
        '{"done": -1000000000000000000000}',
    ],
)
def test_values_of_wrong_types_or_sizes_are_left_out(text: str) -> None:
    assert parse_progress(text) == {}


def test_a_message_is_text_that_can_be_printed_and_is_short() -> None:
    assert parse_progress('{"message": "a\\ud800b"}') == {"message": "a?b"}
    assert parse_progress(json.dumps({"message": "x" * 999})) == {"message": "x" * 200}


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(st.text(), st.binary(), st.dictionaries(st.sampled_from(["done", "message"]), st.text()).map(json.dumps))
)
def test_no_progress_file_breaks_anything(text: str | bytes) -> None:
    json.dumps(parse_progress(text), allow_nan=False, ensure_ascii=False).encode("utf-8")


# ---- a job -----------------------------------------------------------------------------------------


def test_a_job_with_its_newest_attempt() -> None:
    document = job_document(JOB, [FIRST, LAST], "/q")
    stated = {
        "id": 7,
        "line": 12,
        "state": "failed",
        "outcome": "signalled",
        "cause": "host_oom",
        "note": "background",
        "exit_code": None,
        "signal": 9,
        "devices": [{"uuid": "GPU-a", "index": 3, "name": "A10"}],
        "queued_at": 100.0,
        "started_at": 230.0,
        "ended_at": 330.0,
        "wait_s": 60.0,
        "runtime_s": 140.0,
        "tries": 2,
        "attempts": 2,
        "log": "/q/logs/0007.2.out.log",
        "error_log": "/q/logs/0007.2.err.log",
        "peak_memory_bytes": 2000,
        "mean_memory_bytes": 1500.0,
        "mean_utilisation": 0.5,
        "energy_j": 9.0,
        "progress": {"done": 5, "total": 10},
    }
    assert {key: document[key] for key in stated} == stated
    json.dumps(document, allow_nan=False)


def test_a_secret_is_not_in_the_document() -> None:
    assert "hf_abc" not in json.dumps(job_document(JOB, [FIRST, LAST], "/q"))
    assert "hf_abc" not in shown_command(JOB.command)
    assert shown_command(b"echo caf\xe9") == "echo caf\N{REPLACEMENT CHARACTER}"


def test_a_job_that_has_not_started() -> None:
    waiting = replace(JOB, state=JobState.QUEUED, first_started_at=None, ended_at=None, attempts=0, tries=0)
    document = job_document(waiting, [], "/q")
    nothing = ("outcome", "cause", "exit_code", "signal", "started_at", "ended_at", "wait_s", "log", "energy_j")
    assert [document[key] for key in nothing] == [None] * len(nothing)
    assert (document["devices"], document["runtime_s"], document["progress"]) == ([], 0, {})


def test_documents_of_all_jobs_have_the_same_keys() -> None:
    assert list(job_document(JOB, [], "/q")) == list(job_document(JOB, [FIRST], "/q"))


def test_the_cause_of_a_job_comes_before_that_of_its_attempt() -> None:
    assert job_document(replace(JOB, cause="removed"), [LAST], "/q")["cause"] == "removed"


# ---- the head of gpu_metrics.json ------------------------------------------------------------------

TOTALS = {"total_wait_time": 30.0, "started_jobs": 6, "total_job_time": 80.0, "total_runtime": 50.0, "start_time": 1.0}


def counts(**states: int) -> dict[JobState, int]:
    return {state: states.get(state.value, 0) for state in JobState}


def test_totals_and_rates() -> None:
    head = metrics_head(counts(succeeded=4, failed=1, cancelled=1, running=1, queued=1, held=1), TOTALS, 60.0)
    stated = {
        "schema_version": 1,
        "total_jobs": 9,
        "successful_jobs": 4,
        "failed_jobs": 1,
        "cancelled_jobs": 1,
        "running_jobs": 1,
        "queued_jobs": 2,
        "total_wait_time": 30.0,
        "avg_wait_time": 5.0,
        "total_runtime": 50.0,
        "start_time": 1.0,
        "timestamp": 60.0,
    }
    assert {key: head[key] for key in stated} == stated
    assert (head["success_rate"], head["failure_rate"]) == pytest.approx((4 / 9, 1 / 9))


def test_an_empty_queue_divides_by_nothing() -> None:
    head = metrics_head(counts(), TOTALS | {"started_jobs": 0, "total_wait_time": 0.0}, 60.0)
    assert (head["success_rate"], head["failure_rate"], head["avg_wait_time"]) == (0.0, 0.0, 0.0)
