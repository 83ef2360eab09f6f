"""A sharded script run from Python, without the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from gpusched.api import ShardRequest, run_shards
request = ShardRequest(("seq", "{start}", "{end}"), total=8)
code = run_shards(request, simulate="2", max_checks=1, poll_interval="0.05", log_dir="q")
assert code == 0, code
assert "click" not in sys.modules and "rich" not in sys.modules, "the library loads no command line"
"""


def test_a_script_is_sharded_from_python_and_nothing_is_printed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    logs = sorted((tmp_path / "q" / "logs").glob("*.out.log"))
    assert [log.read_text().split() for log in logs] == [["0", "1", "2", "3", "4"], ["4", "5", "6", "7", "8"]]
