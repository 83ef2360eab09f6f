"""The dry run as `gpusched run` prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.cli.run.options import RunOptions
from gpusched.cli.run.session import print_dry_run
from gpusched.common.errors import GpuschedError
from gpusched.config.layers import load
from gpusched.config.settings import Settings
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations.run import dry_run as operation
from tests.support.command_line import Capture
from tests.support.golden import golden
from tests.support.sample import Sample9, stand_still


def dry_run(sample: Sample9, text: str, *, as_json: bool = False, retry_failed: bool = False) -> int:
    submission = SubmitOptions(Settings(simulate="4"), b"/", retry_failed=retry_failed)
    jobs = read(text.encode(), submission, "commands.txt")
    return print_dry_run(operation.dry_run(sample.place, jobs, submission), RunOptions(load({}), as_json=as_json))


LIST = "python prepare.py\npython train.py --lr 0.1\npython new.py --token abc123\npython eval.py --all\n"


def test_a_dry_run_says_what_would_be_done(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    before = sample.store.data_version()
    assert dry_run(sample, LIST, retry_failed=True) == 0
    golden("dry-run", capsys.readouterr().out, home=sample.home)
    assert sample.store.data_version() == before
    assert dry_run(sample, LIST, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert [job["would"] for job in found["jobs"]][:4] == ["keep", "keep", "add", "keep"]
    assert not (sample.home / "claims").exists()


def test_a_dry_run_makes_no_queue(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(tmp_path / "simulation"))
    (tmp_path / "list.txt").write_text("true\n")
    assert front.run(["run", "list.txt", "--simulate", "2", "--dry-run"]) == 0
    golden("dry-run-new", capsys.readouterr().out, home=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.txt", "simulation"]


def test_a_dry_run_ends_as_the_run_would(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    (sample.home / "commands.txt").write_text(LIST)
    argv = ["run", "commands.txt", "--simulate", "2", "--dry-run", "--gpus-per-job", "3", "--max-gpus", "3"]
    assert front.run(argv) == 2
    out, err = capsys.readouterr()
    assert "python new.py" in out and "can never give 3 to one job" in err


def test_a_dry_run_knows_who_waits_for_whom_and_what_each_gpu_is(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATION", str(sample.home / "simulation"))
    lines = "[name=a gpus=0] true a\n[after=a] true b\n[after-ended=b] true c\n[name=b gpu-model=A100] true d\n"
    assert dry_run(sample, lines) == 0
    first = capsys.readouterr().out.partition("first:\n")[2]
    *starts, more = first.splitlines()
    assert [line.split(": ", 1)[1] for line in starts] == ["starts on the CPU", "starts on GPU 0"]
    assert more == "  … and 2 more"
    with pytest.raises(GpuschedError, match="some jobs can never run here"):
        dry_run(sample, "[gpu-model=H100] true\n")
