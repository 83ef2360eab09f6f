"""The shepherds in real runs: ones that cannot start, orders too large for a message, claims, records on bad disks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box, wait_for
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

UNTIL = "while [ ! -e {} ]; do sleep 0.05; done; echo done"  # a job that goes on until this file is there


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


@pytest.fixture
def package(box: Box) -> Path:
    """A copy of the package, by which the box runs gpusched."""
    copy = box.root / "package" / "gpusched"
    shutil.copytree(ROOT / "gpusched", copy, ignore=shutil.ignore_patterns("__pycache__"))
    box.environment["PYTHONPATH"] = str(copy.parent)
    return copy


# ---- shepherds that cannot start -------------------------------------------------------------------


def test_jobs_stay_queued_while_no_shepherd_can_be_started(box: Box, package: Path) -> None:
    """The package is replaced just then: that is no job's fault."""
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write(*[f"echo {n} >> ran" for n in range(6)]))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    package.rename(package.with_name("away"))
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said("no shepherd can be started: ModuleNotFoundError")
    wait_for(lambda: not box.claimed(), "giving the GPUs back")
    wait_for(lambda: "ModuleNotFoundError" in box.gpusched("explain", "1", PYTHONPATH=None).out)
    assert box.states() == ["queued"] * 6
    package.with_name("away").rename(package)
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert [(len(row.attempts), row.job.tries, row.job.losses) for row in box.jobs()] == [(1, 1, 0)] * 6
    assert sorted(box.read("ran").split()) == list("012345")
    assert ended.text.count("no shepherd can be started") == 1
    assert ended.text.count("shepherds can be started again") == 1


def test_a_shepherd_that_is_never_ready_is_given_up(box: Box, package: Path) -> None:
    late = package / "host" / "attempts" / "launcher.py"
    late.write_text(late.read_text().replace("READY_WITHIN_S = 30.0", "READY_WITHIN_S = 1.0"))
    program = package / "host" / "attempts" / "attempt_dir.py"
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    running = box.start("run", box.write("echo one"))
    wait_for(lambda: (box.queue() / "devices.json").exists())
    text = program.read_text()
    program.write_text(text.replace("import os\n", "import os, time\ntime.sleep(600)\n", 1))
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    running.wait_until_said("no shepherd can be started: not ready within 1 s")
    program.write_text(text)
    assert running.wait().code == 0
    assert [len(row.attempts) for row in box.jobs()] == [1]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_run_ends_well_though_the_package_is_gone(box: Box, package: Path, options: tuple[str, ...]) -> None:
    box.write(UNTIL.format("go"), "true", "false")
    running = box.start("run", "list.txt", "--max-gpus", "1", *options)
    wait_for(lambda: box.running() == 1)
    shutil.rmtree(package)
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    assert ('"exit_code": 1' if options else "1 failed") in ended.out
    assert box.states() == ["succeeded", "succeeded", "failed"]
