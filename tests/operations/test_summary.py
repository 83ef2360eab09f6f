"""The summary at the end of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpusched.api import Queue
from gpusched.cli.run.session import print_summary
from gpusched.core.model import JobSpec, Requirements
from gpusched.host.store import submission
from tests.support.command_line import Capture
from tests.support.golden import golden
from tests.support.sample import EXIT_3, NOW, Sample9


@pytest.fixture
def ended(sample: Sample9) -> Iterator[Queue]:
    with Queue(sample.place) as queue:
        yield queue


@pytest.mark.parametrize("code", [1, 130, 131])
def test_the_summary(code: int, ended: Queue, sample: Sample9, capsys: Capture) -> None:
    print_summary(ended, code, as_json=False)
    golden(f"summary-{code}", capsys.readouterr().out, home=sample.home)


def test_the_summary_as_json(ended: Queue, capsys: Capture) -> None:
    print_summary(ended, 1, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["exit_code"], found["total_jobs"], found["failed_jobs"]) == (1, 8, 2)
    assert [job["id"] for job in found["failed"]] == [2, 4]


def test_a_long_list_of_failures_is_cut(sample: Sample9, ended: Queue, capsys: Capture) -> None:
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
