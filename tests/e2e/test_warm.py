"""The warm process of a shepherd: stages share one start, and each is a job like any other, however it ends."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.common.processes import process_stat
from tests.support import tiny_models
from tests.support.box import Box, Running, wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

ESD = "python -m gpusched.commands.esd --output-dir out --model"
CHILDREN = "cat /proc/$PPID/task/$PPID/children"  # of the shepherd, the job itself among them
LONG = f"{ESD} long --solver svd"  # takes a minute


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    from safetensors.torch import save_file

    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # few polls: one that sees the end of a job before its shepherd tells it starts another shepherd for the next
    with Box(tmp_path, gpus="1", environment={**environment, "GPUSCHED_POLL_INTERVAL": "2"}) as box:
        tiny_models.build(box.work)
        (box.work / "long").mkdir()
        save_file({"h.0.weight": torch.randn(4000, 4000)}, box.work / "long/model.safetensors")
        yield box


def parent(pid: int) -> int:
    fields = process_stat(pid)
    return int(fields[1]) if fields else 0


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def family(box: Box) -> dict[int, int]:
    """The warm process and those that it has forked, each with its parent."""
    return {pid: parent(pid) for pid in box.processes() if "esd.warm" in command(pid)}


def worker(box: Box) -> int:
    """Wait until a worker runs a stage."""

    def find() -> int:
        return next((pid for pid in family(box) if os.path.realpath(f"/proc/{pid}/cwd") == str(box.work)), 0)

    return wait_for(find)


def test_stages_share_a_start_and_count_like_any_job(box: Box) -> None:
    lines = [
        f"{ESD} tiny/one",
        CHILDREN,
        f"{ESD} tiny/cut",
        CHILDREN,
        f"{ESD} tiny/two",
        f"FOO=1 {ESD} tiny/two --name x",
    ]
    ended = box.run(*lines)
    wait_for(lambda: box.processes() == [])
    rows = box.jobs()
    assert [row.outcome for row in rows] == [f"exited {n}" for n in (0, 0, 1, 0, 0, 0)] and ended.code == 1
    seen = [row.said().split() for row in (rows[1], rows[3])]
    assert seen[0][0] == seen[1][0] and len(seen[0]) == 2, "one process stays for all"
    assert "two: 15 layers" in rows[4].said() and "x: 15 layers" in rows[5].said()
    assert not any(row.note for row in rows if row.outcome == "exited 0"), "nothing is left of any job"
    for row in (rows[0], rows[4]):
        assert (row.last.cpu_s or 0) > 0.04 and (row.last.max_rss_bytes or 0) > 100 << 20


def start(box: Box, *lines: str, options: str = "") -> Running:
    return box.start("run", box.write(*lines), *options.split())


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_crash_is_that_of_one_job(box: Box, number: int) -> None:
    running = start(box, f"{ESD} tiny/one", LONG, CHILDREN, f"{ESD} tiny/two")
    wait_for(lambda: box.states()[:2] == ["succeeded", "running"])
    pid = worker(box)
    held = {os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    assert any(re.search(r"claims/.*\.lock", path) for path in held), "it holds the GPU, whatever becomes of others"
    before = set(family(box)) - {pid, parent(pid)}
    os.kill(pid, number)
    assert (ended := running.wait()).code == 1, ended.text
    rows = box.jobs()
    assert [row.outcome for row in rows] == ["exited 0", f"signalled {number}", "exited 0", "exited 0"]
    assert set(map(int, rows[2].said().split())) & before, "the warm process has outlived it"
    assert not (box.work / "out/records/long.json").exists()
    wait_for(lambda: box.processes() == [])


def test_the_end_of_the_stage_is_that_of_its_work(box: Box) -> None:
    running = start(box, LONG, f"{ESD} tiny/two")
    pid = worker(box)
    stage = next(each for each in box.processes() if "--model long" in command(each))
    os.kill(stage, signal.SIGKILL)
    assert (ended := running.wait()).code == 1, ended.text
    assert [row.outcome for row in box.jobs()] == ["signalled 9", "exited 0"]
    assert not Path(f"/proc/{pid}").exists()
    wait_for(lambda: box.processes() == [])


def test_time_limits_and_cancelled_jobs_end_the_work(box: Box) -> None:
    running = start(box, f"[time=6s] {LONG}", f"{LONG} --name b", f"{ESD} tiny/two")
    first = worker(box)
    wait_for(lambda: box.states()[1] == "running")
    assert box.jobs()[0].outcome == "timed_out"
    wait_for(lambda: not Path(f"/proc/{first}").exists())
    second = worker(box)
    assert box.gpusched("cancel", "2").code == 0
    running.wait()
    assert [row.outcome for row in box.jobs()] == ["timed_out", "cancelled", "exited 0"]
    assert not Path(f"/proc/{second}").exists()
    wait_for(lambda: box.processes() == [])


def test_a_killed_warm_process_costs_no_job(box: Box) -> None:
    running = start(box, LONG.replace("svd", "gram"), f"{ESD} tiny/two")
    pid = worker(box)
    (idle,) = set(family(box)) - {pid, parent(pid)}
    os.kill(idle, signal.SIGKILL)
    assert running.wait().code == 0
    assert [row.outcome for row in box.jobs()] == ["exited 0"] * 2
    wait_for(lambda: box.processes() == [])


def test_a_killed_shepherd_leaves_nothing(box: Box) -> None:
    running = start(box, LONG)
    pid = worker(box)
    shepherd = parent(parent(pid))
    os.kill(shepherd, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    running.signal(signal.SIGTERM)
    running.wait()
    wait_for(lambda: box.processes() == [])
