"""The connection of a worker, which outlives its coordinator."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from gpusched.pool.coordinator.peers import Peer, Peers
from gpusched.pool.messages import Answer, Answers, Hello, Leave, Message, Work


def receive(peers: Peers, kind: type[Message]) -> tuple[Peer, Message]:
    """Wait for a message of this kind. What has come before it is passed over."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for peer, messages in peers.wait(0.1):
            for message in messages or ():
                if isinstance(message, kind):
                    return peer, message
    raise AssertionError(f"no {kind.__name__} has come")


WORKER = """\
import sys
from gpusched.commands.worker.link import Link
from gpusched.pool.messages import Answer, Hello

link = Link(sys.argv[1], Hello(1, "cpu", False), 20, lambda: None)
while items := link.take(1):
    if items[0][0] == 8:  # which runs when the coordinator is killed
        sys.stdin.readline()
    else:
        link.answer([Answer(item, b"1") for item, _ in items], 1)
"""


def test_the_next_coordinator_learns_of_answers_that_were_not_stored_before_it_gives_anything_out(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with Peers(str(tmp_path)) as peers:
        worker = subprocess.Popen(command, stdin=subprocess.PIPE)
        peer, hello = receive(peers, Hello)
        assert hello == Hello(1, "cpu", False)
        peers.send(peer, Work([(7, b"7"), (8, b"8"), (9, b"9")]))
        assert receive(peers, Answers)[1] == Answers(1, [Answer(7, b"1")], 1)
    with Peers(str(tmp_path)) as peers:
        peer, hello = receive(peers, Hello)
        assert isinstance(hello, Hello)
        assert sorted(hello.items) == [7, 8, 9]  # 7 is as good as done: another worker must not get it
        peers.send(peer, Leave())
        worker.communicate(b"\n", timeout=20)
    assert worker.returncode == 0
