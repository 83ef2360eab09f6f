"""`gpusched devices`: the boards of one's dispatchers, the reading where nobody counts, the claims of others."""

from __future__ import annotations

import json
import os
import pty
import pwd
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.plan.fairness import Want
from gpusched.core.plan.snapshot import Resident
from gpusched.host.gpus import device_source
from gpusched.host.gpus.claims import Claims, HeldClaim
from gpusched.host.gpus.tickets import OwnTicket
from gpusched.host.queue import queue_dirs
from tests.support.command_line import shown
from tests.support.golden import golden
from tests.support.sample import NOW, PID, Sample9, a_board, dispatched_by, gpu, stand_still

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_still(monkeypatch, tmp_path)
    (tmp_path / "claims").mkdir()
    monkeypatch.setenv("GPUSCHED_CLAIMS_DIR", str(tmp_path / "claims"))
    return tmp_path


@pytest.fixture
def sample(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sample9]:
    """A queue that is dispatched, on a box without a driver."""
    dispatched_by(monkeypatch, PID)

    def no_driver(*_: object, **__: object) -> None:
        raise GpuschedError("there is no NVIDIA driver library here", exit_code=EXIT_CANNOT_WORK)

    monkeypatch.setattr(device_source, "open_source", no_driver)
    made = Sample9(home)
    made.fill()
    queue_dirs.remember(made.place)
    made.publish(a_board())
    yield made
    made.close()


def call(capsys: Capture, *argv: str) -> str:
    assert front.run(["devices", *argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def claim(home: Path, uuid: str) -> HeldClaim:
    held = Claims(str(home / "claims")).try_acquire(uuid, "/home/cy/runs/\x1b[2Jsweep", NOW - 600)
    assert held is not None
    return held


def no_pids(text: str) -> str:
    """Texts without what differs from run to run."""
    me = pwd.getpwuid(os.getuid()).pw_name
    return text.replace(f"pid {os.getpid()}", "pid 777").replace(f" by {me} ", " by me ")


def test_what_the_dispatcher_counts_needs_no_driver(sample: Sample9, capsys: Capture) -> None:
    held = claim(sample.home, gpu(3).uuid)
    try:
        golden("devices-counted", no_pids(call(capsys)), home=sample.home)
    finally:
        held.close()


def test_counted_as_json(sample: Sample9, capsys: Capture) -> None:
    held = claim(sample.home, gpu(3).uuid)
    try:
        found = json.loads(call(capsys, "--json"))["devices"]
    finally:
        held.close()
    assert [(d["state"], d["checks"], d["max_checks"], d["queue"], d["jobs"]) for d in found] == [
        ("running", 10, 10, "commands", [3]),
        ("busy", 0, 10, "commands", []),
        ("checking", 3, 10, "commands", []),
        ("free", 10, 10, "commands", []),
    ]
    assert found[1]["processes"][1] == {
        "pid": 52,
        "user": "ev\\x1b[31mil",
        "program": "x\\x0ay",
        "used_bytes": 12 << 20,
        "kind": "C",
        "utilisation": None,
    }
    assert found[3]["claim"]["queue"] == "/home/cy/runs/\\x1b[2Jsweep" and found[3]["claim"]["since"] == NOW - 600


def test_who_waits_and_what_is_left_to_whom(sample: Sample9, capsys: Capture) -> None:
    ticket = OwnTicket(Claims(str(sample.home / "claims")))
    want, left = Want(7, 2, (gpu(0).uuid, gpu(3).uuid)), {gpu(3).uuid: "bo\x1b", "GPU-elsewhere": "cy"}
    ticket.hold(want, 0.0, check_s=20, queue="/runs/\x1b[2J", yields=left)
    me = pwd.getpwuid(os.getuid()).pw_name
    try:
        assert f"{me} waits for 2 GPUs since " in (last := call(capsys).splitlines()[-1])
        assert last.endswith(", for /runs/\\x1b[2J, and leaves GPU 3 to bo\\x1b")
        (found,) = json.loads(call(capsys, "--json"))["tickets"]
        assert (found["user"], found["gpus"], found["devices"]) == (me, 2, list(want.devices))
        assert found["leaves"][0] == {"uuid": gpu(3).uuid, "to": "bo\\x1b"}
    finally:
        ticket.withdraw()
    assert json.loads(call(capsys, "--json"))["tickets"] == []
    assert not list((sample.home / "claims").iterdir())


def test_where_nobody_counts_the_gpus_are_read_once(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = home / "simulation"
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(where))
    simulation.create(str(where), ["A100", "T4", "T4"])
    simulation.change_keys(str(where / "gpu1" / "state"), foreign=900, util=77)
    simulation.change_keys(str(where / "gpu2" / "state"), fail="lost")
    golden("devices-read", no_pids(call(capsys)), home=home)
    found = json.loads(call(capsys, "--json"))["devices"]
    assert [(d["state"], d["checks"]) for d in found] == [("free", None), ("busy", None), ("lost", None)]


def test_a_claim_makes_a_free_gpu_claimed(home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    where = home / "simulation"
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(where))
    simulation.create(str(where), ["A100"])
    held = claim(home, simulation.read_keys(str(where / "gpu0" / "state"))["uuid"])
    try:
        out = no_pids(call(capsys))
    finally:
        held.close()
    assert "by me for /home/cy/runs/\\x1b[2Jsweep, since 08:43:20, pid 777" in out
    assert "\x1b" not in out and "free now " not in out.splitlines()[1]
    assert "free now" in call(capsys).splitlines()[1]


def test_a_board_lies_over_what_is_read(home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queues of mine on one simulation: each GPU is shown by the queue that has a job on it."""
    dispatched_by(monkeypatch, PID)
    where = home / "simulation"
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(where))
    simulation.create(str(where), ["A100"] * 5)
    for n in range(4):
        simulation.change_keys(str(where / f"gpu{n}" / "state"), uuid=gpu(n).uuid)
    for name in ("commands", "sweep"):
        made = Sample9(home, name)
        queue_dirs.remember(made.place)
        board = a_board()
        if name == "sweep":
            items = tuple(
                type(item)(item.device, replace(item.view, residents=(Resident(9, 0),) if n == 3 else ()))
                for n, item in enumerate(board.devices)
            )
            board = a_board(devices=items)
        made.publish(board)
        made.close()
    found = json.loads(call(capsys, "--json"))["devices"]
    assert [(d["queue"], d["jobs"]) for d in found][0::3] == [("commands", [3]), ("sweep", [9])]
    assert found[4]["queue"] is None and len(found) == 5
    assert "none of your dispatchers counts the other GPUs" in call(capsys)


def test_simulated_gpus_appear_with_their_own_queue_alone_and_marked(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = a_board()
    devices = [
        replace(each, device=replace(each.device, is_simulated=True, uuid=f"S-{each.device.index}"))
        for each in board.devices
    ]
    sample.publish(replace(board, devices=tuple(devices)))
    assert "which read the simulated GPUs 0:01 ago" in shown(capsys, "status")
    assert front.run(["devices"]) == EXIT_CANNOT_WORK  # this box has none
    assert "no NVIDIA driver library" in capsys.readouterr().err
    real = Sample9(sample.home, "real")
    queue_dirs.remember(real.place)
    real.publish(a_board(devices=board.devices[:1]))
    real.close()
    assert [text.split()[0] for text in call(capsys).splitlines()] == ["GPU", "0", "counted"]
    monkeypatch.undo()
    stand_still(monkeypatch, sample.home)
    found = call(capsys, "--simulate", "2xT4").splitlines()
    assert [text.split()[0] for text in found] == ["GPU", "0", "1", "none"]
    assert all("Tesla T4 (simulated)" in text for text in found[1:3])


def test_without_nvml(home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object, **__: object) -> None:
        raise GpuschedError("there is no NVIDIA driver library here", exit_code=EXIT_CANNOT_WORK)

    monkeypatch.setattr(device_source, "open_source", no_driver)
    assert front.run(["devices"]) == EXIT_CANNOT_WORK
    assert "no NVIDIA driver library" in capsys.readouterr().err


def test_watch_shows_them_again(home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(home / "simulation"))
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("gpusched.cli.box.devices.time.sleep", nap)
    out = call(capsys, "--watch", "--json", "--simulate", "2", "--poll-interval", "7")
    assert naps == [7.0] * 3
    assert [len(json.loads(line)["devices"]) for line in out.splitlines()] == [2, 2, 2]


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_watch(home: Path) -> None:
    argv = [sys.executable, "-m", "gpusched", "devices", "--watch", "--simulate", "2", "--poll-interval", "0.01"]
    done = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None and done.stderr is not None
    assert done.stdout.readline().startswith(b"GPU")
    done.stdout.close()
    assert (done.wait(10), done.stderr.read()) == (front.EXIT_BROKEN_PIPE, b"")
    done.stderr.close()


@pytest.mark.slow
def test_a_watch_on_a_terminal_draws_over_the_last_page(home: Path) -> None:
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "gpusched", "devices", "--watch", "--simulate", "2", "--poll-interval", "0.01"]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as watch:
        os.close(theirs)
        shown = b""
        while shown.count(b"every 0.01 s, Ctrl-C ends") < 2 and select.select([ours], [], [], 30)[0]:
            shown += os.read(ours, 4096)
        watch.kill()
    os.close(ours)
    assert shown.startswith(b"\x1b[2J\x1b[1;1H") and b"\x1b[2J\x1b[1;1H" in shown[10:]
