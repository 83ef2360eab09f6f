"""A pool whose processes are killed: every item gets one result or one error, nothing hangs, nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.box import Box, Running, wait_for
from tests.support.pool import POOL, errors, pids, pool, results, write_items, write_worker

WORK = """\
import os, time
def __call__(self, item):
    with open("executed.txt", "a") as file:
        file.write(f"{item}\\n")
    time.sleep(int(item) % 7 * 0.003)
    return int(item) * 2
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        write_worker(box, WORK)
        yield box


def storm(box: Box, rounds: int, items: int, seed: int) -> None:
    rng = random.Random(seed)
    write_items(box, items)
    running = pool(box)
    killed: Counter[str] = Counter()
    for number in range(rounds):  # noqa: B007
        time.sleep(rng.uniform(0.05, 0.6))
        if running.process.poll() is not None:
            if running.process.returncode == 0 and len(results(box)) == items:
                break
            running = pool(box)
        whom = rng.choice(["a worker", "all workers", "coordinator", "dispatcher", "a worker", "coordinator"])
        if whom == "dispatcher":
            victims = [running.pid]
        else:  # which may be about to start
            words = POOL if whom == "coordinator" else "worker"
            wait_for(lambda: pids(box, words) or running.process.poll() is not None, whom)  # noqa: B023
            victims = pids(box, words)
        for pid in victims[:1] if whom == "a worker" else victims:
            killed[whom] += 1
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for _ in range(rounds):
        ended = running.wait(120)
        if ended.code in (0, 1):
            break
        running = pool(box)
    print(f"rounds: {number + 1}, killed: {dict(killed)}")
    assert killed, "nobody was killed"
    check(box, items, running)


def check(box: Box, items: int, running: Running) -> None:
    """Every item has one outcome, was executed, and no process is left."""
    done, failed = results(box), errors(box)
    assert sorted([*(row["item"] for row in done), *(row["item"] for row in failed)], key=int) == [
        str(n) for n in range(1, items + 1)
    ], running.said()
    assert [row["item"] for row in done] == sorted((row["item"] for row in done), key=int)
    assert all(row["result"] == int(row["item"]) * 2 for row in done)
    assert all(row["kind"] == "died" for row in failed)
    assert set(box.read("executed.txt").split()) == {str(n) for n in range(1, items + 1)}
    wait_for(lambda: not box.processes(), "the end of all processes")


@pytest.mark.slow
def test_a_short_storm(box: Box) -> None:
    write_worker(box, WORK.replace("* 0.003", "* 0.02"))
    storm(box, rounds=8, items=150, seed=1)


@pytest.mark.soak
@pytest.mark.slow
def test_two_hundred_rounds_with_two_thousand_items(box: Box) -> None:
    write_worker(box, WORK.replace("* 0.003", "* 0.02"))  # so that it lasts for all rounds
    storm(box, rounds=200, items=2000, seed=int(os.environ.get("SEED", "2")))


@pytest.mark.slow
def test_a_list_that_was_edited_after_the_dispatcher_was_killed_comes_after_the_old_one(box: Box) -> None:
    write_items(box, 40)
    write_worker(box, WORK.replace("* 0.003", "* 0.05"))
    running = pool(box)
    wait_for(lambda: len(box.read("executed.txt").split()) > 3, "some items")
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    assert pids(box, POOL)
    (box.work / "items.txt").write_text("100\n" + "".join(f"{n}\n" for n in range(1, 31)))
    ended = pool(box).wait()
    assert ended.code == 0, ended.text
    assert [row["item"] for row in results(box)] == ["100", *map(str, range(1, 31))]
    assert max(Counter(box.read("executed.txt").split()).values()) == 1


@pytest.mark.slow
def test_a_killed_coordinator_loses_no_loaded_model(box: Box) -> None:
    write_items(box, 60)
    write_worker(box, WORK.replace("* 0.003", "* 0.03"), setup="open('loads.txt', 'a').write('x')")
    running = pool(box)
    for _ in range(3):
        seen = len(box.read("executed.txt").split())
        wait_for(lambda seen=seen: len(box.read("executed.txt").split()) > seen + 3, "more items")  # type: ignore[misc]
        os.kill(wait_for(lambda: pids(box, POOL), "a coordinator")[0], signal.SIGKILL)
    assert running.wait().code == 0
    assert box.read("loads.txt") == "xx"  # one on each GPU
    assert [row["result"] for row in results(box)] == [n * 2 for n in range(1, 61)]
    executed = Counter(box.read("executed.txt").split())
    assert max(executed.values()) == 1  # the workers have kept what they had


def test_an_item_that_kills_its_worker_is_set_in_quarantine_and_no_other(box: Box) -> None:
    write_items(box, 30)
    write_worker(
        box,
        "import os\ndef __call__(self, item):\n    if item == '7':\n        os.kill(os.getpid(), 9)\n    return item\n",
    )
    assert pool(box).wait().code == 1
    assert [(row["item"], row["kind"], row["tries"]) for row in errors(box)] == [("7", "died", 2)]
    assert len(results(box)) == 29
    (row,) = errors(box)
    assert row["worker"] > 0
    assert row["error"].startswith("its worker ended while it worked on the item: killed by SIGKILL")
