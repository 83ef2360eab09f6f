"""Jobs that are submitted by themselves: what is stored, what a list leaves alone, what is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.jobs.environment import variables
from gpusched.core.model import Attributes, Dependency, DependencyKind, JobRow, JobState
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, environment_table, job_table, startable_jobs
from gpusched.lists.submit import SubmitOptions, parse, parse_command, submit
from gpusched.operations.run.submit import Added, Wishes, add_jobs, find_standing_queue
from tests.support.sample import stand_still

SHELL = {b"PATH": b"/bin", b"WORD": b"here"}


@pytest.fixture(autouse=True)
def _box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_still(monkeypatch, tmp_path)


@pytest.fixture
def queue_dir() -> QueueDir:
    return find_standing_queue(None)


def options(cwd: str = "/", **settings: object) -> SubmitOptions:
    return SubmitOptions(Settings(**settings), cwd.encode())  # type: ignore[arg-type]


def add(queue_dir: QueueDir, text: str = "true", *, cwd: str = "/", **wishes: object) -> Added:
    jobs = parse_command(text, options(cwd))
    return add_jobs(queue_dir, jobs, options(cwd), Wishes(**wishes), SHELL)  # type: ignore[arg-type]


def rows(queue_dir: QueueDir) -> list[JobRow]:
    with Store(queue_dir.database) as store:
        return list(job_table.jobs(store))


def test_the_default_queue_is_this_users_on_this_host(queue_dir: QueueDir) -> None:
    assert queue_dir.name == "default"
    assert add(queue_dir).is_new_queue
    assert queue_dirs.list_queues() == [queue_dir]
    assert find_standing_queue("default") == queue_dir
    assert find_standing_queue("night").path == f"{os.path.dirname(queue_dir.path)}/night"


def test_every_submission_makes_new_jobs_that_have_its_directory_and_environment(queue_dir: QueueDir) -> None:
    assert [add(queue_dir, cwd="/usr").ids, add(queue_dir, cwd="/etc").ids, add(queue_dir).ids] == [(1,), (2,), (3,)]
    first, second, _ = rows(queue_dir)
    assert (first.cwd, second.cwd, first.origin) == (b"/usr", b"/etc", "submit")
    with Store(queue_dir.database) as store:
        assert store.scalar("SELECT count(*) FROM environments") == 1
        assert first.environment_id is not None
        assert variables(environment_table.read(store, first.environment_id)) == SHELL
        store.execute("UPDATE jobs SET environment_id = NULL")
        environment_table.remove_unused(store)
        assert environment_table.read(store, first.environment_id) == b""


def test_a_key_makes_one_job(queue_dir: QueueDir) -> None:
    first, again, other = add(queue_dir, once="a"), add(queue_dir, "false", once="a"), add(queue_dir, once="b")
    assert (first.ids, first.earlier, again.ids, again.earlier, other.ids) == ((1,), (), (1,), (1,), (2,))


def test_a_list_cancels_only_jobs_that_came_from_it(queue_dir: QueueDir) -> None:
    add(queue_dir, "echo a")
    with Store(queue_dir.database) as store:
        for text in (b"echo a\necho b\n", b"echo b\n"):
            submit(store, parse(text, options(), "list.txt").specs, options(), time.time())
    states = {row.id: (row.command, row.state.value, row.origin) for row in rows(queue_dir)}
    assert states == {
        1: (b"echo a", "queued", "submit"),
        2: (b"echo a", "cancelled", "list"),
        3: (b"echo b", "queued", "list"),
    }


def test_the_wishes_hold_for_what_a_line_does_not_state(queue_dir: QueueDir) -> None:
    jobs = parse(b"[gpus=2 env.A=own] train\neval\n", options(), "list.txt")
    wished = Attributes(gpus=0, prio=3, env=((b"A", b"1"), (b"B", b"2")))
    add_jobs(queue_dir, jobs, options(), Wishes(wished), SHELL)
    train, evaluate = rows(queue_dir)
    assert (train.gpus, train.prio, dict(train.env)) == (2, 3, {b"A": b"own", b"B": b"2"})
    assert (evaluate.gpus, evaluate.prio, dict(evaluate.env)) == (0, 3, {b"A": b"1", b"B": b"2"})


def test_a_job_waits_for_jobs_of_the_queue(queue_dir: QueueDir) -> None:
    add(queue_dir, attributes=Attributes(name="prep"))
    after = Attributes(after=(Dependency(DependencyKind.SUCCEEDED, ("prep", "1")),))
    add(queue_dir, attributes=after)
    assert [row.blocked for row in rows(queue_dir)] == [False, True]
    with pytest.raises(GpuschedError, match="'nobody'"):
        add(queue_dir, attributes=Attributes(after=(Dependency(DependencyKind.SUCCEEDED, ("nobody",)),)))
    assert len(rows(queue_dir)) == 2


def test_held_jobs_and_jobs_that_begin_later_do_not_start(queue_dir: QueueDir) -> None:
    now = time.time()
    add(queue_dir, hold=True)
    add(queue_dir, begin_at=now + 60)
    add(queue_dir, begin_at=now - 60)
    assert [row.state for row in rows(queue_dir)] == [JobState.HELD, JobState.QUEUED, JobState.QUEUED]
    with Store(queue_dir.database) as store:
        assert [row.id for row in startable_jobs.first(store, now, 9)] == [3]
        assert startable_jobs.next_not_before(store, now) == pytest.approx(now + 60)
        assert [row.id for row in startable_jobs.first(store, now + 61, 9)] == [2, 3]


@pytest.mark.parametrize(
    ("wishes", "word"), [({"attributes": Attributes(name="a")}, "--name"), ({"once": "k"}, "--once")]
)
def test_what_is_for_one_job_is_refused_for_several(queue_dir: QueueDir, wishes: dict[str, object], word: str) -> None:
    jobs = parse(b"a\nb\n", options(), "list.txt")
    with pytest.raises(GpuschedError, match=f"{word}: is for a single job, and these are 2"):
        add_jobs(queue_dir, jobs, options(), Wishes(**wishes), SHELL)  # type: ignore[arg-type]
    assert not queue_dir.exists()
