"""A GPU on which every job fails at once, beside one that is well."""

from __future__ import annotations

import time

from tests.support.box import GPUSCHED, Box, wait_for

BROKEN_ON = 'test "$CUDA_VISIBLE_DEVICES" != {gpu} || exit 9; sleep {s}; true {n}'
HASTY = [
    GPUSCHED[0],
    "-c",
    "from gpusched.core.plan import quarantine\n"
    "quarantine.PAUSE_FIRST_S = 2.0\n"
    "from gpusched.cli.main import main\n"
    "main()",
]


def test_a_black_hole_fails_three_jobs_and_no_more(box: Box) -> None:
    ended = box.run(*[BROKEN_ON.format(gpu=0, s=0.3, n=n) for n in range(20)])
    assert ended.code == 1
    failed = [row.job.id for row in box.jobs() if row.state == "failed"]
    assert 3 <= len(failed) <= 4, ended.text
    assert {row.indices[0] for row in box.jobs()[6:]} == {1}
    assert "is in quarantine: " in ended.out and "tried again with one job in 5 min" in ended.out
    assert f"`gpusched requeue {' '.join(map(str, failed))} -q list`" in ended.out


def test_retries_go_to_another_card(box: Box) -> None:
    ended = box.run(*[BROKEN_ON.format(gpu=0, s=0.1, n=n) for n in range(6)], options="--retries 1")
    assert ended.code == 0, ended.text
    assert all(row.indices == [1] for row in box.jobs())


def test_a_failed_job_that_a_person_queues_again_goes_to_another_card(box: Box) -> None:
    assert box.run(BROKEN_ON.format(gpu=0, s=0, n=1)).code == 1
    assert box.run(BROKEN_ON.format(gpu=0, s=0, n=1), options="--retry-failed").code == 0
    assert box.jobs()[0].indices == [1]


def test_the_reason_is_shown_and_the_card_is_tried_again(box: Box) -> None:
    lines = [BROKEN_ON.format(gpu=0, s=1, n=n) for n in range(20)]
    lines[6:] = [f"sleep 1 #{n}" for n in range(14)]  # by now somebody has mended it
    running = box.spawn("run", box.write(*lines), "--max-gpus", "2", program=HASTY)
    running.wait_until_said("is in quarantine")
    assert "in quarantine: 3 jobs" in box.gpusched("devices", "--json").out
    running.wait_until_said("is tried again with one job")
    began = time.monotonic()
    wait_for(lambda: any(row.state == "succeeded" and row.indices == [0] for row in box.jobs()))
    assert time.monotonic() - began < 30
    running.process.kill()


def test_jobs_that_fail_everywhere_go_on_everywhere(box: Box) -> None:
    ended = box.run(*[f"exit 9 #{n}" for n in range(12)])
    assert ended.code == 1 and "quarantine" not in ended.out
    assert {row.indices[0] for row in box.jobs()[6:]} == {0, 1}
