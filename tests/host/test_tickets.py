"""Tickets on disk: their age, whose they are, what counts of those of strangers, and what they cost without any."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.core.plan.fairness import Want
from gpusched.host import locks
from gpusched.host.gpus import tickets
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.tickets import OwnTicket, read_tickets
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory

LABEL = '{"job": 1, "gpus": 1, "devices": ["GPU-0"], "turn_at": 0, "check_s": 1, "queue": "q", "yields": {}}'
WRITE = """
path = sys.argv[1]
held = lock(path)
with open(f"{path}.by-{os.getuid()}", "w") as file:
    file.write(sys.argv[2])
os.utime(path, (1, 1))
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_directory() as path:
        yield path


@pytest.fixture
def own(shared: Path) -> Iterator[OwnTicket]:
    ticket = OwnTicket(Claims(str(shared)))
    yield ticket
    ticket.withdraw()


def hold(ticket: OwnTicket, gpus: int = 1, **more: str) -> None:
    want = Want(4, gpus, ("GPU-0", "GPU-1"))
    ticket.hold(want, 5.0, check_s=20.0, queue="/q", yields=more)


def test_a_ticket_says_what_is_waited_for_and_keeps_its_age(shared: Path, own: OwnTicket) -> None:
    claims = Claims(str(shared))
    assert read_tickets(claims) == []
    began = time.time()
    hold(own)
    (first,) = read_tickets(claims)
    assert (first.uid, first.want, first.queue, first.check_s) == (
        os.getuid(),
        Want(4, 1, ("GPU-0", "GPU-1")),
        "/q",
        20,
    )
    assert first == own.ticket and abs(first.since_at - began) < 1 and first.turn_at == 5.0
    time.sleep(0.05)
    hold(own, 2, **{"GPU-0": "bo"})
    (second,) = read_tickets(claims)
    assert (second.since_at, second.want.gpus, second.yields) == (first.since_at, 2, (("GPU-0", "bo"),))
    own.withdraw()
    assert read_tickets(claims) == [] and not list(shared.iterdir()) and own.ticket is None


def test_a_ticket_whose_file_is_removed_is_made_anew_and_is_younger(shared: Path, own: OwnTicket) -> None:
    hold(own)
    before = own.ticket
    assert before is not None
    time.sleep(0.05)
    os.unlink(before.path)
    hold(own)
    assert own.ticket is not None and own.ticket.since_at > before.since_at
    assert len(read_tickets(Claims(str(shared)))) == 1


def test_the_oldest_ticket_of_a_user_counts_and_what_a_killed_process_left_is_removed(shared: Path) -> None:
    claims = Claims(str(shared))
    first, second = OwnTicket(claims), OwnTicket(claims)
    hold(first)
    time.sleep(0.05)
    hold(second, 2)
    (shared / "ticket-dead.lock").write_text("")
    (shared / f"ticket-dead.lock.by-{os.getuid()}").write_text(LABEL)
    assert read_tickets(claims) == [first.ticket] == read_tickets(claims, second.ticket)
    first.withdraw()
    (shared / "ticket-dead.lock").write_text("")
    assert read_tickets(claims) == [second.ticket]
    second.withdraw()
    (shared / "ticket-dead.lock").write_text("")
    assert read_tickets(claims) == [] and not list(shared.iterdir())


def test_nothing_that_goes_wrong_ends_the_wait(shared: Path) -> None:
    ticket = OwnTicket(Claims(str(shared / "none")))
    hold(ticket)
    ticket.withdraw()
    assert ticket.ticket is None


def test_without_tickets_it_is_one_look_into_the_directory(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(str(shared))
    held = [claims.try_acquire(f"GPU-{n}", "queue", 1.0) for n in range(8)]
    looks: list[str] = []
    scandir = os.scandir

    def look(path: str) -> object:
        looks.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", look)
    for name in ("is_held", "takers"):
        monkeypatch.setattr(locks, name, lambda *_: pytest.fail("asked for locks"))
    monkeypatch.setattr(tickets, "read_label", lambda *_: pytest.fail("read a label"))
    assert read_tickets(claims) == [] and looks == [str(shared)]
    for each in held:
        assert each is not None
        each.close()


@NEEDS_TWO_USERS
def test_a_ticket_of_another_user_is_as_old_as_its_file_whatever_it_says(shared: Path) -> None:
    before = time.time()
    with other_user(WRITE, shared / "ticket-1.lock", LABEL.replace('"turn_at": 0', '"turn_at": -1e308')):
        (ticket,) = read_tickets(Claims(str(shared)))
        assert ticket.uid == OTHER_UID and ticket.user == str(OTHER_UID)
        assert before - 1 <= ticket.since_at <= time.time()
    assert read_tickets(Claims(str(shared))) == []
    assert (shared / "ticket-1.lock").exists(), "it is not ours to remove"


@NEEDS_TWO_USERS
def test_texts_of_another_user_can_be_shown_and_stored(shared: Path) -> None:
    label = LABEL.replace("GPU-0", "\\ud800\\u001b[2J" + "x" * 1000).replace('"q"', '"\\udfff"')
    with other_user(WRITE, shared / "ticket-1.lock", label):
        (ticket,) = read_tickets(Claims(str(shared)))
    assert ticket.queue.isprintable() and ticket.want.devices[0].isprintable()
    assert len(ticket.want.devices[0].encode()) < 300


@NEEDS_TWO_USERS
@pytest.mark.parametrize(
    "label",
    [
        "",
        "null",
        "[" * 100_000,
        "x" * 1_000_000,
        LABEL.replace('"gpus": 1', '"gpus": 0'),
        LABEL.replace('"gpus": 1', '"gpus": 1e999'),
        LABEL.replace('"gpus": 1', '"gpus": 2'),
        LABEL.replace('"turn_at": 0', '"turn_at": NaN'),
        LABEL.replace('["GPU-0"]', '"GPU-0"').replace('"gpus": 1', '"gpus": 9'),
        LABEL.replace('"check_s": 1', '"check_s": "no"'),
        LABEL.replace("{}", "[]"),
        LABEL.replace('"q"', f'"{"q" * 40_000}"'),
    ],
    ids=range(12),
)
def test_a_label_of_another_user_that_makes_no_sense_counts_for_nothing(shared: Path, label: str) -> None:
    if len(label) > 100_000:
        write = WRITE.replace("sys.argv[2]", "'x' * 1_000_000")
        label = ""
    else:
        write = WRITE
    with other_user(write, shared / "ticket-1.lock", label):
        assert read_tickets(Claims(str(shared))) == []


@NEEDS_TWO_USERS
def test_nobody_can_speak_for_another_user(shared: Path) -> None:
    """Neither by the name of a label, nor by locking a file that another user has left behind."""
    code = WRITE.replace("{os.getuid()}", "0")
    with other_user(code, shared / "ticket-1.lock", LABEL):
        assert read_tickets(Claims(str(shared))) == []
    left = shared / "ticket-2.lock"
    left.write_text("")
    left.chmod(0o644)
    (shared / "ticket-2.lock.by-0").write_text(LABEL)
    lock = "fd = os.open(sys.argv[1], os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_EX)"
    with other_user(lock, left):
        assert read_tickets(Claims(str(shared))) == []
