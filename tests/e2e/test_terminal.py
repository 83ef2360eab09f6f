"""The live view in a terminal: another size, and keys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.box import UNTIL_GO, Box, wait_for
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

HOLD = f"{UNTIL_GO}; true #"
RUN = [sys.executable, "-m", "gpusched", "run", "list.txt"]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


def start(box: Box, *lines: str, argv: list[str] = RUN, columns: int = 80, height: int = 24) -> Terminal:
    box.write(*lines)
    return Terminal(argv, box.work, box.environment, columns=columns, lines=height)


# ---- another size ----------------------------------------------------------------------------------


def test_a_resized_terminal_shows_one_view_and_no_ghosts(box: Box) -> None:
    lines = ["false", *(HOLD + "x" * 90 + str(n) for n in range(5))]
    with start(box, *lines, columns=120, height=40) as terminal:
        terminal.await_text("3 queued")
        terminal.await_text("job 1 failed: exit 1")
        for columns, height in [(70, 40), (150, 50), (60, 12), (100, 30), (40, 8), (120, 40)]:
            terminal.resize(columns, height)
            terminal.listen(partial(is_fresh, terminal, columns))
            shown = terminal.shown()
            for start_of_line in ("gpusched  list", "next: "):
                assert sum(line.startswith(start_of_line) for line in shown) == 1, "\n".join(shown)
            assert sum("2 running" in line for line in shown) == 1, "\n".join(shown)
        assert sum("job 1 failed: exit 1" in line for line in shown) == 1, "\n".join(shown)
        (box.work / "go").touch()
        assert terminal.wait() == 1
        assert not any(line.startswith("gpusched  list") for line in terminal.shown())


def is_fresh(terminal: Terminal, columns: int) -> bool:
    """Whether the title is as long as the terminal is wide, and the view complete."""
    shown = terminal.shown()
    is_wide = any(line.startswith("gpusched  list") and len(line) == columns for line in shown)
    return is_wide and any(line.startswith("next: ") for line in shown[-2:])


# ---- keys ------------------------------------------------------------------------------------------


def test_keys_are_neither_echoed_nor_left_to_the_shell(box: Box) -> None:
    then = "read -t 0.3 -n 20 x; echo \"left [$x]\"; stty -a | grep -o -e ' icanon' -e ' echo '"
    argv = ["bash", "-c", f"{' '.join(RUN)}; {then}"]
    with start(box, HOLD + "1", argv=argv) as terminal:
        terminal.await_text("q: leave")
        terminal.press("ls -la\rc")
        terminal.press("\x1b[A\x1bOc rm x\r")
        (box.work / "go").touch()
        terminal.wait()
        shown = "\n".join(terminal.shown())
    assert "left []" in shown and "icanon" in shown and " echo" in shown
    assert "ls" not in shown and "rm x" not in shown
    assert box.states() == ["succeeded"]


def test_the_first_interrupt_can_be_taken_back(box: Box) -> None:
    with start(box, HOLD + "1", HOLD + "2", "true") as terminal:
        terminal.await_text("2 running")
        terminal.press("\x03")
        terminal.await_text("stopping (Ctrl-C): nothing new starts   c: go on after all")
        terminal.press("c")
        terminal.await_text("going on: jobs start again")
        (box.work / "go").touch()
        assert terminal.wait() == 0
    assert box.states() == ["succeeded"] * 3


def test_q_asks_and_can_be_left_again(box: Box) -> None:
    with start(box, HOLD + "1", "true") as terminal:
        terminal.await_text("q: leave")
        terminal.press("w")  # means nothing yet
        for key in ("q", "\x1b", "c"):
            terminal.press("q")
            terminal.await_text("s  stop what runs, and queue it again")
            terminal.press(key)
            terminal.listen(lambda: "s  stop what runs" not in "\n".join(terminal.shown()))
        (box.work / "go").touch()
        assert terminal.wait() == 0
    assert box.states() == ["succeeded"] * 2


@pytest.mark.parametrize(
    ("key", "code", "states"),
    [("w", 130, ["succeeded", "queued"]), ("s", 130, ["queued", "queued"]), ("d", 131, ["running", "queued"])],
)
def test_ways_to_leave(box: Box, key: str, code: int, states: list[str]) -> None:
    with start(box, HOLD + "1", "true", argv=[*RUN, "--max-gpus", "1"]) as terminal:
        terminal.await_text("1 running")
        terminal.press("q")
        terminal.await_text("c  do not leave")
        terminal.press(key)
        if key == "w":
            terminal.await_text("stopping (q): nothing new starts")
            (box.work / "go").touch()
        assert terminal.wait() == code
    assert box.states() == states


def test_in_the_background_it_leaves_the_terminal_to_others(box: Box) -> None:
    script = f'set -m; {" ".join(RUN)} & read x; echo "read [$x]"; touch go; wait %1; echo "ended $?"'
    with start(box, HOLD + "1", argv=["bash", "-c", script]) as terminal:
        wait_for(lambda: box.running() == 1)
        terminal.press("word\r")
        terminal.await_text("read [word]")
        terminal.await_text("ended 0")


def test_after_a_stop_the_view_is_drawn_anew_and_takes_keys_again(box: Box) -> None:
    with start(box, HOLD + "1", argv=["bash", "--norc", "-i"]) as terminal:
        terminal.press(" ".join(RUN) + "\r")
        terminal.await_text("1 running")
        terminal.press("\x1a")
        terminal.await_text("Stopped")
        terminal.press("fg\r")
        terminal.listen(lambda: "Stopped" not in "\n".join(terminal.shown()))
        terminal.await_text("1 running")
        assert sum(line.startswith("gpusched  list") for line in terminal.shown()) == 1, terminal.shown()
        terminal.press("q")
        terminal.await_text("c  do not leave")
        terminal.press("w")
        terminal.await_text("stopping (q): nothing new starts")


def test_jobs_that_are_typed_are_no_keys(box: Box) -> None:
    with start(box, argv=[*RUN[:-1], "-"]) as terminal:
        terminal.press("echo q > typed\r")
        terminal.await_text("echo q > typed")
        terminal.press("\x04")
        assert terminal.wait() == 0
    assert box.read("typed") == "q\n"


def test_what_was_set_meanwhile_counts_in_the_background(box: Box) -> None:
    lines = [f"while [ ! -e go{n} ]; do sleep 0.05; done" for n in range(4)]
    with start(box, *lines, argv=[*RUN, "--max-gpus", "1"]) as terminal:
        terminal.await_text("1 running")
        assert box.gpusched("set", "max-gpus=2").code == 0
        terminal.await_text("2 running")
        terminal.press("d")
        assert terminal.wait() == 131
    (box.work / "go0").touch()
    wait_for(lambda: box.states() == ["succeeded", "running", "running", "queued"])
    for n in range(1, 4):
        (box.work / f"go{n}").touch()
    wait_for(lambda: box.states() == ["succeeded"] * 4)


def test_d_goes_on_in_the_background(box: Box) -> None:
    """With the options of the run, its list and its environment: what runs is adopted, and later lines are read."""
    box.environment["WORD"] = "of the run"
    with start(box, HOLD + "1", HOLD + "2", "echo $WORD >> words", argv=[*RUN, "--gpu-list", "1"]) as terminal:
        terminal.await_text("1 running")
        terminal.press("d")
        assert terminal.wait() == 131
        shown = " ".join(" ".join(terminal.shown()).split())
    assert "going on in the background (pid" in shown and "`gpusched stop list` ends it" in shown
    assert not any("gpusched  list" in line for line in terminal.shown())
    assert box.running() == 1
    box.write(HOLD + "1", HOLD + "2", "echo $WORD >> words", "echo later >> words")
    (box.work / "go").touch()
    wait_for(lambda: box.states() == ["succeeded"] * 4)
    assert (box.work / "words").read_text() == "of the run\nlater\n"
    assert [len(row.attempts) for row in box.jobs()] == [1, 1, 1, 1]
    assert {tuple(row.indices) for row in box.jobs()} == {(1,)}
    wait_for(lambda: not any("gpusched run" in command for command in box.commands()))
    log = (box.queue() / "dispatcher.log").read_text()
    assert log.count("going on in the background") == 1 and "4 succeeded" in log
