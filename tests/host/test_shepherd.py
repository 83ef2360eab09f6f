"""What a shepherd answers on its socket, spoken to as a dispatcher does; it is a real process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.host import locks
from gpusched.host.attempts import attempt_dir, wire
from tests.support.box import wait_for
from tests.support.paths import ROOT

BOOTSTRAP = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpusched.host.attempts.shepherd import main; "
    "main(int(sys.argv[1]), 2)"
)


class TendedAttempt:
    """A shepherd with an attempt: a command that goes on until the file `go` is there, and a claim."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = [sys.executable, "-I", "-S", "-c", BOOTSTRAP, str(theirs.fileno())]
            self.process = subprocess.Popen(program, pass_fds=[theirs.fileno()], start_new_session=True, cwd="/")
        self.greeting = answer(self.channel)[0]
        self.directory = str(path / "attempts" / "1.1")
        life = attempt_dir.make(self.directory)
        fcntl.flock(life, fcntl.LOCK_EX)
        claim = locks.take_file(str(path / "claim.lock"))
        assert claim is not None
        order: dict[str, Any] = {
            "op": "start",
            "dir": self.directory,
            "argv": (b"/bin/sh", b"-c", f"until test -e {path}/go; do sleep 0.05; done; exit 3".encode()),
            "cwd": b"/",
            "environment": {},
            "log": str(path / "log"),
            "error_log": "",
            "time_limit": None,
            "grace": 1.0,
            "leftovers": "wait",
            "marker": (f"TEST_SHEPHERD={path}".encode(),),
        }
        wire.send(self.channel, order, [life, claim])
        os.close(life)
        os.close(claim)
        wait_for(lambda: "pid" in self.fields())

    def fields(self) -> dict[str, str]:
        return attempt_dir.parse_fields(Path(attempt_dir.life_path(self.directory)).read_bytes())

    def connect(self) -> socket.socket:
        channel = wire.connect(self.fields()["socket"])
        assert channel is not None
        return channel

    def ask(self, channel: socket.socket, op: str, *fds: int) -> None:
        wire.send(channel, {"op": op, "dir": self.directory}, fds)


def answer(channel: socket.socket) -> tuple[Any, list[int]]:
    assert select.select([channel], [], [], 30)[0], "no answer"
    received = wire.receive(channel)
    assert received is not None
    return received


def is_closed(channel: socket.socket) -> bool:
    assert select.select([channel], [], [], 30)[0]
    return wire.receive(channel) is None


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[TendedAttempt]:
    made = TendedAttempt(tmp_path)
    yield made
    (tmp_path / "go").touch()
    made.channel.close()
    made.process.wait(30)


def test_it_greets_with_its_version_and_its_attempt(attempt: TendedAttempt) -> None:
    alive = {"op": "status", "version": wire.PROTOCOL, "record": None}
    assert attempt.greeting == {**alive, "dir": ""}
    with attempt.connect() as channel:
        assert answer(channel)[0] == {**alive, "dir": attempt.directory}
        attempt.ask(channel, "status")
        assert answer(channel)[0] == {**alive, "dir": attempt.directory}


def test_who_connects_gets_duplicates_of_the_claims_and_hears_of_the_end(attempt: TendedAttempt) -> None:
    with attempt.connect() as channel:
        answer(channel)
        attempt.ask(channel, "claims")
        message, fds = answer(channel)
        assert message["op"] == "claims"
        assert [os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in fds] == ["claim.lock"]
        (attempt.path / "go").touch()
        assert answer(channel)[0] == (attempt.directory, True)
        assert attempt.fields()["exit_code"] == "3"
        assert locks.take_file(str(attempt.path / "claim.lock")) is None  # held by the duplicate alone
        os.close(fds[0])
        assert locks.take_file(str(attempt.path / "claim.lock")) is not None


def test_claims_that_come_later_are_kept_beside_the_others(attempt: TendedAttempt) -> None:
    claim = locks.take_file(str(attempt.path / "other.lock"))
    assert claim is not None
    attempt.ask(attempt.channel, "claims", claim)
    os.close(claim)
    attempt.ask(attempt.channel, "claims")
    _, fds = answer(attempt.channel)
    assert [os.path.basename(os.readlink(f"/proc/self/fd/{fd}")) for fd in fds] == ["claim.lock", "other.lock"]
    for fd in fds:
        os.close(fd)
    assert locks.take_file(str(attempt.path / "other.lock")) is None
    (attempt.path / "go").touch()
    assert answer(attempt.channel)[0] == (attempt.directory, True)
    assert locks.take_file(str(attempt.path / "other.lock")) is not None


def test_a_word_about_another_attempt_changes_nothing(attempt: TendedAttempt) -> None:
    with attempt.connect() as channel:
        answer(channel)
        wire.send(channel, {"op": "stop", "dir": "/another"})
        attempt.ask(channel, "status")
        answer(channel)
        time.sleep(0.3)
        assert attempt_dir.is_record(attempt.fields()) is False
        attempt.ask(channel, "stop")
        assert answer(channel)[0] == (attempt.directory, True)
    assert (attempt.fields()["stopped"], attempt.fields()["signal"]) == ("requested", str(int(signal.SIGTERM)))


def test_garbage_ends_the_connection_alone(attempt: TendedAttempt) -> None:
    with attempt.connect() as channel:
        answer(channel)
        channel.send(b"[[[[ not marshalled")
        assert is_closed(channel)
    with attempt.connect() as channel:
        assert answer(channel)[0]["dir"] == attempt.directory


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """The kernel notes the effective user of who connects, and of who listens."""
    if os.getuid():
        pytest.skip("needs root, to be another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_another_user_is_refused(attempt: TendedAttempt) -> None:
    name = attempt.fields()["socket"]
    with another_user(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(f"\0{name}")
        assert is_closed(channel)
    with attempt.connect() as channel:
        assert answer(channel)[0]["dir"] == attempt.directory


def test_another_users_socket_is_not_trusted() -> None:
    with another_user():
        listener, name = wire.listen()
    with listener:
        assert wire.connect(name) is None
