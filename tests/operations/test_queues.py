"""Which queue is meant, with -q and without, in which directory; and that what is printed after -q means it again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.core.model import JobState
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import job_table, request_table
from gpusched.operations import queues
from tests.support.sample import Sample9, stand_still

Capture = pytest.CaptureFixture[str]
CHANGES = (["cancel", "5"], ["requeue", "2"], ["hold", "5"], ["release", "5"], ["stop"])
READS = (["explain", "5"], ["status", "-v"], ["status", "--json", "-v"])


class Projects:
    """Directories with queues of nine jobs each; those in `live` are dispatched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live: set[str] = set()
        self._made: list[Sample9] = []

    def add(self, project: str, name: str = "commands", *, known: bool = True) -> Sample9:
        made = Sample9(self.root / project, name)
        made.fill()
        self._made.append(made)
        if known:
            queue_dirs.remember(made.place)
            for age, each in enumerate(reversed(self._made)):  # the last is the newest, whatever the clock's grain
                entry = _entry(self.root, each.place.path)
                os.utime(entry, (1e9 - age, 1e9 - age))
        return made

    def close(self) -> None:
        for made in self._made:
            made.close()


def _entry(root: Path, path: str) -> Path:
    """The file that says of this queue in the list of the user's queues."""
    found = [each for each in (root / "state").rglob("*") if each.is_file() and os.fsencode(path) in each.read_bytes()]
    return found[0]


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Projects]:
    stand_still(monkeypatch, tmp_path)
    made = Projects(tmp_path)
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: 4711 if self.path in made.live else None)
    monkeypatch.setattr(QueueDir, "ring", lambda self: None)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    yield made
    made.close()


def states(queue: Sample9) -> list[JobState]:
    return [row.state for row in job_table.jobs(queue.store)]


# ---- a name ----------------------------------------------------------------------------------------


def test_a_name_means_the_queue_of_this_directory(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = projects.add("a"), projects.add("b")
    before = states(b)
    monkeypatch.chdir(projects.root / "a")
    assert front.run(["cancel", "--all", "-q", "commands"]) == 0
    assert front.run(["requeue", "2", "-q", "commands"]) == 0
    assert capsys.readouterr().err == ""  # it is the one that anybody would expect
    assert states(a)[4] is JobState.CANCELLED and states(a)[1] is JobState.QUEUED
    assert states(b) == before


@pytest.mark.parametrize("argv", CHANGES, ids=" ".join)
def test_what_changes_refuses_a_name_of_several(
    argv: list[str], projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_queues = [projects.add("a"), projects.add("b")]
    before = [states(each) for each in all_queues]
    monkeypatch.chdir(projects.root / "c")
    assert front.run([*argv, "-q", "commands"]) == 2
    assert capsys.readouterr().err == (
        "gpusched: error: it is not clear which queue is meant\n"
        f"  name one with -q: {all_queues[1].place.path}, {all_queues[0].place.path}\n"
    )
    assert [states(each) for each in all_queues] == before


@pytest.mark.parametrize("argv", READS, ids=" ".join)
def test_what_reads_takes_the_newest_of_a_name_and_says_so(
    argv: list[str], projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.add("a")
    new = projects.add("b")
    monkeypatch.chdir(projects.root / "c")
    assert front.run([*argv, "-q", "commands"]) == 0
    says = "the one run last with this name; to choose another, name it with -q"
    assert capsys.readouterr().err == f"gpusched: queue {new.place.path}, {says}\n"


def test_the_only_one_of_a_name_is_taken_from_afar_and_said(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = projects.add("a")
    monkeypatch.chdir(projects.root / "c")
    assert front.run(["cancel", "5", "-q", "commands"]) == 0
    assert capsys.readouterr().err == (
        f"gpusched: queue {made.place.path}, the only one with this name; to choose another, name it with -q\n"
    )
    for path in (made.place.path, "../a/gpusched-runs/commands"):
        assert front.run(["explain", "5", "-q", path]) == 0
        assert capsys.readouterr().err == ""


def test_gpusched_runs_goes_before_a_directory_and_a_log_dir_here_before_others(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.add("b")
    runs = projects.add("a")
    beside = queue_dirs.locate(str(projects.root / "a/commands"))  # of --log-dir commands
    os.symlink(projects.root / "b/gpusched-runs/commands", beside.path)
    queue_dirs.remember(beside)
    monkeypatch.chdir(projects.root / "a")
    assert queues.find_queue("commands", to_change=True).path == runs.place.path
    assert queues.find_queue("./commands", to_change=True).path == beside.path
    assert queues.queue_name(beside) == "./commands"
    assert queues.queue_name(runs.place) == "commands"
    os.rename(projects.root / "a/gpusched-runs/commands", projects.root / "a/gpusched-runs/other")
    assert queues.find_queue("commands", to_change=True).path == beside.path
    assert capsys.readouterr().err == ""


def test_every_name_that_is_printed_means_the_same_queue_again(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_queues = [projects.add("a"), projects.add("b"), projects.add("b", "only"), projects.add("c", known=False)]
    for where in ("a", "b", "c", "."):
        monkeypatch.chdir(projects.root / where)
        for queue in all_queues:
            name = queues.queue_name(queue.place)
            assert queues.find_queue(name, to_change=True).path == queue.place.path, (where, name)
    monkeypatch.chdir(projects.root / "a")
    assert queues.queue_name(all_queues[0].place) == "commands"
    assert queues.queue_name(all_queues[1].place) == all_queues[1].place.path
    capsys.readouterr()
    front.run(["explain", "2", "-q", all_queues[1].place.path])
    assert f"gpusched requeue 2 -q {all_queues[1].place.path}\n" in capsys.readouterr().out


def test_stop_tells_how_to_stop_the_same_queue_at_once(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.add("a")
    other = projects.add("b")
    projects.live = {other.place.path}
    monkeypatch.chdir(projects.root / "a")
    monkeypatch.setattr("gpusched.operations.change.requests._await_answer", lambda *_: "heard")
    assert front.run(["stop", "-q", other.place.path]) == 0
    assert f"to stop them too: gpusched stop --now -q {other.place.path}\n" in capsys.readouterr().out


# ---- no name ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", CHANGES, ids=" ".join)
def test_without_a_name_the_queue_of_this_directory_comes_before_one_that_is_dispatched(
    argv: list[str], projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = projects.add("a", "own"), projects.add("b")
    projects.live = {other.place.path}
    before = states(other)
    monkeypatch.chdir(projects.root / "a")
    front.run(argv)
    assert (
        capsys.readouterr().err
        == "gpusched: queue own, the only one in this directory; to choose another, name it with -q\n"
    )
    assert states(other) == before and not request_table.open_requests(other.store)
    own.close()


@pytest.mark.parametrize("argv", CHANGES, ids=" ".join)
def test_another_directory_s_queue_is_changed_only_if_it_alone_is_dispatched(
    argv: list[str], projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusched.operations.change.requests._await_answer", lambda *_: "heard")
    first, second = projects.add("a"), projects.add("b", "second")
    before = [states(first), states(second)]
    monkeypatch.chdir(projects.root / "c")
    assert front.run(argv) == 2
    assert capsys.readouterr().err == (
        "gpusched: error: it is not clear which queue is meant\n  name one with -q: second, commands\n"
    )
    projects.live = {first.place.path, second.place.path}
    assert front.run(argv) == 2
    assert "it is not clear which queue is meant\n  name one with -q: second, commands" in capsys.readouterr().err
    assert [states(first), states(second)] == before
    projects.live = {first.place.path}
    assert front.run(argv) in (0, 1)
    said = capsys.readouterr().err
    assert (
        said
        == f"gpusched: queue {first.place.path}, the only one with a dispatcher; to choose another, name it with -q\n"
    )
    assert states(second) == before[1]


@pytest.mark.parametrize(
    ("where", "live", "says"),
    [
        ("a", (), "queue one, the one run last in this directory"),
        ("a", ("a/gpusched-runs/zero",), "queue zero, the only one in this directory with a dispatcher"),
        ("a", ("b/gpusched-runs/two",), "queue one, the one run last in this directory"),
        ("b", ("a/gpusched-runs/zero",), "queue two, the only one in this directory"),
        ("c", ("a/gpusched-runs/zero",), "queue {root}/a/gpusched-runs/zero, the only one with a dispatcher"),
        (
            "c",
            ("a/gpusched-runs/zero", "a/gpusched-runs/one"),
            "queue {root}/a/gpusched-runs/one, the one run last with a",
        ),
        ("c", (), "queue {root}/b/gpusched-runs/two, the one run last"),
        (".", (), "queue {root}/b/gpusched-runs/two, the one run last"),
    ],
)
def test_what_is_shown_without_a_name_is_said(
    where: str, live: tuple[str, ...], says: str, projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project, name in (("a", "zero"), ("a", "one"), ("b", "two")):
        projects.add(project, name)
    projects.live = {f"{projects.root}/{path}" for path in live}
    monkeypatch.chdir(projects.root / where)
    assert front.run(["explain", "5"]) == 0
    assert says.format(root=projects.root) in capsys.readouterr().err


# ---- without the list of the user's queues ---------------------------------------------------------


def test_queues_under_the_directory_are_found_without_the_list(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = projects.add("a", known=False)
    monkeypatch.chdir(projects.root / "a")
    for argv in (["status"], ["explain", "5"], ["explain", "5", "-q", "commands"], ["status", "-q", "commands"]):
        assert front.run(argv) == 0, argv
        said = capsys.readouterr()
        assert said.err == "" and re.search("commands|job 5", said.out)
    queue_dirs.remember(made.place)
    assert [queue.path for queue in queue_dirs.list_queues()] == [made.place.path]  # once


# ---- a directory that is gone ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    (
        "status",
        "status -v",
        "explain 5",
        "cancel 5",
        "logs 1",
        "stop",
        "devices",
        "config",
        "run x",
        "check x",
        "shard --total 2 -- true {start}",
        "status -q commands",
        "cancel 5 -q commands",
        "merge -o x.txt y.txt",
    ),
)
def test_a_working_directory_that_is_gone_is_said(
    line: str, projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for project in ("a", "b"):
        projects.add(project)
    gone = projects.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the stage was started"))
    assert front.run(line.split()) == 2
    says = "gpusched: error: the working directory is gone\n  change to a directory that exists\n"
    assert capsys.readouterr().err == says


# ---- several dispatchers ---------------------------------------------------------------------------


def test_what_is_to_be_changed_is_named_where_several_are_dispatched(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sample9(sample.home, "other")
    for made in (sample, other):
        queue_dirs.remember(made.place)
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: 4711)
    assert front.run(["cancel", "5"]) == 2
    assert "it is not clear which queue is meant" in capsys.readouterr().err
    assert front.run(["cancel", "5", "-q", "commands"]) == 0
    assert front.run(["status"]) == front.run(["status", "-q", "other"]) == 0
    capsys.readouterr()
    front.run(["explain", "5"])  # what is only shown is shown of one, which is said
    assert "queue other, the one run last with a dispatcher" in capsys.readouterr().err
    other.close()


def test_an_unknown_name_lists_at_most_ten_queues(
    projects: Projects, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(10, 22):
        projects.add("a", f"q{n}")
    monkeypatch.chdir(projects.root / "a")
    assert front.run(["status", "-q", "nosuch"]) == 2
    listed = ", ".join(f"q{n}" for n in range(21, 11, -1))
    assert f"known here: {listed} and 2 more (gpusched status)\n" in capsys.readouterr().err
