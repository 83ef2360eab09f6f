"""`gpusched top` on a terminal of its own, beside a dispatcher with simulated GPUs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.support.box import GPUSCHED, SIMJOB, Box, Running, wait_for
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with Box(tmp_path_factory.mktemp("top"), "2") as box:
        yield box


@pytest.fixture(scope="module")
def run(box: Box) -> Running:
    lines = [f"{SIMJOB} --mem 8000 --hold 300 --util {n * 10} # {n}" for n in range(3, 8)]
    run = box.start("run", box.write(*lines))
    wait_for(lambda: box.running() == 2)
    return run


def top(box: Box, *words: str, columns: int = 100, lines: int = 30, **environment: str) -> Terminal:
    return Terminal(
        [*GPUSCHED, "top", *words], box.work, {**box.environment, **environment}, columns=columns, lines=lines
    )


def test_it_shows_cancels_and_leaves_and_nothing_stops(box: Box, run: Running) -> None:
    with top(box) as terminal:
        terminal.await_text("2 running, 3 queued")
        terminal.await_text("simjob: pid")  # the log of the first job
        assert any(" job 1 " in line and " 30% " in line and "8000/81920" in line for line in terminal.shown())
        assert any("waits for a GPU" in line for line in terminal.shown())
        terminal.press("c")
        terminal.await_text("Cancel job 1")
        terminal.press("y")
        terminal.await_text("2 running, 2 queued, 0 succeeded, 0 failed, 1 cancelled")
        terminal.resize(80, 24)
        terminal.await_text("? Keys")
        terminal.press("q")
        assert terminal.wait() == 0
    assert box.running() == 2 and run.process.poll() is None


def test_the_log_opens_in_the_pager_and_the_screen_comes_back(box: Box, run: Running) -> None:
    with top(
        box, "list", PAGER=f"{sys.executable} -c 'import sys; print(\"PAGER\", *sys.argv); sys.stdin.readline()'"
    ) as terminal:
        terminal.await_text("simjob: pid")
        terminal.press("l")
        terminal.await_text("logs/000")
        assert "PAGER" in "\n".join(terminal.shown())
        terminal.press("\n")
        terminal.await_text("? Keys")
        terminal.press("d")
        assert terminal.wait() == 0


@pytest.mark.parametrize("how", ["hang up", "terminate", "ctrl-c"])
def test_a_terminal_that_is_closed_ends_it_and_no_job(box: Box, run: Running, how: str) -> None:
    with top(box, "--all") as terminal:
        terminal.await_text("2 running")
        if how == "hang up":
            assert terminal.hang_up() != 1
        elif how == "terminate":
            os.kill(terminal.pid, signal.SIGTERM)
            terminal.wait()
        else:
            terminal.press("\x03")
            assert terminal.wait() == 0
    assert box.running() == 2 and run.process.poll() is None


def test_without_colour_the_chosen_job_is_reversed(box: Box, run: Running) -> None:
    with top(box, NO_COLOR="1") as terminal:
        terminal.await_text("2 running")
        terminal.listen(lambda: any("simjob: pid" in line for line in terminal.shown()))
        cells = [cell for row in terminal.screen.buffer.values() for cell in row.values()]
        assert {cell.fg for cell in cells} | {cell.bg for cell in cells} == {"default"}
        (chosen,) = {y for y, row in terminal.screen.buffer.items() if row[3].reverse and row[90].reverse}
        assert "running" in terminal.screen.display[chosen]


def test_it_needs_a_terminal(box: Box) -> None:
    ended = box.gpusched("top")
    assert ended.code == 3 and "top: needs a terminal" in ended.err and "gpusched status" in ended.err
