"""Run a command line in this process, and return its output."""

from __future__ import annotations

import pytest

from gpusched.cli import main as front

Capture = pytest.CaptureFixture[str]


def call(capsys: Capture, *argv: str, code: int = 0) -> str:
    """Return stdout."""
    assert front.run(list(argv)) == code, capsys.readouterr().err
    return capsys.readouterr().out


def shown(capsys: Capture, *argv: str, code: int = 0) -> str:
    """Return stdout, and below it stderr if there is any."""
    assert front.run(list(argv)) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    return out + (f"--- stderr\n{err}" if err else "")
