"""Shell completion: verbs, files, queues, ids and names, by the script that a shell gets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.core.model import JobSpec, Requirements
from gpusched.host.queue import queue_dirs
from gpusched.host.store import submission
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, Sample9


def completed(home: Path, *words: str) -> list[str]:
    """What is offered for the last word, as bash asks for it."""
    asked = {
        "_GPUSCHED_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["gpusched", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gpusched"],
        env=os.environ | asked,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_what_a_shell_is_offered(sample: Sample9) -> None:
    submission.submit(sample.store, [JobSpec(b"x", b"x", 1)], lambda _: Requirements(name="prepare"), NOW, append=True)
    other = Sample9(sample.home, "sweep")
    other.close()
    queue_dirs.remember(other.place)
    home = sample.home
    assert completed(home, "sta") == ["start", "status"]
    assert "--older-than" in completed(home, "clean", "--o")
    assert completed(home, "cancel", "-q", "commands", "") == ["prepare", *map(str, range(10, 0, -1))]
    assert completed(home, "logs", "-q", "commands", "1") == ["10", "1"]
    assert completed(home, "wait", "-q", "sweep", "") == []
    assert completed(home, "wait", "-q", "nowhere", "") == []
    assert sorted(completed(home, "cancel", "-q", "")) == ["commands", "sweep"]
    assert completed(home, "status", "sw") == ["sweep"]
    assert completed(home, "run", "comm") == ["comm"]  # the shell knows its files
    assert completed(home, "usage", "--by", "d") == ["device", "day"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_this_shell_and_says_how_to_install_it(shell: str, capsys: Capture) -> None:
    script = call(capsys, "completion", shell)
    assert f"{shell}_complete" in script
    assert f"# to install it: gpusched completion {shell} > " in script.splitlines()[-1]
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)
