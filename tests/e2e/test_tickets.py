"""Turns among users of one box, each with a uid of its own: who comes next, what strangers can do, what kills leave."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpusched.common import simulation
from tests.support.box import Box, Running, wait_for
from tests.support.other_user import NEEDS_TWO_USERS, interpreter_for_all, shared_directory

pytestmark = [NEEDS_TWO_USERS, pytest.mark.slow]

STRANGER = 64009


@dataclass
class User:
    """A user with a home and a working directory, on the box of all."""

    uid: int
    box: Box
    program: Sequence[str]

    def start(self, *words: str, **environment: str | None) -> Running:
        return self.box.spawn(*words, program=self.program, user=self.uid, environment=environment)

    def run(self, *lines: str, options: str = "", name: str = "list.txt", **environment: str | None) -> Running:
        self.box.write(*lines, name=name)
        return self.start("run", name, *options.split(), **environment)

    def spans(self, name: str = "list") -> list[tuple[float, float, int]]:
        """When each attempt began and ended, and on how many GPUs."""
        rows = [row.last for row in self.box.jobs(name) if row.attempts]
        return sorted((row.started_at, row.ended_at or time.time(), len(row.devices)) for row in rows)


class Users:
    """One box with simulated GPUs, and some of its users."""

    def __init__(self, root: Path, gpus: str, count: int) -> None:
        found = interpreter_for_all()
        if found is None:
            pytest.skip("no Python here that other users can start with our packages")
        python, path = found
        self.claims = root / "claims"
        shared = root / "simulation"
        simulation.create(str(shared), simulation.parse_spec(gpus))
        self.all = []
        for uid in range(64001, 64001 + count):
            environment = {
                "PYTHONPATH": path,
                "GPUSCHED_CLAIMS_DIR": str(self.claims),
                simulation.ENV_DIRECTORY: str(shared),
                "GPUSCHED_POLL_INTERVAL": "0.1",
            }
            box = Box(root / str(uid), gpus="", environment=environment)
            _give(box.root, uid)
            self.all.append(User(uid, box, [python, "-m", "gpusched"]))
        for directory, _, files in os.walk(shared):
            for name in (".", *files):
                os.chmod(os.path.join(directory, name), 0o777)

    def tickets(self) -> list[Path]:
        return sorted(self.claims.glob("ticket-*.lock"))


def _give(root: Path, uid: int) -> None:
    for directory, _, files in os.walk(root):
        for name in (".", *files):
            os.chown(os.path.join(directory, name), uid, uid)


@pytest.fixture
def users(request: pytest.FixtureRequest) -> Iterator[Users]:
    """Users of one box; the parameter says its GPUs and their number."""
    gpus, count = getattr(request, "param", ("1", 2))
    with shared_directory() as root:
        made = Users(root, gpus, count)
        try:
            yield made
        finally:
            for user in made.all:
                user.box.__exit__(None, None, None)


def test_the_single_job_of_a_newcomer_starts_after_the_next_end(users: Users) -> None:
    ada, bo = users.all
    many = ada.run(*[f"sleep 0.6 #{n}" for n in range(24)])
    wait_for(lambda: len(ada.spans()) == 2)
    one = bo.run("sleep 0.2", GPUSCHED_MAX_CHECKS="3")
    assert one.wait().code == 0, one.said()
    ((started_at, ended_at, _),) = bo.spans()
    before = [span for span in ada.spans() if span[0] < started_at]
    after = [span for span in ada.spans() if span[0] > started_at]
    assert len(before) <= 4, before
    assert before[-1][1] <= started_at <= before[-1][1] + 1.5
    assert not after or after[0][0] >= ended_at
    many.signal(signal.SIGTERM)
    many.wait()
    wait_for(lambda: not users.tickets())
