"""One call of the dispatcher or of a shepherd fails, as on a full disk; the run and the next one lose nothing.

`fault.c` is compiled here and preloaded into the processes of a run. Every call of a short run fails once, in each of
its families and with each error that fits; the fast suite takes a sample of them.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.box import Box
from tests.support.paths import TESTS

JOBS = 4
SAMPLE = 2  # calls of each family that fail in the fast suite
ERRORS = {
    "open": (errno.ENOSPC, errno.EMFILE, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.ENOSPC,),
    "flock": (errno.ENOMEM,),
    "sendmsg": (errno.EAGAIN, errno.ENOMEM),
    "fork": (errno.EAGAIN, errno.ENOMEM),
}
FAMILIES = [(who, family) for who in ("dispatcher", "shepherd") for family in ERRORS]
EVERY_CALL = [(who, family, error) for who, family in FAMILIES for error in ERRORS[family]]
CODES = {0, 1, 2, 3, 4, 75}  # the documented ends of a run that nobody has interrupted
COMPILER = shutil.which("cc")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler here to build the library that makes calls fail"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    path = tmp_path_factory.mktemp("library") / "fault.so"
    source = TESTS / "support" / "fault.c"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


class FaultyBox:
    """A box with two GPUs and a list of jobs that write down when they begin and end."""

    def __init__(self, root: Path, library: Path) -> None:
        self.box = Box(root, "2")
        self._library = library
        self._log = root / "faults.log"
        job = 'echo "$GPUSCHED_JOB_ID begin" >> ledger; sleep 0.05; echo "$GPUSCHED_JOB_ID end" >> ledger # '
        self._list = self.box.write(*(f"{job}{number}" for number in range(JOBS)))

    def run(self, who: str, family: str, at: int, error: int = 0) -> str:
        """Run the list while a call fails; return all that was said. Fails on a traceback and on an unknown end."""
        environment = {
            "LD_PRELOAD": str(self._library),
            "FAULT_WHO": who,
            "FAULT_CALL": family,
            "FAULT_AT": str(at),
            "FAULT_TIMES": "1",
            "FAULT_ERRNO": str(error),
            "FAULT_ROOT": str(self.box.root),
            "FAULT_LOG": str(self._log),
        }
        ended = self.box.gpusched("run", self._list, **environment)
        said = ended.text + "".join(path.read_text() for path in self.box.queue().glob("state/*.err"))
        assert "Traceback" not in said, said
        assert ended.code in CODES, ended
        return said

    def log_lines(self, word: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split(" ", 2) for line in lines if line.startswith(word)]

    def most_calls(self) -> int:
        """Return the calls of the process that made most of them."""
        return max((int(line[1]) for line in self.log_lines("calls")), default=0)

    def check_each_ran_once(self) -> None:
        lines = Counter(self.box.read("ledger").splitlines())
        expected = Counter(f"{job} {word}" for job in range(1, JOBS + 1) for word in ("begin", "end"))
        assert lines == expected, f"lost or doubled: {lines}"
        assert self.box.states() == ["succeeded"] * JOBS
        assert self.box.claimed() == set()


def _check_one(root: Path, library: Path, who: str, family: str, at: int, error: int) -> None:
    faulty = FaultyBox(root, library)
    with faulty.box:
        said = faulty.run(who, family, at, error)
        ended = faulty.box.gpusched("run", "list.txt")
        assert ended.code == 0, f"{ended}\nafter a run that said:\n{said}\n{faulty.log_lines('failed')}"
        faulty.check_each_ran_once()


def _count_calls(root: Path, library: Path, who: str, family: str) -> int:
    faulty = FaultyBox(root, library)
    with faulty.box:
        faulty.run(who, family, 0)
        faulty.check_each_ran_once()
        return faulty.most_calls()


@pytest.mark.parametrize(("who", "family"), FAMILIES)
def test_a_sample_of_failing_calls(tmp_path: Path, library: Path, who: str, family: str) -> None:
    calls = _count_calls(tmp_path / "count", library, who, family)
    for number in range(min(SAMPLE, calls)):
        at = 1 + number * calls // SAMPLE
        error = ERRORS[family][number % len(ERRORS[family])]
        _check_one(tmp_path / str(at), library, who, family, at, error)


@pytest.mark.soak
@pytest.mark.parametrize(("who", "family", "error"), EVERY_CALL)
def test_every_failing_call(tmp_path: Path, library: Path, who: str, family: str, error: int) -> None:
    calls = _count_calls(tmp_path / "count", library, who, family)
    for at in range(1, calls + 1):
        _check_one(tmp_path / str(at), library, who, family, at, error)


def test_the_library_makes_a_call_fail(tmp_path: Path, library: Path) -> None:
    faulty = FaultyBox(tmp_path, library)
    with faulty.box:
        faulty.run("dispatcher", "fork", 1, errno.EAGAIN)
        assert faulty.log_lines("failed") == [["failed", "1", "vfork"]]
        assert faulty.most_calls() >= 2  # it was tried again
