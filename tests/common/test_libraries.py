"""The command that installs libraries, by what has made the environment of this program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpusched.common import libraries


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of its own, with a blank in its path."""
    path = tmp_path / "my venvs/gpusched-lab"
    path.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(path))
    monkeypatch.setattr(sys, "executable", f"{path}/bin/python")
    return path


def test_those_that_cannot_be_imported_are_missing() -> None:
    assert libraries.missing(["json", "no_such_library", "os"]) == ["no_such_library"]


def test_pip_installs_into_the_environment_that_runs(prefix: Path) -> None:
    assert libraries.install_command(["torch", "numpy"]) == f"'{prefix}/bin/python' -m pip install torch numpy"


def test_pipx_injects_into_its_own_environment(prefix: Path) -> None:
    (prefix / "pipx_metadata.json").write_text("{}")
    assert libraries.install_command(["torch", "numpy"]) == "pipx inject gpusched-lab torch numpy"


def test_uv_installs_where_there_is_no_pip(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "missing", list)
    assert libraries.install_command(["numpy"]) == f"uv pip install --python '{prefix}/bin/python' numpy"
