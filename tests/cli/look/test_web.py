"""`gpusched web`: what it refuses before it listens."""

from __future__ import annotations

import pytest

from gpusched.cli import main as front
from gpusched.common import libraries
from tests.support.command_line import Capture
from tests.support.sample import Sample9


def test_without_the_extra_it_says_how_to_get_it(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "missing", lambda names: [name for name in names if name != "pip"])
    assert front.run(["web"]) == 3
    said = capsys.readouterr().err
    assert "web needs libraries" in said and "pip install starlette uvicorn (the extra web)" in said


@pytest.mark.parametrize("words", [["nowhere"], ["--port", "0"], ["--port", "70000"], ["--port", "x"]])
def test_what_makes_no_sense(sample: Sample9, capsys: Capture, words: list[str]) -> None:
    assert front.run(["web", *words]) == 2
    assert not capsys.readouterr().out
