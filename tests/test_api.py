"""The library as a Python user meets it: queues and jobs, on simulated GPUs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import gpusched
from gpusched.common import simulation
from gpusched.common.errors import GpuschedError
from gpusched.core.model import OutcomeKind
from tests.support.sample import stand_still

QUICK: dict[str, Any] = {"max_checks": 1, "poll_interval": "0.05"}


@pytest.fixture(autouse=True)
def _box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box with two simulated GPUs."""
    stand_still(monkeypatch, tmp_path)
    (tmp_path / "claims").mkdir(mode=0o1777)
    monkeypatch.setenv("GPUSCHED_CLAIMS_DIR", str(tmp_path / "claims"))
    simulation.create(str(tmp_path / "simulation"), simulation.parse_spec("2"))
    monkeypatch.setenv(simulation.ENV_DIRECTORY, str(tmp_path / "simulation"))


def test_the_import_loads_neither_the_dispatcher_nor_anything_heavy() -> None:
    code = (
        "import gpusched, sys; print(sorted(m for m in sys.modules if m.startswith(('gpusched', 'torch', 'sqlite3'))))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "['gpusched']"
    assert {"Queue", "Job", "run", "dry_run"} <= set(dir(gpusched))
    with pytest.raises(AttributeError, match="'nothing'"):
        gpusched.nothing  # noqa: B018


def test_jobs_are_submitted_run_and_read() -> None:
    queue = gpusched.Queue("night")
    assert (queue.name, gpusched.Queue("night")) == ("night", queue)
    first = queue.submit("echo one; exit 3", name="one", gpus=0)
    jobs = queue.map(
        "echo {word} {n} ${SHELL_IS_NO_PARAMETER}", word=["a b", "$x"], n=range(2), env={"A": "1"}, tag=("t", "u")
    )
    last = queue.submit(["echo", "c d"], after_ended=[first, "t"], mem="1G")
    assert [job.state for job in queue] == ["queued"] * 6
    assert (first.outcome, first.log_path, first.log()) == (None, None, "")
    assert queue.run(**QUICK) == 1
    assert [job.state for job in (first, last)] == ["failed", "succeeded"]
    assert first.outcome is not None and (first.outcome.kind, first.outcome.exit_code) == (OutcomeKind.EXITED, 3)
    assert [job.log().strip() for job in jobs] == ["a b 0", "a b 1", "$x 0", "$x 1"]
    assert last.log() == "c d\n"
    assert (queue["one"], queue[1], list(queue)) == (first, first, [first, *jobs, last])
    with pytest.raises(KeyError):
        queue["two"]
    first.requeue()
    assert first.state == "queued"
    first.cancel()
    assert (first.state, first.explain()) == ("cancelled", "")


def test_a_job_is_waited_for_while_another_thread_dispatches() -> None:
    queue = gpusched.Queue()
    job = queue.submit("sleep 0.3; echo done")
    with pytest.raises(GpuschedError, match="no dispatcher works"):
        job.wait()
    dispatching = threading.Thread(target=queue.run, kwargs=QUICK)
    dispatching.start()
    while queue._dir.dispatcher() is None:
        time.sleep(0.01)
    with pytest.raises(TimeoutError, match="have not ended after"):
        job.wait(timeout=0.05)
    assert job.wait(timeout=30).log() == "done\n"
    dispatching.join()


def test_a_queue_dispatched_in_the_background(tmp_path: Path) -> None:
    config = tmp_path / "config" / "gpusched"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.yaml").write_text(f"simulate: 2\nclaims_dir: {tmp_path / 'claims'}\n")
    queue = gpusched.Queue()
    jobs = [queue.submit("echo $CUDA_VISIBLE_DEVICES", hold=n == 1) for n in range(3)]
    pid = queue.start(max_gpus=1, idle_exit=0, **QUICK)
    assert pid > 0
    queue.wait(jobs[0], jobs[2], timeout=30)
    assert [job.state for job in jobs] == ["succeeded", "held", "succeeded"]
    assert {jobs[0].log(), jobs[2].log()} <= {"0\n", "1\n"}
    jobs[1].release()
    with pytest.raises(GpuschedError, match="queued"):
        jobs[1].release()


def test_what_is_wrong_is_refused_before_anything_is_stored() -> None:
    queue = gpusched.Queue()
    for wanted, words in (
        ({"gpu": 1}, "no attribute 'gpu'"),
        ({"mem": "lots"}, "mem is 'lots'"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "CUDA_VISIBLE_DEVICES"),
        ({"after": "nobody"}, "nobody"),
    ):
        with pytest.raises(GpuschedError, match=words):
            queue.submit("true", **wanted)
    with pytest.raises(GpuschedError, match="cannot be right"):
        queue.submit("CUDA_VISIBLE_DEVICES=1 python train.py")
    for verb in (gpusched.run, gpusched.dry_run, gpusched.Queue("night").submit_file):
        with pytest.raises(GpuschedError, match=r"missing\.txt: cannot be read: No such file"):
            verb("missing.txt")
    Path("list.txt").write_text("true\n")
    for start in (partial(gpusched.run, "list.txt"), queue.run, queue.start):
        with pytest.raises(GpuschedError, match="there is no setting 'max_gpu'\n  did you mean max_gpus"):
            start(max_gpu=2)
    with pytest.raises(GpuschedError, match="'seed'"):
        queue.map("train {lr}", seed=[1])
    with pytest.raises(GpuschedError, match=r"\{size\}"):
        queue.map("train {lr} {size}", lr=[1])
    assert list(queue) == []


def test_a_key_gives_the_job_that_is_there_and_a_file_its_own_queue(tmp_path: Path) -> None:
    queue = gpusched.Queue()
    assert queue.submit("true", once="k") == queue.submit("false", once="k")
    (tmp_path / "list.txt").write_text("echo a\n[gpus=0] echo b\n")
    assert len(queue.submit_file("list.txt", prio=2)) == 2
    assert gpusched.run("list.txt", max_checks=1, poll_interval="0.05") == 0
    assert [job.log() for job in gpusched.Queue.for_file("list.txt")] == ["a\n", "b\n"]
