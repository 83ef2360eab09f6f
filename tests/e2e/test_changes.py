"""A queue that is changed while a real dispatcher works on it, by the verbs as people type them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store
from tests.support.box import UNTIL_GO, Box, Running, wait_for

pytestmark = pytest.mark.slow
SLEEP = "exec sleep 3600"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    # polls so seldom that what is seen soon was brought about by the ring of a verb
    with Box(tmp_path, "3", {"GPUSCHED_POLL_INTERVAL": "30"}) as box:
        yield box


def start(box: Box, *lines: str) -> Running:
    return box.start("run", box.write(*lines))


def wait_for_states(box: Box, *states: str) -> None:
    wait_for(lambda: box.states() == list(states), str(states))


def test_a_paused_queue_starts_nothing_until_it_is_resumed(box: Box) -> None:
    queue = start(box, UNTIL_GO, *[SLEEP] * 2, "echo last")
    wait_for_states(box, "running", "running", "running", "queued")
    box.gpusched("pause")
    queue.wait_until_said("the queue is paused; to go on: gpusched resume -q")
    assert "why   the queue is paused" in box.gpusched("explain", "4").out
    (box.work / "go").touch()
    wait_for_states(box, "succeeded", "running", "running", "queued")
    assert json.loads(box.gpusched("status", "--json").out)["queues"][0]["waits_for"].startswith("the queue is paused")
    queue.signal(signal.SIGQUIT)
    queue.wait()
    queue = box.start("run", "list.txt")  # a new start does not lift it
    queue.wait_until_said("the queue is paused")
    assert box.states()[3] == "queued"
    assert box.gpusched("resume").out == "the queue gpusched-runs/list goes on\n"
    wait_for_states(box, "succeeded", "running", "running", "succeeded")


def test_a_waiting_job_runs_as_it_was_edited(box: Box) -> None:
    start(box, *[SLEEP] * 3, "echo 4 >> ran", "echo 5 >> ran", "echo 6 >> ran")
    wait_for_states(box, *["running"] * 3, *["queued"] * 3)
    box.gpusched("edit", "4", "--command", "echo other >> ran")
    assert box.gpusched("prio", "6", "1").out.startswith("job 6: edited: prio=1\n")
    assert box.gpusched("edit", "5", "--gpus", "0").code == 0
    wait_for(lambda: box.states()[4] == "succeeded")  # at once, for it needs no GPU now
    box.gpusched("cancel", "1")
    wait_for(lambda: box.states()[3:] == ["succeeded"] * 3)
    assert box.read("ran").split() == ["5", "6", "other"]


def test_a_job_that_is_edited_while_it_is_about_to_start_never_runs_as_it_was(box: Box) -> None:
    queue = box.start("run", box.write("echo old >> ran"), "--follow", GPUSCHED_MAX_CHECKS="1000000")
    wait_for_states(box, "queued")
    box.gpusched("edit", "1", "--command", "echo new >> ran", "--gpus", "0")
    wait_for(lambda: box.read("ran"))
    assert box.read("ran") == "new\n"
    queue.signal(signal.SIGTERM)


def test_settings_count_at_once_and_surplus_gpus_are_handed_back(box: Box) -> None:
    queue = start(box, *[f"{SLEEP} # {n}" for n in range(3)])
    wait_for_states(box, *["running"] * 3)
    began = {row.job.id: row.last.started_at for row in box.jobs()}
    youngest = max(began, key=lambda job_id: (began[job_id], job_id))
    assert box.gpusched("set", "max-gpus=2").out == "max-gpus=2\n"
    queue.wait_until_said("gpusched set gave other options: max_gpus 4 -> 2")
    assert box.states() == ["running"] * 3  # what runs goes on
    handed = box.gpusched("set", "--now").out
    assert "is being stopped, and queued again: no try is spent" in handed
    wait_for(lambda: sorted(box.states()) == ["queued", "running", "running"])
    (row,) = (row for row in box.jobs() if row.state == "queued")
    assert (row.outcome, row.job.tries, row.job.losses) == ("interrupted", 0, 0)
    assert len(set(began.values())) < 3 or row.job.id == youngest
    wait_for(lambda: len(box.claimed()) == 2)
    box.gpusched("set", "max-gpus=")
    wait_for_states(box, *["running"] * 3)
    queue.signal(signal.SIGTERM)
    queue.wait()
    assert box.gpusched("set", "max-gpus=1").code == 0
    queue = box.start("run", "list.txt")
    wait_for(lambda: sorted(box.states()) == ["queued", "queued", "running"])
    time.sleep(0.3)
    assert box.running() == 1
    assert "max-gpus=1" in box.gpusched("set").out


def test_a_standing_queue_gets_a_dispatcher_by_the_verbs_that_let_jobs_run(box: Box, tmp_path: Path) -> None:
    config = tmp_path / "home/.config/gpusched/config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(f"simulate: 1\nmax_checks: 1\npoll_interval: 0.1\nclaims_dir: {box.claims}\nidle_exit: 0.1\n")
    assert box.gpusched("submit", "--hold", "--no-start", "echo hi").out == "1\n"
    (path,) = (tmp_path / "home/.local/state/gpusched/on").glob("*/default")
    queue = QueueDir(str(path), str(path))

    def has_succeeded(job_id: int) -> bool:
        document = json.loads(box.gpusched("status", "default", "--json", "-v").out)
        jobs = {job["id"]: job["state"] for job in document["queues"][0]["jobs"]}
        return bool(jobs[job_id] == "succeeded" and queue.dispatcher() is None)

    started = "a dispatcher was started in the background\n"
    assert box.gpusched("release", "1").out == f"job 1: released\n{started}"
    wait_for(lambda: has_succeeded(1))
    assert box.gpusched("requeue", "1", "--again").out == f"job 1: queued again\n{started}"
    wait_for(lambda: has_succeeded(1))
    assert box.gpusched("submit", "--no-start", "echo hi").out == "2\n"
    assert box.gpusched("prio", "default/2", "1").out == f"job 2: edited: prio=1\n{started}"
    wait_for(lambda: has_succeeded(2))
    assert box.gpusched("submit", "--no-start", "echo hi").out == "3\n"
    assert box.gpusched("pause").code == 0
    assert "the queue is paused" in box.gpusched("requeue", "1", "--again").out
    assert box.gpusched("resume").out.endswith(started)
    wait_for(lambda: has_succeeded(3) and has_succeeded(1))


LONG_CHANGES = [
    ("hold --all", "state = 'held'", ""),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ("prio state=queued 7", "prio = 7", ""),
            ("edit state=queued --mem 3G", "mem_bytes > 0", ""),
            ("cancel --all", "state = 'cancelled'", ""),
            ("release --all", "state = 'queued'", "hold --all"),
            ("requeue state=cancelled", "state = 'queued'", "cancel --all"),
        )
    ),
]


@pytest.mark.parametrize(("words", "done", "before"), LONG_CHANGES)
def test_a_verb_that_is_killed_loses_nothing(words: str, done: str, before: str, box: Box) -> None:
    """It changes jobs in several transactions; between two of them it is killed."""
    jobs = 12_000
    box.write(*[f"echo {n}" for n in range(jobs)])
    assert box.gpusched("submit", "--no-start", "list.txt").code == 0
    assert not before or box.gpusched(*before.split()).code == 0
    (database,) = (box.home / ".local/state/gpusched/on").glob("*/default/queue.db")
    with Store(str(database), read_only=True) as store:

        def count(condition: str) -> int:
            return int(store.scalar(f"SELECT count(*) FROM jobs WHERE {condition}"))

        verb = box.start(*words.split(), GPUSCHED_AUTOSTART="false")
        wait_for(lambda: count(done))
        verb.signal(signal.SIGKILL)
        assert verb.wait().code == -signal.SIGKILL
        assert 0 < count(done) < jobs == count("TRUE") == store.scalar("SELECT sum(n) FROM counts")
        assert store.scalar("PRAGMA integrity_check") == "ok"
        assert box.gpusched(*words.split(), "--json", GPUSCHED_AUTOSTART="false").code == 0
        assert count(done) == jobs
