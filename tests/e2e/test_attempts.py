"""The files and the processes of attempts: what a job may do to its own directory, and what is found of a lost one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box, wait_for
from tests.support.paths import TESTS

pytestmark = pytest.mark.slow

CRASH_DRIVER = [sys.executable, str(TESTS / "support" / "crash_driver.py")]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path)) if path.exists() else []


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["/*", ""])
def test_a_job_may_clear_its_own_directory(box: Box, what: str) -> None:
    ended = box.run(f'echo ran >> ran; touch "$GPUSCHED_ATTEMPT_DIR/x"; rm -rf "$GPUSCHED_ATTEMPT_DIR"{what}; env')
    assert ended.code == 0, ended.text
    assert box.read("ran") == "ran\n"
    (row,) = box.jobs()
    assert (row.outcome, len(row.attempts)) == ("exited 0", 1)
    assert "/lives/" not in row.said()


@pytest.mark.parametrize("restored", [False, True])
def test_the_record_of_an_earlier_queue_counts_for_nothing(box: Box, restored: bool) -> None:
    """queue.db is removed and the records are left; the new queue dies before it has started the job of that number."""

    def die_at(step: str) -> None:
        ended = box.spawn("list.txt", step, "1", program=CRASH_DRIVER).wait()
        assert ended.code == -signal.SIGKILL, ended.text

    box.write("echo ran >> ran")
    die_at("handed over")
    life = box.queue() / "lives/1.1"
    wait_for(lambda: "record=whole" in life.read_text())
    stale = life.read_bytes()
    for path in box.queue().glob("queue.db*"):
        path.unlink()
    die_at("booked")
    if restored:
        life.write_bytes(stale)
    assert box.gpusched("run", "list.txt").code == 0
    assert box.read("ran") == "ran\n" * 2
    assert [len(row.attempts) for row in box.jobs()] == [2]
