"""`gpusched explain`: each state of a job, with and without a dispatcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.config.settings import Settings
from gpusched.core.model import Outcome, OutcomeKind
from gpusched.host.store import job_table, submission
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations.look import reasons
from gpusched.views.failures import hint
from tests.support.build import attempt_row, job_row
from tests.support.command_line import Capture, shown
from tests.support.golden import golden
from tests.support.sample import NOW, OK, Sample9, stand_still


@pytest.mark.parametrize("job", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_explain(job: int, dispatched: Sample9, capsys: Capture) -> None:
    golden(f"explain-{job}", shown(capsys, "explain", str(job)), home=dispatched.home)


def test_what_waits_for_held_jobs_alone_needs_no_dispatcher(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    sample, rules = Sample9(tmp_path), SubmitOptions(Settings(), b"/")
    submission.submit(sample.store, read(b"[name=a] true\n[after=a] true\n", rules, "x").specs, rules.needs, NOW)
    assert "no dispatcher; to continue: " in shown(capsys, "status", "-q", str(sample.place.path))
    job_table.hold(sample.store, 1)
    out = shown(capsys, "status", "-q", str(sample.place.path))
    assert "nothing is left but held jobs and what waits for them: gpusched release JOB" in out
    sample.close()


def test_what_many_jobs_do_that_one_waits_for_is_told_together(sample: Sample9, capsys: Capture) -> None:
    lines = "".join(f"[tag=t] true {n}\n" for n in range(6)) + "[after=t after-any=1] true\n"
    store = sample.store
    submission.submit(
        store,
        read(lines.encode(), SubmitOptions(Settings(), b"/"), "x").specs,
        SubmitOptions(Settings(), b"/").needs,
        NOW,
        append=True,
    )
    assert "waits after jobs 10-15 (queued); after-any job 1 (succeeded)\n" in shown(capsys, "explain", "16")
    sample.attempt(10, OK, 3590, 3591)
    sample.start(12, 3592)
    assert "waits after jobs 10 (succeeded), 11, 13-15 (queued), 12 (running); " in shown(capsys, "explain", "16")


def test_explain_says_what_a_job_asks_for(sample: Sample9, capsys: Capture) -> None:
    options = SubmitOptions(Settings(), b"/")
    stated = b"gpus=2 mem=18G time=2h retries=1 cpus=4 alone=yes env.HF_TOKEN=secret tag=t prio=1"
    lines = b"[%b] true 1\n[mem=auto] true 2" % stated
    submission.submit(sample.store, read(lines, options, "x").specs, options.needs, NOW, append=True)
    asks = "  asks for gpus=2 mem=18G time=2h retries=1 cpus=4 alone=yes env.HF_TOKEN\n"
    assert asks in shown(capsys, "explain", "10")
    assert "  asks for mem=auto\n" in shown(capsys, "explain", "11")


def test_explain_without_a_dispatcher(sample: Sample9, capsys: Capture) -> None:
    golden("explain-at-rest", shown(capsys, "explain", "5"), home=sample.home)


def test_explain_without_a_job_explains_the_queue(dispatched: Sample9, capsys: Capture) -> None:
    job_table.hold(dispatched.store, 6)
    golden("explain-queue", shown(capsys, "explain"), home=dispatched.home)


def test_jobs_that_are_too_many_to_explain_are_counted(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "HEAD_LIMIT", 2)
    assert "waiting\n  jobs 5-6: no dispatcher works on this queue\n  1 more job behind them\n" in shown(
        capsys, "explain"
    )


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome(OutcomeKind.EXITED, 127), "--setup FILE sources a file before each"),
        (Outcome(OutcomeKind.EXITED, 137), "dmesg"),
        (Outcome(OutcomeKind.SIGNALLED, signal=9), "dmesg"),
        (Outcome(OutcomeKind.EXITED, 1, cause="host_oom"), "main memory, not the GPU"),
        (Outcome(OutcomeKind.TIMED_OUT, signal=15), "--time-limit TIME --retry-failed; time= in its line counts more"),
        (Outcome(OutcomeKind.LOST), "systemd, logind, docker stop"),
    ],
)
def test_explain_gives_hints(outcome: Outcome, says: str, sample: Sample9, capsys: Capture) -> None:
    sample.attempt(5, outcome, 3000, 3010, gpus=(2,))
    assert says in shown(capsys, "explain", "5")


def test_a_submitted_job_gets_a_longer_limit_by_edit() -> None:
    ended = attempt_row(outcome=Outcome(OutcomeKind.TIMED_OUT, signal=15))
    advice = hint(job_row(origin="submit"), ended)
    assert advice == "to give it longer: gpusched requeue JOB, then gpusched edit JOB --time TIME"
