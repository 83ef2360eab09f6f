"""The program that plays CUDA jobs on simulated GPUs, and the audit of what several of them did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpusched.commands.simjob.__main__ import main, visible_devices

from gpusched.common import simulation
from gpusched.common.processes import process_start
from gpusched.host.gpus.simulated import SimulatedSource
from tests.support.audit import audit

SIMJOB = [sys.executable, "-m", "gpusched.commands.simjob"]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A simulation of two A100 and a T4 that this process's environment names."""
    path = str(tmp_path / "sim")
    simulation.create(path, ["A100", "A100", "T4"])
    for name in ("CUDA_VISIBLE_DEVICES", "GPUSCHED_QUEUE", "GPUSCHED_JOB_ID", "GPUSCHED_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(simulation.ENV_DIRECTORY, path)
    return path


def used(directory: str) -> list[int]:
    """MiB in use on each GPU."""
    source = SimulatedSource(directory)
    source.request(None, 1.0)
    (reading,) = source.poll(1.0)
    return [(sample.used_bytes or 0) >> 20 for sample in reading.samples]


def wait_until_used(directory: str, expected: list[int]) -> None:
    end = time.monotonic() + 10
    while used(directory) != expected:
        assert time.monotonic() < end, used(directory)
        time.sleep(0.01)


def uuid(directory: str, n: int) -> str:
    return simulation.read_keys(f"{directory}/gpu{n}/state")["uuid"]


def test_a_job_on_real_gpus_takes_no_memory(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (simulation.ENV_DIRECTORY, "GPUSCHED_SIMULATE"):
        monkeypatch.delenv(name, raising=False)
    assert main(["--mem", "100", "--hold", "0"]) == 2  # by hand there is nothing that it could play on
    monkeypatch.setenv("GPUSCHED_JOB_ID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["--mem", "900000", "--hold", "0.1", "--steps", "2", "--exit", "3"]) == 3
    out = capfd.readouterr().out
    assert "takes no GPU memory" in out and "step 2/2" in out


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a live process that is not this one."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def occupy(directory: str, n: int, pid: int, mib: int) -> None:
    simulation.write_keys(f"{directory}/gpu{n}/p/{pid}-{process_start(pid)}", {"mib": mib})


def test_it_takes_memory_prints_like_a_training_and_gives_back(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("GPUSCHED_PROGRESS", str(tmp_path / "progress"))
    assert main(["--mem", "8000", "--hold", "0", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert f"pid {os.getpid()} on cuda:0 = GPU 1, 8000 MiB" in out and "step 3/3  loss 0.2300" in out
    progress = json.loads((tmp_path / "progress").read_text())
    assert progress == {"done": 3, "total": 3, "unit": "steps", "message": "step 3 of 3"}
    assert used(directory) == [0, 0, 0]


def test_the_exit_status_is_the_one_asked_for(directory: str) -> None:
    assert main(["--hold", "0", "--exit", "3"]) == 3


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("{1}", [1]),
        ("{1:12},{0:12}", [1, 0]),
        ("", []),
        ("-1", []),
        ("1,1", []),
        ("0,7,1", [0]),
        ("GPU-", []),
    ],
)
def test_the_mask_is_read_as_cuda_reads_it(directory: str, mask: str | None, expected: list[int]) -> None:
    environment = {}
    if mask is not None:
        for n in range(3):
            mask = mask.replace(f"{{{n}}}", uuid(directory, n)).replace(f"{{{n}:12}}", uuid(directory, n)[:12])
        environment = {"CUDA_VISIBLE_DEVICES": mask}
    assert visible_devices(directory, environment) == expected


def test_numbers_skip_a_missing_gpu(directory: str) -> None:
    simulation.change_keys(f"{directory}/gpu0/state", present=0)
    assert visible_devices(directory, {"CUDA_VISIBLE_DEVICES": "0"}) == [1]


def test_without_a_gpu_it_fails_as_pytorch_does(
    directory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--hold", "0"]) == 1
    assert "No CUDA GPUs are available" in capsys.readouterr().err
    assert main(["--mem", "0", "--hold", "0"]) == 0  # a CPU job


def test_a_full_board_is_out_of_memory(directory: str, stranger: int, capsys: pytest.CaptureFixture[str]) -> None:
    occupy(directory, 0, stranger, 80000)
    assert main(["--mem", "8000", "--hold", "0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and "torch.OutOfMemoryError: CUDA out of memory. Tried to alloc" in err
    assert audit(directory).ooms == 1


def test_it_fails_when_its_gpu_is_lost(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    lose = threading.Timer(0.1, simulation.change_keys, [f"{directory}/gpu0/state"], {"fail": "lost"})
    lose.start()
    assert main(["--hold", "60"]) == 1
    assert "unspecified launch failure" in capsys.readouterr().err
    assert main(["--hold", "0"]) == 1
    assert "unknown error" in capsys.readouterr().err


def test_a_colleague_is_where_he_is_told_to_be(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    seen = []
    monkeypatch.setattr(
        simulation,
        "log",
        lambda directory, event, **keys: seen.append((event, keys["gpu"], keys.get("foreign"))),
    )
    assert main(["--device", "2", "--user", "bo", "--mem", "700", "--hold", "0"]) == 0
    assert seen == [("grab", 2, 1), ("exit", 2, None)]
    assert main(["--device", "9", "--hold", "0"]) == 1


def test_without_a_simulation_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(simulation.ENV_DIRECTORY, raising=False)
    monkeypatch.delenv("GPUSCHED_SIMULATE", raising=False)
    assert main([]) == 2
    assert "GPUSCHED_SIMULATION is not set" in capsys.readouterr().err


def test_a_jobs_directory_counts_more_than_a_setting(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATE", "8xT4")
    assert main(["--hold", "0"]) == 0
    monkeypatch.delenv(simulation.ENV_DIRECTORY)
    monkeypatch.setenv("GPUSCHED_SIMULATE", directory)
    assert main(["--hold", "0"]) == 0
    assert audit(directory).grabs == 2


# ---- the audit


def events(directory: str, *lines: tuple[str, str, dict[str, object]]) -> None:
    for event, name, keys in lines:
        told = {"gpu": 0, "foreign": 0, "unreleased": False, "job": name, **keys}
        simulation.log(directory, event, name=name, **told)


def test_two_jobs_on_one_gpu_are_a_clash(directory: str) -> None:
    events(directory, ("grab", "1-1", {}), ("grab", "2-2", {}), ("exit", "1-1", {}), ("grab", "3-3", {}))
    assert [(c.job, c.holder, c.colleague) for c in audit(directory).clashes] == [
        ("2-2", "1-1", False),
        ("3-3", "2-2", False),
    ]


def test_one_after_the_other_is_none(directory: str) -> None:
    events(directory, ("grab", "1-1", {}), ("dead", "1-1", {}), ("grab", "2-2", {"unreleased": True}))
    events(directory, ("grab", "3-3", {"gpu": 1}), ("grab", "4-4", {"job": "2-2"}))
    report = audit(directory)
    assert (report.clashes, report.jobs, report.grabs, report.too_early) == ([], 3, 4, 1)


def test_a_colleague_who_comes_is_none_but_a_job_that_comes_to_him_is(directory: str) -> None:
    events(directory, ("grab", "1-1", {}), ("grab", "8-8", {"foreign": 1}))
    assert audit(directory).clashes == []
    events(directory, ("exit", "1-1", {}), ("grab", "2-2", {}))
    assert [(c.job, c.colleague) for c in audit(directory).clashes] == [("2-2", True)]


def test_attempts_are_told_apart_by_their_environment(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_QUEUE", "/data/my queue")
    monkeypatch.setenv("GPUSCHED_JOB_ID", "7")
    for attempt in ("1", "2"):
        monkeypatch.setenv("GPUSCHED_ATTEMPT", attempt)
        assert main(["--hold", "0"]) == 0
    report = audit(directory)
    assert (report.jobs, report.grabs, report.clashes) == (2, 2, [])


def test_an_empty_log_is_clean(directory: str) -> None:
    assert audit(directory).clashes == []


# ---- as processes


@pytest.mark.slow
def test_what_a_killed_job_held_is_back_at_once(directory: str) -> None:
    with subprocess.Popen([*SIMJOB, "--mem", "8000", "--hold", "60"], stdout=subprocess.DEVNULL) as job:
        wait_until_used(directory, [8000, 0, 0])
        job.kill()
    assert used(directory) == [0, 0, 0]
    assert main(["--hold", "0"]) == 0
    assert audit(directory).clashes == []


@pytest.mark.slow
def test_many_at_once_never_take_more_than_there_is(directory: str) -> None:
    command = [*SIMJOB, "--mem", "6000", "--hold", "0.5"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "2"}
    jobs = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert sorted(job.wait() for job in jobs).count(1) >= 1
    assert used(directory) == [0, 0, 0]
