"""A program as a worker: its answers, and that whatever else it writes never becomes the answer of an item."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.pool.execution import ItemRunner, ProgramError, ProgramWorker, SpoiledError
from gpusched.pool.options import PoolOptions
from tests.support.box import Box
from tests.support.pool import errors, pool, results, write_items

HEAD = "import json, os, sys, time\ndef say(value): print(json.dumps(value), flush=True)\n"
LOOP = "for number, line in enumerate(sys.stdin):\n    item = json.loads(line)\n"
DEBUG = f"{HEAD}{LOOP}    print('item', item)\n    say(item * 2)\n"
BANNER = f"{HEAD}print('Loading\\x1b[0m shards: 100%', flush=True)\n{LOOP}    say(item * 2)\n"


def command(tmp_path: Path, text: str) -> str:
    (tmp_path / "answer.py").write_text(text)
    return shlex.join([sys.executable, str(tmp_path / "answer.py")])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    workers = []

    def begin(text: str) -> ProgramWorker:
        workers.append(ProgramWorker(command(tmp_path, text)))
        workers[-1].setup("cpu", {})
        return workers[-1]

    yield begin
    for worker in workers:
        worker.teardown()


@pytest.mark.parametrize("text", [BANNER, DEBUG])
@pytest.mark.parametrize("wait_s", [0.0, 0.5])
def test_a_line_that_is_no_json_ends_the_program_before_its_first_answer(start: Any, text: str, wait_s: float) -> None:
    worker = start(text)
    time.sleep(wait_s)
    with pytest.raises(SpoiledError) as raised:
        worker(1)
    assert raised.value.stage == "first"
    assert ("'Loading\\x1b[0m shards: 100%'" if text is BANNER else "'item 1'") in str(raised.value)


def test_a_second_line_for_an_item_is_never_the_answer_of_the_next_one(start: Any) -> None:
    worker = start(f"{HEAD}{LOOP}    if number == 2:\n        say(7)\n    say(item * 2)\n")
    assert [worker(1), worker(2)] == [2, 4]
    with pytest.raises(SpoiledError, match="more than one line") as raised:
        worker(3)
    assert raised.value.stage == "item"


def test_a_line_that_comes_late_is_seen_before_the_next_item(start: Any) -> None:
    worker = start(f"{HEAD}{LOOP}    say(item * 2)\n    time.sleep(0.1)\n    say('late')\n")
    assert worker(1) == 2
    time.sleep(0.5)
    with pytest.raises(SpoiledError, match="late"):
        worker(2)


def test_a_long_line_is_cut(start: Any) -> None:
    with pytest.raises(SpoiledError) as raised:
        start(f"{HEAD}{LOOP}    print('x' * 100_000, flush=True)\n")(1)
    assert len(str(raised.value)) < 250


def test_long_answers_and_errors_of_items_keep_the_program_in_step(start: Any) -> None:
    answer = "{'error': 'too dark'} if item == 2 else {'error': 0, 'n': [item] * 50_000}"
    worker = start(f"{HEAD}{LOOP}    say({answer})\n")
    assert worker(1) == {"error": 0, "n": [1] * 50_000}
    with pytest.raises(ProgramError, match="too dark"):
        worker(2)
    assert worker(3)["n"] == [3] * 50_000


def test_a_program_that_has_ended_says_where_its_reason_is(start: Any) -> None:
    with pytest.raises(SpoiledError, match=r"has ended with 3 .* stderr is in the log of this worker") as raised:
        start("import sys\nsys.exit(3)\n")(1)
    assert raised.value.stage == "first"


def test_what_a_program_says_at_its_end_keeps_nobody_waiting(start: Any) -> None:
    worker = start(f"{HEAD}{LOOP}    say(item)\nprint('bye' * 100_000)\n")
    assert worker(1) == 1
    worker.teardown()


def test_an_error_of_an_item_is_its_text(tmp_path: Path) -> None:
    text = f"{HEAD}{LOOP}    say({{'error': 'too dark'}} if item == 2 else item)\n"
    runner = ItemRunner(PoolOptions(command=command(tmp_path, text), output_dir=str(tmp_path)), "cpu")
    runner.load()
    answers = runner.run([(7, b"1"), (8, b"2"), (9, b"3")])
    assert [answer.failure and answer.failure.error for answer in answers] == [None, "too dark", None]
    assert [answer.result for answer in answers] == [b"1", b"", b"3"]
    runner.worker.teardown()


# ---- in a pool -------------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        write_items(box, 30)
        yield box


@pytest.mark.slow
@pytest.mark.parametrize("text", [BANNER, DEBUG])
def test_a_pool_stops_at_a_program_that_is_never_in_step(box: Box, text: str) -> None:
    ended = pool(box, "--command", command(box.work, text), "--cpu-workers", "2", worker="").wait()
    assert ended.code == 1, ended.text
    assert not results(box)
    assert not errors(box)
    assert "no JSON in place of an answer" in ended.out or "more than one line" in ended.out, ended.text
    assert ended.out.count("stopped  no worker can load") == 1


@pytest.mark.slow
def test_a_pool_has_right_results_of_a_program_that_falls_out_of_step(box: Box) -> None:
    text = f"{HEAD}{LOOP}    if number == 9 and not os.path.exists('warned'):\n"
    text += "        open('warned', 'w').close()\n        print('a warning')\n    say(item)\n"
    text = f"import os\n{text}"
    ended = pool(box, "--command", command(box.work, text), "--cpu-workers", "2", worker="").wait()
    assert ended.code == 0, ended.text
    assert [row["result"] for row in results(box)] == [str(n) for n in range(1, 31)]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "code"), [("pyhton answer.py", 127), ("/dev/null", 126), ("exit 2;", 2)])
def test_a_program_that_never_answers_costs_no_item(box: Box, program: str, code: int) -> None:
    ended = pool(box, "--command", program, "--cpu-workers", "2", worker="").wait()
    assert ended.code == 1, ended.text
    assert f"stopped  no worker can load: the program has ended with {code} in place of an answer" in ended.out
    assert "items    0 of 30 have a result, 30 are left" in ended.out
    assert not errors(box)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [1, 17, 30])
@pytest.mark.parametrize("how", ["print('progress 20', flush=True)", "sys.exit(5)"])
@pytest.mark.parametrize("options", [("--cpu-workers", "1"), ("--cpu-workers", "2"), ("--max-gpus", "1")])
def test_an_item_at_which_a_program_fails_is_the_only_one_with_an_error(
    box: Box, bad: int, how: str, options: tuple[str, ...]
) -> None:
    text = f"{HEAD}{LOOP}    if item == '{bad}':\n        {how}\n    say(item)\n"
    ended = pool(box, "--command", command(box.work, text), *options, worker="").wait()
    assert ended.code == 1, ended.text
    assert [(row["item"], row["kind"]) for row in errors(box)] == [(str(bad), "died")], ended.text
    assert len(results(box)) == 29
    assert "stopped" not in ended.out


@pytest.mark.slow
def test_few_items_in_this_process_get_an_outcome_each(box: Box) -> None:
    write_items(box, 3)
    text = f"{HEAD}{LOOP}    if item == '2':\n        print('progress 20', flush=True)\n    say(item)\n"
    ended = pool(box, "--command", command(box.work, text), "--max-gpus", "1", worker="").wait()
    assert [(row["item"], row["tries"]) for row in errors(box)] == [("2", 2)], ended.text
    assert [row["item"] for row in results(box)] == ["1", "3"]


@pytest.mark.slow
def test_a_pool_in_this_process_ends_with_the_line(box: Box) -> None:
    ended = pool(box, "--command", command(box.work, DEBUG), "--cpu-workers", "1", "--inline", worker="").wait()
    assert ended.code == 1, ended.text
    assert "item 1" in ended.err
    assert "Traceback" not in ended.err
