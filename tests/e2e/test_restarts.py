"""A dispatcher that meets an exception nobody foresaw: the next one in the same process goes on with what runs."""

from __future__ import annotations

import signal

from tests.support.box import GPUSCHED, UNTIL_GO, Box, Running, wait_for

# gpusched whose ticks fail as often as there are lines in the file `faults`
FAULTY = [
    GPUSCHED[0],
    "-c",
    "import os\n"
    "from gpusched.dispatcher import actor, restarts\n"
    "restarts.PAUSE_FIRST_S = float(os.environ.get('PAUSE', '1'))\n"
    "act = actor.Actor.act\n"
    "def faulty(*args):\n"
    "    left = open('faults').readlines() if os.path.exists('faults') else []\n"
    "    if left:\n"
    "        open('faults', 'w').writelines(left[1:])\n"
    "        raise ValueError('nobody foresaw this')\n"
    "    return act(*args)\n"
    "actor.Actor.act = faulty\n"
    "from gpusched.cli.main import main\n"
    "main()",
]


def start(box: Box, *lines: str, pause: str = "1") -> Running:
    """A run of these lines whose first jobs are running."""
    running = box.spawn("run", box.write(*lines), program=FAULTY, environment={"PAUSE": pause})
    wait_for(lambda: box.running() > 0)
    return running


def fail(box: Box, times: int) -> None:
    (box.work / "new").write_text("once more\n" * times)
    (box.work / "new").rename(box.work / "faults")


def test_a_failed_tick_costs_a_pause_and_no_job(box: Box) -> None:
    running = start(box, "sleep 2; exit 3", "sleep 2", "true")
    fail(box, 1)
    ended = running.wait()
    assert ended.code == 1, ended.text
    assert [row.outcome for row in box.jobs()] == ["exited 3", "exited 0", "exited 0"]
    assert [len(row.attempts) for row in box.jobs()] == [1, 1, 1]
    assert ended.out.count("unexpected ValueError: nobody foresaw this") == 1
    assert "the dispatcher begins anew in 1 s; running jobs go on" in ended.out
    assert "Traceback" not in ended.text
    log = (box.queue() / "dispatcher.log").read_text()
    assert log.count("Traceback") == 1 and "in faulty" in log
    assert box.claimed() == set()


def test_a_dispatcher_that_fails_again_and_again_leaves_with_70(box: Box) -> None:
    running = start(box, "sleep 3; exit 3", "true #2", "true #3", pause="0.02")
    fail(box, 99)
    ended = running.wait()
    assert ended.code == 70, ended.text
    assert "5 such failures within 10 minutes: leaving" in ended.err
    assert "Traceback" not in ended.text
    (box.work / "faults").unlink()
    assert box.gpusched("run", "list.txt").code == 1  # it takes over what still runs
    assert [row.outcome for row in box.jobs()] == ["exited 3", "exited 0", "exited 0"]
    assert [len(row.attempts) for row in box.jobs()] == [1, 1, 1]


def test_signals_are_heard_between_two_dispatchers(box: Box) -> None:
    running = start(box, "sleep 60", "sleep 60 #2", "true", pause="30")
    wait_for(lambda: box.running() == 2)
    fail(box, 1)
    running.wait_until_said("begins anew")
    running.signal(signal.SIGHUP)
    running.signal(signal.SIGTERM)
    assert running.wait(20).code == 143
    assert box.states() == ["queued"] * 3
    assert [row.outcome for row in box.jobs()] == ["interrupted", "interrupted", ""]


def test_a_wish_to_leave_outlives_the_dispatcher_that_heard_it(box: Box) -> None:
    running = start(box, UNTIL_GO, f"{UNTIL_GO} #2", "true")
    wait_for(lambda: box.running() == 2)
    running.signal(signal.SIGINT)
    running.wait_until_said("Ctrl-C: nothing new starts")
    fail(box, 1)
    running.wait_until_said("begins anew")
    assert box.gpusched("stop", "-q", "list").code == 0  # a later wish is heard too
    (box.work / "go").touch()
    assert running.wait().code == 130
    assert box.states() == ["succeeded", "succeeded", "queued"]
