"""One call of the dispatcher or of a shepherd fails, as on a full disk; the run and the next one lose nothing.

`fault.c` is compiled here and preloaded into the processes of a run. Every call of a short run fails once, in each of
its families and with each error that fits; the fast suite takes a sample of them. Most of these runs wait for a pause
to end, so several go on at once.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.box import Box
from tests.support.paths import TESTS

JOBS = 4
SAMPLE = 3  # calls of each family that fail in the fast suite
ERRORS = {
    "open": (errno.ENOSPC, errno.EMFILE, errno.EIO),
    "write": (errno.ENOSPC, errno.EIO),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.ENOSPC,),
    "flock": (errno.ENOMEM,),
    "sendmsg": (errno.EAGAIN, errno.ENOMEM),
    "fork": (errno.EAGAIN, errno.ENOMEM),
}
CALLS = {"dispatcher": set(ERRORS), "shepherd": set(ERRORS) - {"rename", "flock"}}  # that each of them makes
FAMILIES = [(who, family) for who in CALLS for family in ERRORS if family in CALLS[who]]
EVERY_CALL = [(who, family, error) for who, family in FAMILIES for error in ERRORS[family]]
AT_ONCE = 6
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
        assert error == errno.ENOSPC or "disk is full" not in said, said
        assert ended.code in CODES, ended
        return said

    def log_lines(self, word: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line.split(" ", 2) for line in lines if line.startswith(word)]

    def most_calls(self) -> dict[str, int]:
        """Return for each family the calls of the process that made most of them; families without any are left out."""
        lines = sorted((family, int(calls)) for _, calls, family in self.log_lines("calls"))
        return {family: calls for family, calls in lines if calls}

    def check_each_ran_once(self) -> None:
        lines = Counter(self.box.read("ledger").splitlines())
        expected = Counter(f"{job} {word}" for job in range(1, JOBS + 1) for word in ("begin", "end"))
        assert lines == expected, f"lost or doubled: {lines}"
        assert self.box.states() == ["succeeded"] * JOBS
        assert self.box.claimed() == set()


Fault = tuple[str, str, int, int]  # who, family, the number of the call, error


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory, library: Path) -> dict[str, dict[str, int]]:
    """The number of calls in a run without faults, by who makes them and family."""
    counts = {}
    for who in CALLS:
        faulty = FaultyBox(tmp_path_factory.mktemp(who), library)
        with faulty.box:
            faulty.run(who, "open", 0)
            faulty.check_each_ran_once()
            counts[who] = faulty.most_calls()
    return counts


def _check_all(root: Path, library: Path, faults: list[Fault]) -> None:
    def check(fault: Fault) -> None:
        faulty = FaultyBox(root / "-".join(map(str, fault)), library)
        with faulty.box:
            said = faulty.run(*fault)
            ended = faulty.box.gpusched("run", "list.txt")
            assert ended.code == 0, f"{fault}: {ended}\nafter a run that said:\n{said}\n{faulty.log_lines('failed')}"
            faulty.check_each_ran_once()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        assert len(list(pool.map(check, faults))) == len(faults) > 0


def test_an_error_of_the_disk_is_called_so(tmp_path: Path, library: Path, calls: dict[str, dict[str, int]]) -> None:
    def say(at: int) -> str:
        faulty = FaultyBox(tmp_path / str(at), library)
        with faulty.box:
            return faulty.run("dispatcher", "sync", at, errno.EIO)

    assert "queue.db: disk I/O error\n  the disk or its file system fails" in say(1)  # as the list is submitted
    late = calls["dispatcher"]["sync"] * 3 // 4
    assert any("queue.db: disk I/O error: nothing new starts" in say(at) for at in range(late, late + 4))


def test_every_family_of_calls_is_seen(calls: dict[str, dict[str, int]]) -> None:
    assert {who: set(counts) for who, counts in calls.items()} == CALLS


def test_a_sample_of_failing_calls(tmp_path: Path, library: Path, calls: dict[str, dict[str, int]]) -> None:
    faults = [
        (who, family, 1 + number * calls[who][family] // SAMPLE, ERRORS[family][number % len(ERRORS[family])])
        for number in range(SAMPLE)
        for who, family in FAMILIES
    ]
    _check_all(tmp_path, library, faults)


@pytest.mark.soak
@pytest.mark.parametrize(("who", "family", "error"), EVERY_CALL)
def test_every_failing_call(
    tmp_path: Path, library: Path, calls: dict[str, dict[str, int]], who: str, family: str, error: int
) -> None:
    faults = [(who, family, at, error) for at in range(1, calls[who][family] + 1)]
    _check_all(tmp_path, library, faults)


def test_the_library_makes_a_call_fail(tmp_path: Path, library: Path) -> None:
    faulty = FaultyBox(tmp_path, library)
    with faulty.box:
        faulty.run("dispatcher", "fork", 1, errno.EAGAIN)
        assert faulty.log_lines("failed") == [["failed", "1", "vfork"]]
        assert faulty.most_calls()["fork"] >= 2  # it was tried again
