"""The systemd unit of a queue, with a program in place of systemctl."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import GpuschedError
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.operations.box import service
from tests.support.command_line import Capture, call
from tests.support.sample import stand_still


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")


def systemctl(tmp_path: Path, text: str = "") -> Path:
    """Write the program, which notes how it was called."""
    program = tmp_path / "bin/systemctl"
    program.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\n{text}\n')
    program.chmod(0o755)
    return tmp_path / "calls"


def fields(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_unit_restarts_after_a_crash_but_not_after_a_stop(tmp_path: Path) -> None:
    unit = fields(service.unit_text(queue_dirs.locate(str(tmp_path / "queue")), {}))
    assert unit["KillMode"] == "process" and unit["KillSignal"] == "SIGQUIT"  # which leaves the jobs alone
    assert unit["Restart"] == "on-failure" and unit["WantedBy"] == "default.target"
    fine, final = unit["SuccessExitStatus"].split(), unit["RestartPreventExitStatus"].split()
    assert {"1", "130", "131", "143"} == set(fine) and {"2", "75"} == set(final)
    assert shlex.split(unit["ExecStart"])[1:] == [
        *("-m", "gpusched", "start", "-q", str(tmp_path / "queue"), "--quiet", "--idle-exit", "1000d")
    ]


def test_odd_names_are_quoted_as_systemd_reads_them() -> None:
    unit = service.unit_text(
        QueueDir('/a b/50% "x" $HOME', "/s"),
        {"XDG_STATE_HOME": "/s t", "GPUSCHED_CLAIMS_DIR": "/c d", "GPUSCHED_SIMULATE": "4"},
    )
    assert '-q "/a b/50%% \\"x\\" $$HOME" --quiet' in unit
    assert 'Environment="XDG_STATE_HOME=/s t"\n' in unit
    assert 'Environment="GPUSCHED_CLAIMS_DIR=/c d"\n' in unit and "SIMULATE" not in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "gpusched-x.service"
    path.write_text(service.unit_text(queue_dirs.locate(str(tmp_path / "queue")), {}))
    done = subprocess.run(["systemd-analyze", "verify", "--user", str(path)], capture_output=True, text=True)
    assert "gpusched-x.service" not in done.stderr, done.stderr


def test_service_is_printed_and_installed(tmp_path: Path, capsys: Capture) -> None:
    calls = systemctl(tmp_path)
    printed = call(capsys, "service")
    assert "ExecStart=" in printed and not calls.exists()
    assert front.run(["service", "--install"]) == 0
    unit = tmp_path / "config/systemd/user/gpusched-default.service"
    remedy = f"systemctl --user disable --now gpusched-default.service && rm {unit}"
    assert remedy in capsys.readouterr().err
    assert unit.read_text() == printed
    assert calls.read_text() == "--user daemon-reload\n--user enable --now gpusched-default.service\n"


def test_unit_waits_for_the_dispatcher_that_is_there(tmp_path: Path, capsys: Capture) -> None:
    calls = systemctl(tmp_path)
    call(capsys, "submit", "--no-start", "--", "true")
    queue_dir = queue_dirs.locate(queue_dirs.standing_path("default"))
    assert queue_dir.take() is not None
    call(capsys, "service", "--install")
    assert "--user enable gpusched-default.service\n" in calls.read_text()


def test_what_systemctl_says_is_said(tmp_path: Path) -> None:
    systemctl(tmp_path, "echo no bus >&2; exit 1")
    with pytest.raises(GpuschedError, match="no bus") as refused:
        service.install(queue_dirs.locate(str(tmp_path / "queue")), print)
    assert "@reboot" in refused.value.hint
