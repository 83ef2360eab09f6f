"""`gpusched report`: the page of a queue, from what the store and the samples hold."""

from __future__ import annotations

import json
import os

import pytest

from gpusched.cli import main as front
from gpusched.core.samples import GpuStretch, Stretch
from gpusched.host.queue.samples import SampleFile
from gpusched.host.store import attempt_table
from gpusched.operations.look.story import read_last_lines, read_story
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, Sample9, gpu
from tests.views.test_story import data_of


def test_the_report_lies_in_the_queue_for_its_owner_alone(dispatched: Sample9, capsys: Capture) -> None:
    path = f"{dispatched.place.path}/report.html"
    assert call(capsys, "report") == f"{path}\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with open(path, encoding="utf-8") as file:
        jobs = data_of(file.read())["jobs"]
    assert [(row[0], row[1], row[6]) for row in jobs][:4] == [
        (1, "succeeded", 1),
        (2, "failed", 2),
        (3, "running", 1),
        (4, "failed", 2),
    ]
    call(capsys, "report", "commands", "-o", "night.html")
    assert (dispatched.home / "night.html").exists()


def test_where_it_cannot_be_written(sample: Sample9, capsys: Capture) -> None:
    assert front.run(["report", "-o", "no/such/place.html"]) == 3
    assert "no/such/place.html" in capsys.readouterr().err


def test_the_story_has_the_numbers_of_status_and_usage(dispatched: Sample9, capsys: Capture) -> None:
    gpus = {gpu(0).uuid: GpuStretch(0, ours_s=10.0, working_s=10.0)}
    SampleFile(dispatched.place.samples).append(Stretch(NOW - 20, NOW - 10, 10.0, gpus=gpus))
    story = read_story(dispatched.place)
    status = json.loads(call(capsys, "status", "--json"))["queues"][0]
    total = json.loads(call(capsys, "usage", "--json"))["total"]
    counts = story.report.summary.counts
    assert (counts.succeeded, counts.failed) == (status["successful_jobs"], status["failed_jobs"])
    assert story.together.document() == total
    assert [job.id for job, _ in story.jobs] == list(range(1, 10)) and len(story.stretches) == 1
    assert (story.began_at, story.ended_at) == (NOW - 3600, NOW)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"\x1b[31mred\x1b[0m\r\n 10%\r 20%\r 30%", ["red", " 30%"]),
        (b"export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\n", ["export HF_TOKEN=***"]),
        (b"\n".join(b"%d" % n for n in range(40)), [str(n) for n in range(28, 40)]),
        (b"x" * 900, ["x" * 500]),
    ],
)
def test_the_last_lines_of_a_log(sample: Sample9, data: bytes, lines: list[str]) -> None:
    sample.log(2, 2, data)
    attempt = attempt_table.attempts(sample.store, 2)[-1]
    assert read_last_lines(sample.place, attempt) == lines
