"""The fate of a dispatcher in the background at a logout, with programs in place of systemd's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusched.operations.run import logout
from tests.support.sample import stand_still


@pytest.fixture(autouse=True)
def _bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")


def systemd(tmp_path: Path, *, lingers: str = "no", kills: str = "no", scope: str = 'exec "${@:5}"') -> dict[str, str]:
    """Write both programs; the environment to pass on."""
    programs = {
        "loginctl": f'case "$1" in show-user) echo Linger={lingers} ;; *) echo KillUserProcesses={kills} ;; esac',
        "systemd-run": scope,
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}


@pytest.mark.parametrize("lingers", ["yes", "no"])
def test_who_lingers_gets_a_scope(tmp_path: Path, lingers: str) -> None:
    environ = systemd(tmp_path, lingers=lingers)
    assert logout.scope_words(environ) == (logout.SCOPE if lingers == "yes" else ())


@pytest.mark.parametrize("scope", ["exit 1", "echo no bus >&2; exit 1", "exit 0"])
def test_scope_that_cannot_be_made_is_done_without(tmp_path: Path, scope: str) -> None:
    assert logout.scope_words(systemd(tmp_path, lingers="yes", scope=scope)) == ()


def test_box_without_systemd_has_no_scope(tmp_path: Path) -> None:
    said: list[str] = []
    assert logout.scope_words({"PATH": str(tmp_path / "bin")}) == ()
    logout.warn(said.append)
    assert said == []


def test_logout_that_ends_everything_is_said_once(tmp_path: Path) -> None:
    systemd(tmp_path, kills="yes")
    said: list[str] = []
    for _ in range(2):
        logout.warn(said.append)
    assert len(said) == 1 and "KillUserProcesses" in said[0] and "enable-linger" in said[0]
