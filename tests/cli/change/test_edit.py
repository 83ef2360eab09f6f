"""`gpusched edit`: the options that are probably a mistake."""

from __future__ import annotations

import pytest

from gpusched.cli import main as front
from gpusched.core.model import MIB
from gpusched.host.store import job_table
from tests.support.command_line import Capture
from tests.support.sample import Sample9


@pytest.mark.parametrize(("size", "is_doubtful"), [("24", True), ("24G", False), ("auto", False), ("", False)])
def test_so_little_memory_is_warned_of_as_in_a_list(
    sample: Sample9, rung: list[str], capsys: Capture, size: str, is_doubtful: bool
) -> None:
    assert front.run(["edit", "5", "--mem", size]) == 0
    warning = f"gpusched: warning: --mem {size} is 24 MiB, which is less than a CUDA context alone takes: a number"
    assert (warning in capsys.readouterr().err) is is_doubtful
    if is_doubtful:
        assert job_table.get(sample.store, 5).stated_mem_bytes == 24 * MIB
