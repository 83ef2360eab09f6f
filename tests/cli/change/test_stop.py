"""`gpusched stop`: the request, and the answers of a dispatcher."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import EXIT_CANNOT_WORK
from gpusched.host import locks
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, meta_table, request_table
from gpusched.operations.change import requests
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, PID, Sample9, dispatched_by


def test_stop_without_a_dispatcher(sample: Sample9, capsys: Capture) -> None:
    assert call(capsys, "stop") == (
        "no dispatcher works on gpusched-runs/commands: there is nothing to stop\n"
        "1 job may still run without one: gpusched status -q commands\n"
    )
    assert request_table.open_requests(sample.store) == []


@pytest.mark.parametrize(
    ("argv", "kind", "says"),
    [
        (["stop"], "stop", "starts nothing new, and leaves at the end of 1 running job\nto stop them too: "),
        (["stop", "--now"], "stop_now", "stops 1 running job, queues it again, and leaves\n"),
    ],
)
def test_stop_waits_for_the_answer(
    argv: list[str], kind: str, says: str, sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    asked: list[str] = []

    def answer(self: QueueDir) -> None:
        store = Store(self.database)
        for request, wish, _ in request_table.open_requests(store):
            asked.append(wish)
            request_table.acknowledge(store, request, NOW)
        store.close()

    monkeypatch.setattr(QueueDir, "ring", answer)
    assert says in call(capsys, *argv)
    assert asked == [kind]


def test_stop_says_that_the_jobs_are_those_of_a_pool(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    meta_table.write(sample.store, "typed", json.dumps(["out", ["pool", "work.py:Work"]]))
    monkeypatch.setattr(requests, "_await_answer", lambda *request: "heard")
    monkeypatch.setattr(QueueDir, "ring", lambda self: None)
    assert "1 running job, which are those of a pool and end with its last item\n" in call(capsys, "stop")


def test_stop_takes_the_request_back_when_its_dispatcher_is_gone(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter([PID, PID])  # while -q is resolved, and at the first look
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: next(seen, None))
    assert "there is nothing to stop" in call(capsys, "stop")
    assert request_table.open_requests(sample.store) == []  # the next dispatcher is not stopped by it


def test_stop_says_when_nobody_answers(
    sample: Sample9, rung: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched_by(monkeypatch, PID)
    monkeypatch.setattr(requests, "ACK_WAIT_S", 0.0)
    assert "has not answered in time" in call(capsys, "stop")
    assert [kind for _, kind, _ in request_table.open_requests(sample.store)] == ["stop"]


def test_a_real_lock_is_seen_and_rung(sample: Sample9, capsys: Capture) -> None:
    """No stand-in: this process is the dispatcher, and is woken through the pipe."""
    lock = sample.place.take()
    assert lock is not None
    pipe = os.open(sample.place.wake, os.O_RDWR | os.O_NONBLOCK)
    try:

        def work() -> None:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                try:
                    if os.read(pipe, 10):
                        break
                except BlockingIOError:
                    time.sleep(0.005)
            store = Store(sample.place.database)
            for request, _, _ in request_table.open_requests(store):
                request_table.acknowledge(store, request, NOW)
            store.close()

        worker = threading.Thread(target=work)
        worker.start()
        out = call(capsys, "stop")
        worker.join()
        assert f"(pid {os.getpid()}) starts nothing new" in out
    finally:
        os.close(pipe)
        os.close(lock)


def test_a_dispatcher_that_cannot_be_seen_is_asked_and_waited_for(
    sample: Sample9, rung: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """In another pid namespace /proc/locks names nobody: the lock itself is tried."""
    monkeypatch.setattr(requests, "ACK_WAIT_S", 0.0)
    monkeypatch.setattr(locks, "takers", lambda path: [])
    lock = sample.place.take()
    assert lock is not None
    try:
        assert front.run(["stop"]) == EXIT_CANNOT_WORK
        assert "held by a process that cannot be seen from here (another container?)" in capsys.readouterr().err
        assert [kind for _, kind, _ in request_table.open_requests(sample.store)] == ["stop"]
    finally:
        os.close(lock)
    assert "there is nothing to stop" in call(capsys, "stop")
