"""Fixtures: the queue of nine jobs in a directory of its own, with and without a dispatcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from tests.support.sample import PID, Sample9, a_board, dispatched_by, stand_still

hypothesis.settings.register_profile("same", derandomize=True)  # those of `make test-slow` are new in each run


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Queues and settings apart from those of the person who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def same_tensors() -> None:
    """Random tensors are the same in each run, where a test has none of its own seeds."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(5)


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample9]:
    stand_still(monkeypatch, tmp_path)
    made = Sample9(tmp_path)
    made.fill()
    queue_dirs.remember(made.place)
    yield made
    made.close()


@pytest.fixture
def dispatched(sample: Sample9, monkeypatch: pytest.MonkeyPatch) -> Sample9:
    dispatched_by(monkeypatch, PID)
    sample.publish(a_board())
    sample.log(3, 1, b"epoch 1\r\x1b[32mepoch 2, loss 0.5\x1b[0m\r\n")
    return sample


@pytest.fixture
def rung(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues whose dispatchers were woken."""
    found: list[str] = []
    monkeypatch.setattr(QueueDir, "ring", lambda self: found.append(self.path))
    return found


@pytest.fixture
def plain_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory and a home without the settings of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("GPUSCHED_"):
            monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
