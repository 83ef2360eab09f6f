"""A database that another process writes to for long: the dispatcher waits, and no verb keeps others out for long."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.config.layers import load
from gpusched.config.settings import Settings
from gpusched.host.store import Busy, Store, connection, job_table
from gpusched.lists.submit import read
from gpusched.operations.change import requests
from gpusched.operations.run import list_queue
from gpusched.operations.run.run import RunQueue
from tests.support.box import Box, wait_for
from tests.support.sample import stand_still

MANY = 6_000


@contextlib.contextmanager
def writing(queue: Path) -> Iterator[None]:
    """Be a command that was stopped while it wrote."""
    with contextlib.closing(sqlite3.connect(queue / "queue.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


def test_a_busy_database_is_trouble_that_passes(box: Box) -> None:
    running = box.start("run", box.write("sleep 0.5; exit 3", "sleep 0.5", "true"), "--max-gpus", "2")
    wait_for(lambda: box.running() == 2)
    with writing(box.queue()):
        running.wait_until_said("queue.db is busy: nothing new starts, running jobs go on")
        assert "`fg`" in running.said()
        assert "queue.db is busy" in box.gpusched("explain", "3", "-q", "list").out
    ended = running.wait()
    assert ended.code == 1, ended.text
    assert [row.outcome for row in box.jobs()] == ["exited 3", "exited 0", "exited 0"]
    assert ended.out.count("queue.db is busy") == 1
    assert "jobs can start again" in ended.out


def test_a_verb_says_that_the_database_is_busy(box: Box) -> None:
    assert box.run("true").code == 0
    path = str(box.queue() / "queue.db")
    with writing(box.queue()), Store(path, patience_s=0.1) as store, pytest.raises(Busy) as caught:
        job_table.requeue(store, 1)
    assert str(caught.value).startswith(f"{path}: another gpusched command is writing to it\n  try again")


def _cancelled_at_turns(path: str, done: threading.Event) -> set[int]:
    """Be another command that writes again and again; return how many jobs were cancelled at each of its turns."""
    seen = set()
    with contextlib.closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
        while not done.is_set():
            db.execute("BEGIN IMMEDIATE")
            seen.add(int(db.execute("SELECT count(*) FROM jobs WHERE state = 'cancelled'").fetchone()[0]))
            db.execute("ROLLBACK")
            time.sleep(0.01)
    return seen


def test_cancelling_many_jobs_lets_others_write_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    queue = list_queue.make_queue_dir("list.txt", Settings())
    options = list_queue.submit_options(queue, load())
    with RunQueue(queue) as opened:
        opened.submit(read(b"".join(b"true #%d\n" % n for n in range(MANY)), options, "list.txt"), options)
    monkeypatch.setattr(connection, "HOLD_S", 0.05)
    done = threading.Event()
    report: list[requests.ChangeReport] = []

    def cancel() -> None:
        report.append(requests.cancel(queue, every=True))
        done.set()

    verb = threading.Thread(target=cancel)
    verb.start()
    seen = _cancelled_at_turns(queue.database, done)
    verb.join()
    assert len(report[0].jobs["cancelled"]) == MANY
    assert len(seen - {0, MANY}) >= 3, seen
