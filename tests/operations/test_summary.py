"""The summary at the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpusched.cli.run.session import print_summary
from gpusched.core.model import JobSpec, Outcome, OutcomeKind, Requirements
from gpusched.host.store import submission
from gpusched.operations.look import status
from gpusched.operations.run.run import RunQueue
from gpusched.views import pages
from tests.support.command_line import Capture
from tests.support.golden import golden
from tests.support.sample import EXIT_3, NOW, Sample9


@pytest.fixture
def ended(sample: Sample9) -> Iterator[RunQueue]:
    with RunQueue(sample.place) as queue:
        yield queue


@pytest.mark.parametrize("code", [1, 130, 131])
def test_the_summary(code: int, ended: RunQueue, sample: Sample9, capsys: Capture) -> None:
    print_summary(ended, code, as_json=False)
    golden(f"summary-{code}", capsys.readouterr().out, home=sample.home)


def test_the_summary_as_json(ended: RunQueue, capsys: Capture) -> None:
    print_summary(ended, 1, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["total_jobs"], found["failed_jobs"]) == (1, 8, 2)
    assert [job["id"] for job in found["failed"]] == [2, 4]


def test_failures_of_one_reason_are_one(sample: Sample9, ended: RunQueue, capsys: Capture) -> None:
    texts = [b"python trian.py %d" % n for n in range(30)]
    submission.submit(
        sample.store, [JobSpec(t, t, n) for n, t in enumerate(texts)], lambda _: Requirements(), NOW, append=True
    )
    missing = Outcome(OutcomeKind.EXITED, exit_code=2, note="python: can't open file 'trian.py'")
    with sample.store.transaction():
        for job_id in range(10, 40):
            sample.attempt(job_id, missing, 3590, 3591)
    print_summary(ended, 1, as_json=False)
    out = capsys.readouterr().out
    assert "  30 jobs: exit 2, python: can't open file 'trian.py' (jobs 10-39)\n      python trian.py 0\n" in out
    assert out.count("trian.py") == 2 and "more" not in out  # the reason, and the first command
    assert "job 2, line 3: exit 3\n" in out
    page = "\n".join(text.plain for text in pages.queue_page(status.read_queue(sample.place)))
    assert "30 jobs: exit 2, python: can't open file 'trian.py' (jobs 10-39)\n" in page and "more (-v" not in page


def test_reasons_that_differ_in_numbers_are_one(sample: Sample9, ended: RunQueue, capsys: Capture) -> None:
    texts = [b"python train.py %d" % n for n in range(3)]
    submission.submit(
        sample.store, [JobSpec(t, t, n) for n, t in enumerate(texts)], lambda _: Requirements(), NOW, append=True
    )
    with sample.store.transaction():
        for n in range(3):
            missing = f"FileNotFoundError: [Errno 2] No such file or directory: 'data/{n:03}.pt'"
            sample.attempt(10 + n, Outcome(OutcomeKind.EXITED, exit_code=1, note=missing), 3590, 3591)
    print_summary(ended, 1, as_json=False)
    assert "3 jobs: exit 1, such as FileNotFoundError: [Errno 2] " in (out := capsys.readouterr().out)
    assert "directory: 'data/000.pt' (jobs 10-12)\n" in out and "001.pt" not in out


def test_a_long_list_of_failures_is_cut(sample: Sample9, ended: RunQueue, capsys: Capture) -> None:
    texts = [b"false %d" % n for n in range(30)]
    submission.submit(
        sample.store, [JobSpec(t, t, n) for n, t in enumerate(texts)], lambda _: Requirements(), NOW, append=True
    )
    with sample.store.transaction():
        for job_id in range(10, 40):
            sample.attempt(job_id, EXIT_3, 3590, 3591)
    print_summary(ended, 1, as_json=False)
    out = capsys.readouterr().out
    assert out.count("exit 3") == 19 and "… and 12 more: gpusched status -q" in out
