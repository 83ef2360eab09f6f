"""`gpusched config`: values and origins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import EXIT_USAGE
from gpusched.config.settings import SETTINGS
from tests.support.command_line import Capture


def test_config_shows_each_value_and_its_origin(
    plain_home: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("gpusched.yaml").write_text("time_limit: 90m\n")
    monkeypatch.setenv("GPUSCHED_MAX_GPUS", "2")
    monkeypatch.setenv("GPUSCHED_MAX_CHECK", "2")
    assert front.run(["config"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["max_gpus"] == ["2", "env", "GPUSCHED_MAX_GPUS"]
    assert lines["time_limit"] == ["1h30m", "file", f"{os.getcwd()}/gpusched.yaml"]
    assert lines["shell"] == ["bash", "default"]
    assert set(SETTINGS) < set(lines)
    assert lines["project"] == [f"{os.getcwd()}/gpusched.yaml", "(read)"]
    assert err == (
        "gpusched: warning: the variable GPUSCHED_MAX_CHECK is no setting and is ignored; "
        "did you mean GPUSCHED_MAX_CHECKS?\n"
    )


def test_config_as_json(plain_home: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_TIME_LIMIT", "2h")
    assert front.run(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["time_limit"] == {"value": 7200.0, "origin": "env GPUSCHED_TIME_LIMIT"}
    assert shown["settings"]["max_gpus"] == {"value": None, "origin": "default"}
    assert [f["layer"] for f in shown["files"]] == ["system", "user", "project"]


def test_a_bad_file_is_named(plain_home: None, capsys: Capture) -> None:
    Path("gpusched.yaml").write_text("max_gpu: 2\n")
    assert front.run(["config"]) == EXIT_USAGE
    assert capsys.readouterr().err == (
        f"gpusched: error: {os.getcwd()}/gpusched.yaml:1: there is no setting 'max_gpu'\n  did you mean max_gpus?\n"
    )
