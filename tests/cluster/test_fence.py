"""The fence of real shepherds, and the head and agents beside real dispatchers: messages are carried by the test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cluster import boxes
from gpusched.cluster.agent import Agent, NodePlace
from gpusched.cluster.boxes import HEAD, BoxConfig
from gpusched.cluster.head import Head
from gpusched.cluster.keeper import dispatcher_settings
from gpusched.cluster.leases import LeaseTerms
from gpusched.cluster.serving import HeadServer
from gpusched.config.settings import Settings
from gpusched.core.model import OutcomeKind
from gpusched.host.attempts import fence
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import SubmitOptions, parse_command
from gpusched.operations.queues import ignore
from gpusched.operations.run import submit
from gpusched.operations.run.background import start_detached
from tests.support.box import Box, wait_for
from tests.support.disk import fill, small_disk

TERMS = LeaseTerms(lease_s=4.5, grace_s=1, margin_s=0.5)
pytestmark = pytest.mark.slow


class RealNode:
    """A node with a real dispatcher, and an agent that speaks when the test lets it."""

    def __init__(self, root: Path, name: str) -> None:
        self.box = Box(root / name, "1")
        self.queue = made(root / f"queue-{name}")
        config = BoxConfig("lab", name, "", "", terms=TERMS)
        assert start_detached(self.queue, ignore, dispatcher_settings(config), self.box.environment)
        wait_for(lambda: os.path.exists(self.queue.board), "the board")
        self.agent = Agent(NodePlace(name, self.queue), TERMS)

    def talk(self, head: Head | HeadServer) -> bool:
        request = self.agent.request()
        self.agent.apply(request, head.exchange(request))
        return True

    def kill_dispatcher(self) -> None:
        os.kill(self.queue.dispatcher() or 0, signal.SIGKILL)


def made(path: Path) -> QueueDir:
    queue = queue_dirs.locate(str(path))
    queue_dirs.prepare(queue)
    Store(queue.database, create=True).close()
    return queue


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RealNode]]:
    nodes = [RealNode(tmp_path, name) for name in ("a", "b")]
    yield nodes
    for node in nodes:
        node.agent.close()
        node.box.__exit__(None, None, None)


@pytest.fixture
def head_queue(tmp_path: Path) -> QueueDir:
    return made(tmp_path / "queue-head")


@pytest.fixture
def head(head_queue: QueueDir) -> Iterator[Head]:
    head = Head(head_queue, TERMS)
    yield head
    head.close()


def add(queue: QueueDir, command: str, cwd: Path) -> None:
    options = SubmitOptions(Settings(), os.fsencode(cwd))
    jobs: JobFile = parse_command(command, options)
    submit.add_jobs(queue, jobs, options, submit.Wishes(export="none"))


def begins(log: Path) -> list[float]:
    return [float(word) for word in log.read_text().split()] if log.exists() else []


@pytest.mark.parametrize("dies", ["nobody", "dispatcher", pytest.param("for 3 leases", marks=pytest.mark.soak)])
def test_a_shepherd_ends_its_job_by_itself_before_another_node_begins_it(
    dies: str, nodes: list[RealNode], head: Head, head_queue: QueueDir, tmp_path: Path
) -> None:
    a, b = nodes
    log, ends = tmp_path / "begins", tmp_path / "ends"
    add(head_queue, f"date +%s.%N >> {log}; trap 'date +%s.%N >> {ends}; exit 9' TERM; sleep 300 & wait", tmp_path)
    wait_for(lambda: a.talk(head) and begins(log), "the beginning on a")
    if dies == "dispatcher":
        a.kill_dispatcher()
    cut_off = time.time()
    wait_for(lambda: b.talk(head) and len(begins(log)) == 2, "the beginning on b", 30)
    if dies == "for 3 leases":
        wait_for(lambda: b.talk(head) and time.time() > cut_off + 3 * TERMS.lease_s, "the end of 3 leases")
    (ended,) = begins(ends)
    assert ended <= cut_off + TERMS.lease_s
    assert ended + TERMS.margin_s <= begins(log)[1]
    with Store(head_queue.database, read_only=True) as store:
        assert [row.outcome and row.outcome.kind for row in attempt_table.attempts(store, 1)] == [
            OutcomeKind.LOST,
            None,
        ]
    a.talk(head)  # it comes back: what it says of the first attempt is refused
    assert a.agent.request().held == ()


def test_renewals_keep_a_job_alive_without_its_dispatcher(
    nodes: list[RealNode], head: Head, head_queue: QueueDir, tmp_path: Path
) -> None:
    a, _ = nodes
    done = tmp_path / "done"
    add(head_queue, f"date +%s.%N >> {tmp_path / 'begins'}; sleep {TERMS.lease_s + 1}; touch {done}", tmp_path)
    wait_for(lambda: a.talk(head) and begins(tmp_path / "begins"), "the beginning")
    a.kill_dispatcher()
    wait_for(lambda: a.talk(head) and done.exists(), "the end", 40)


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_what_runs_goes_on_while_the_disk_of_the_head_is_full(
    nodes: list[RealNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = nodes
    with small_disk(tmp_path / "disk", 4) as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        box = BoxConfig("lab", HEAD, "", "", terms=TERMS)
        boxes.write(box)
        made(Path(box.queue.path))
        server = HeadServer(box)
        log, done = tmp_path / "begins", tmp_path / "done"
        add(box.queue, f"date +%s.%N >> {log}; sleep {2 * TERMS.lease_s}; touch {done}", tmp_path)
        wait_for(lambda: a.talk(server) and begins(log), "the beginning on a")
        fill(disk / "filler")
        wait_for(lambda: a.talk(server) and b.talk(server) and done.exists(), "the end", 40)
        (disk / "filler").unlink()
        wait_for(lambda: a.talk(server) and not a.agent.request().held, "the news of the end")
        assert len(begins(log)) == 1
        with Store(box.queue.database, read_only=True) as store:
            assert [row.outcome and row.outcome.exit_code for row in attempt_table.attempts(store, 1)] == [0]


def test_a_deadline_of_another_boot_or_none_is_over(tmp_path: Path) -> None:
    path = str(tmp_path / "leases/1")
    watched = fence.Fence(path)
    assert (watched.left_s() or 0) <= 0
    fence.write(path, fence.now_s() + 100)
    assert 50 < (watched.left_s() or 0) <= 100.001  # it is written in milliseconds
    Path(path).write_text(f"{fence.now_s() + 100:020.3f} another-boot\n")
    assert (watched.left_s() or 0) <= 0
    assert fence.Fence("").left_s() is None
