"""The dispatcher of a standing queue in this process: the moment of its exit, and reasons to begin anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpusched.cli.run.one import run_one
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.config.layers import load
from gpusched.core.model import JobState
from gpusched.dispatcher import Hooks
from gpusched.host.gpus import claims
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import LOCK_FD, QueueDir
from gpusched.host.store import Store, job_table
from gpusched.lists.submit import SubmitOptions, parse_command
from gpusched.operations.box.devices import open_devices
from gpusched.operations.run.background import warn_without_gpus
from gpusched.operations.run.run import RunQueue
from gpusched.operations.run.submit import Wishes, add_jobs, find_standing_queue, make_queue
from tests.support.sample import stand_still


@pytest.fixture
def queue_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueueDir:
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv("GPUSCHED_CLAIMS_DIR", str(tmp_path / "claims"))
    return find_standing_queue(str(tmp_path / "queue"))


def submit(queue_dir: QueueDir, command: str = "true") -> None:
    options = SubmitOptions(load({"gpus_per_job": "0"}).settings, b"/")
    add_jobs(queue_dir, parse_command(command, options), options, Wishes())


def dispatch(queue_dir: QueueDir, hooks: Hooks) -> int:
    settings = load({"poll_interval": "0.05"}).settings
    with RunQueue(queue_dir) as queue, open_devices(settings, 0) as devices:
        return queue.dispatch(SubmitOptions(settings, b"/"), devices, hooks=hooks, submitted=False)


def succeeded(queue_dir: QueueDir) -> int:
    with Store(queue_dir.database, read_only=True) as store:
        return job_table.counts(store)[JobState.SUCCEEDED]


@pytest.mark.parametrize("step", ["leaving", "left"])
def test_submission_while_the_dispatcher_leaves_is_taken(queue_dir: QueueDir, step: str) -> None:
    """Before it lets go of the lock, and when it just has."""
    submit(queue_dir)
    steps = []

    def at(name: str) -> None:
        steps.append(name)
        if name == step and steps.count(step) == 1:
            assert (queue_dir.dispatcher() is None) == (step == "left")  # else nobody starts another one
            submit(queue_dir)

    assert dispatch(queue_dir, Hooks(follow=True, idle_exit_s=0, step=at)) == 0
    assert succeeded(queue_dir) == 2
    assert steps.count("left") == 2


def test_lock_that_was_handed_over_is_never_free(queue_dir: QueueDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever inherits it is named as the dispatcher; a descriptor without the lock is no way to get it."""
    make_queue(queue_dir)
    lock = queue_dir.take()
    assert lock is not None
    handed = os.dup(lock)
    os.close(lock)
    monkeypatch.setenv(LOCK_FD, str(handed))
    assert queue_dir.take() == handed
    assert queue_dir.dispatcher() == os.getpid() and not os.get_inheritable(handed)
    for wrong in (os.open("/dev/null", os.O_RDONLY), 987654):
        monkeypatch.setenv(LOCK_FD, str(wrong))
        assert queue_dir.take() is None
    os.close(handed)
    assert queue_dir.dispatcher() is None


def test_single_command_never_ends_with_75(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That would say that another dispatcher has taken it."""
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setattr("gpusched.operations.look.logs.copy_log", lambda *args, **more: 75)
    assert run_one(["true"], None, load({"autostart": "false"}), quiet=True) == 1


def test_home_on_a_network_file_system_is_seen_from_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has a default queue of its own, with its locks on a local disk; neither takes that of the other."""
    (tmp_path / "home").mkdir()
    stand_still(monkeypatch, tmp_path / "home")
    local = {}
    kind = claims.file_system_type
    monkeypatch.setattr(
        claims, "file_system_type", lambda path: "nfs4" if path.startswith(f"{tmp_path}/home") else kind(path)
    )
    for host in ("a", "b"):
        monkeypatch.setattr(os, "uname", lambda host=host: SimpleNamespace(nodename=host))
        monkeypatch.setattr(queue_dirs, "LOCAL_STATE", str(tmp_path / host))
        queue = local[host] = find_standing_queue(None)
        assert queue.path == f"{tmp_path}/home/state/gpusched/on/{host}/default"
        assert queue.state.startswith(f"{tmp_path}/{host}/gpusched-")
        submit(queue)
        lock = queue.take()
        assert lock is not None and queue.dispatcher() == os.getpid()
        os.close(lock)
    with pytest.raises(GpuschedError, match="belongs to the host a; this host is b"):
        submit(queue_dirs.locate(local["a"].path))
    with pytest.raises(GpuschedError, match="belongs to the host a") as refused:
        run_one(["true"], local["a"].path, load({"autostart": "false"}), quiet=True)
    assert refused.value.exit_code == EXIT_CANNOT_WORK  # never 75
    assert not os.path.exists(f"{local['a'].path}/queue.db")


def test_variable_of_this_shell_simulates_nothing_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    said: list[str] = []
    for value in ("4", ""):
        monkeypatch.setenv("GPUSCHED_SIMULATE", value)
        warn_without_gpus(find_standing_queue(None), load({"simulate": "4"}).settings, 1, said.append)
    assert len(said) == 1 and "`simulate: 4` in your settings file" in said[0]


def test_who_has_handed_the_lock_over_and_ended_is_not_named(queue_dir: QueueDir) -> None:
    make_queue(queue_dir)
    lock = os.open(queue_dir._lock, os.O_RDWR | os.O_CREAT, 0o600)
    subprocess.run(
        [sys.executable, "-c", f"import fcntl; fcntl.flock({lock}, fcntl.LOCK_EX)"], pass_fds=[lock], check=True
    )
    assert queue_dir.dispatcher() == 0
    os.close(lock)
    assert queue_dir.dispatcher() is None
