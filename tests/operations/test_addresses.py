"""The jobs that words stand for, in a real queue, and the queue that they name: the doubtful cases above all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import GpuschedError
from gpusched.core.model import Attributes, JobSpec, JobState, Requirements
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, submission
from gpusched.operations import queues
from gpusched.operations.addresses import find_job, find_jobs, find_queue_of
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, Sample9, stand_still

NAMED = {"eval": ("slow",), "5-6": (), "tag=slow": (), "sweep/2": ("slow", "fast")}  # jobs 10 to 13


def add(store: Store, jobs: dict[str, tuple[str, ...]]) -> None:
    for name, tags in jobs.items():
        own = Attributes(name=name, tags=tags)
        text = b"run " + name.encode()
        submission.submit(
            store,
            [JobSpec(text, text, 1, attributes=own)],
            lambda _, own=own: Requirements(name=own.name, tags=own.tags),  # type: ignore[misc]
            NOW,
            complete=False,
            append=True,
        )


@pytest.fixture
def named(sample: Sample9) -> Sample9:
    add(sample.store, NAMED)
    return sample


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["3"], [3]),
        (["7", "3"], [7, 3]),
        (["7-9"], [7, 8, 9]),
        (["7..9,2"], [7, 8, 9, 2]),
        (["eval"], [10]),
        (["state=failed"], [2, 4]),
        (["state=failed", "state=running"], [2, 3, 4]),
        (["tag=fast"], [13]),
        (["tag=fast", "3"], [3, 13]),
        (["tag=fast", "state=queued"], [13]),
        (["sweep/2"], [13]),  # there is no queue of that name
    ],
)
def test_each_form_of_a_word(words: list[str], ids: list[int], named: Sample9) -> None:
    assert find_jobs(named.store, words, to_change=True) == ids


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["3", "nobody"], "there is no job 'nobody' in the queue"),
        (["none/3"], "there is no job 'none/3' in the queue"),
        (["none/3"], "nor a queue none: `gpusched status`"),
        (["14"], "there is no job 14 in the queue"),
        (["tag=none"], "there is no job with tag=none in the queue"),
        (["tag=\udcff"], "there is no job with tag=\ufffd in the queue"),
        (["\udcff"], "there is no job '\ufffd'"),
        (["tag=fast", "state=failed"], "there is no job with tag=fast and state=failed"),
        (["state=fialed"], "there is no state 'fialed'\n  did you mean failed"),
    ],
)
def test_a_word_that_stands_for_no_job_is_refused(words: list[str], says: str, named: Sample9) -> None:
    with pytest.raises(GpuschedError) as caught:
        find_jobs(named.store, words)
    assert says in str(caught.value)
    hint = caught.value.hint
    with pytest.raises(GpuschedError) as caught:
        find_jobs(named.store, words, to_change=True)
    assert caught.value.hint == (f"{hint}; nothing was changed" if hint else "nothing was changed")


@pytest.mark.parametrize(
    ("word", "job_id", "other"),
    [("5-6", 11, "2 jobs (5..6)"), ("tag=slow", 12, "2 jobs (10,13)")],
)
def test_a_name_that_means_other_jobs_too_is_shown_as_the_name_and_changes_nothing(
    word: str, job_id: int, other: str, named: Sample9, capsys: Capture
) -> None:
    said: list[str] = []
    assert find_job(named.store, word, notify=said.append) == job_id
    assert said == [f"{word} is taken as the name of job {job_id}, though it stands for {other}, too"]
    assert front.run(["hold", word]) == 2
    assert f"{word} is the name of job {job_id}, and stands for {other}, too" in capsys.readouterr().err
    assert not job_table.ids(named.store, [JobState.HELD])


def test_a_name_alone_is_no_doubt_where_the_range_has_no_jobs(named: Sample9) -> None:
    add(named.store, {"50-60": ()})
    assert find_jobs(named.store, ["50-60"], to_change=True) == [14]


def test_one_job_is_wanted(named: Sample9) -> None:
    with pytest.raises(GpuschedError, match="3-4 names 2 jobs"):
        find_job(named.store, "3-4")


def test_a_job_that_was_cleaned_away_is_said_to_be(named: Sample9) -> None:
    for job_id in (5, 13):
        named.store.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    for word in ("5", "13"):
        with pytest.raises(GpuschedError, match=f"job {word} was cleaned away"):
            find_jobs(named.store, [word])
    said: list[str] = []
    assert find_jobs(named.store, ["4-6"], notify=said.append) == [4, 6]
    assert said == ["1 job of 4-6 cleaned away: the others are meant"]
    with pytest.raises(GpuschedError, match="there is no job 14"):
        find_jobs(named.store, ["14"])


# ---- which queue -----------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, QueueDir]]:
    """Make the queues of a directory here, of a directory elsewhere, and two standing ones."""
    (tmp_path / "here").mkdir()
    (tmp_path / "bare").mkdir()
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setattr(QueueDir, "ring", lambda self: None)
    monkeypatch.setenv("GPUSCHED_AUTOSTART", "false")
    paths = {
        "own": str(tmp_path / "here/gpusched-runs/own"),
        "far": str(tmp_path / "there/gpusched-runs/far"),
        "default": queue_dirs.standing_path("default"),
        "night": queue_dirs.standing_path("night"),
    }
    made = {name: queue_dirs.locate(path) for name, path in paths.items()}
    for name, queue in made.items():
        queue_dirs.prepare(queue)
        with Store(queue.database, create=True) as store:
            add(store, {f"{name}-1": (), f"{name}-2": ()})
        queue_dirs.remember(queue)
    monkeypatch.chdir(tmp_path / "here")
    yield made


def test_a_job_is_addressed_with_its_queue(made: dict[str, QueueDir], capsys: Capture) -> None:
    assert find_queue_of(["night/2"], to_change=True) == (made["night"], ("2",))
    assert find_queue_of(["night/1,2"], to_change=True) == (made["night"], ("1", "2"))
    assert find_queue_of(["night/1,own-1"], to_change=True) == (made["night"], ("1", "own-1"))
    assert find_queue_of([f"{made['far'].path}/2"], to_change=True) == (made["far"], ("2",))
    assert "night-2" in call(capsys, "explain", "night/2")
    assert call(capsys, "hold", "default/2") == "job 2: held\n"
    for words in (["night/1", "default/2"], ["night/1", "own/2"]):
        with pytest.raises(GpuschedError, match="these are jobs of several queues"):
            find_queue_of(words)
    with pytest.raises(GpuschedError, match="these are jobs of several queues"):
        find_queue_of(["night/1"], "own")


def test_a_name_with_a_slash_may_be_a_job_of_a_queue(made: dict[str, QueueDir], capsys: Capture) -> None:
    with Store(made["own"].database) as store:
        add(store, {"night/2": ()})
    assert front.run(["cancel", "night/2", "-q", "own"]) == 2
    assert "night/2 is the name of job 3, and stands for 2 of the queue night, too" in capsys.readouterr().err
    assert front.run(["explain", "night/2", "-q", "own"]) == 0
    out, err = capsys.readouterr()
    assert "job 3 (night/2)" in out and "taken as the name of job 3" in err


def test_the_default_queue_is_meant_where_a_directory_has_none(
    made: dict[str, QueueDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(QueueDir, "dispatcher", lambda self: 4711 if self.name == "default" else None)
        assert front.run(["hold", "1"]) == 2
        with Store(made["default"].database) as store:
            store.execute("UPDATE jobs SET state = 'succeeded', ended_at = 1")
        assert queues.find_queue(to_change=True) == made["own"]  # since the dispatcher of the default one is idle
        with Store(made["default"].database) as store:
            store.execute("UPDATE jobs SET state = 'queued', ended_at = NULL")
    says = capsys.readouterr().err
    assert "not clear which queue is meant\n  name one with -q: own, default (your own); of a job: own/JOB, de" in says
    assert call(capsys, "hold", "own-1") == "job 1: held\n"  # the default one has nobody who starts jobs
    assert "own-1" in call(capsys, "explain", "1")
    front.run(["explain", "1"])
    assert "queue own, the only one in this directory; `-q default` means your own" in capsys.readouterr().err
    queue_dirs.prepare(other := queue_dirs.locate(str(tmp_path / "here/gpusched-runs/other")))
    with Store(other.database, create=True) as store:
        add(store, {"other-1": ()})
    front.run(["explain", "1"])
    assert "queue other, the one run last in this directory; `-q default` means" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(QueueDir, "dispatcher", lambda self: 4711 if self.name == "own" else None)
        front.run(["explain", "1"])
        assert "queue own, the only one in this directory with a dispatcher; `-q default`" in capsys.readouterr().err
    for directory in (tmp_path / "bare", Path(queue_dirs.standing_path("x")).parents[3]):
        monkeypatch.chdir(directory)
        assert queues.find_queue(to_change=True) == made["default"]
    assert call(capsys, "hold", "1") == "job 1: held\n"
    assert capsys.readouterr().err == ""


def test_standing_queues_are_named_from_everywhere(
    made: dict[str, QueueDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory in ("here", "bare"):
        monkeypatch.chdir(tmp_path / directory)
        for name in ("default", "night"):
            assert queues.find_queue(name, to_change=True) == made[name]
            assert queues.queue_name(made[name]) == name
    beside = queue_dirs.locate("gpusched-runs/night")
    queue_dirs.prepare(beside)
    Store(beside.database, create=True).close()
    with pytest.raises(GpuschedError, match="it is not clear which queue is meant"):
        queues.find_queue("night", to_change=True)
    for queue in (beside, made["night"]):  # the names that are printed mean them again
        assert queues.find_queue(queues.queue_name(queue), to_change=True) == queue
