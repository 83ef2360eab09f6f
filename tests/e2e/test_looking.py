"""`wait`, `logs -f` and `clean` beside a dispatcher that works, and behind one that was killed."""

from __future__ import annotations

import signal

from tests.support.box import SIMJOB, UNTIL_GO, Box, wait_for


def test_a_wait_and_a_followed_log_end_with_the_job(box: Box) -> None:
    run = box.start("run", box.write("echo begins; sleep 3; exit 7", "sleep 300"))
    wait_for(lambda: box.states() != [])
    followed = box.start("logs", "1", "-f", "-q", "list")
    first, both = box.start("wait", "1", "-q", "list"), box.start("wait", "1", "2", "--any", "-q", "list")
    given_up = box.start("wait", "-q", "list")
    ended = followed.wait()
    assert (ended.code, ended.out) == (7, "begins\n")
    assert (first.wait().code, both.wait().code) == (1, 1)
    given_up.signal(signal.SIGINT)
    assert given_up.wait().code == 130
    assert box.states() == ["failed", "running"]  # nothing was cancelled
    killed = box.start("logs", "2", "-f", "-q", "list")
    box.gpusched("cancel", "2")
    assert killed.wait().code == 128 + signal.SIGTERM
    assert run.wait().code == box.gpusched("wait", "-q", "list").code == 1


def test_a_log_is_followed_without_a_dispatcher_too(box: Box) -> None:
    run = box.start("run", box.write("echo begins; sleep 4; exit 7"))
    wait_for(lambda: box.running() == 1)
    run.signal(signal.SIGKILL)
    run.wait()
    ended = box.gpusched("logs", "1", "-f")
    assert (ended.code, ended.out) == (7, "begins\n")  # by its record, that nobody has booked
    said = box.gpusched("wait", "1", "--timeout", "0")
    assert said.code == 124 and "no dispatcher works on this queue; to go on: gpusched run list.txt" in said.err


def test_a_clean_beside_a_dispatcher_leaves_its_work_alone(box: Box) -> None:
    run = box.start("run", box.write("exit 3", *(f"sleep 0.{n % 3}" for n in range(12)), "sleep 6"))
    wait_for(lambda: box.states().count("succeeded") > 3)
    assert box.gpusched("clean", "--yes").code == 0
    assert run.wait().code == 0  # the failed job is no longer there
    assert set(box.states()) == {"succeeded"}
    assert box.run("exit 3", *(f"sleep 0.{n % 3}" for n in range(12)), "sleep 6").code == 0
    assert "of 0 jobs" not in box.gpusched("status", "list").out
    assert all(row.attempts for row in box.jobs())  # what was cleaned away has not run again


def test_a_gpu_of_another_queue_of_mine_is_no_colleagues(box: Box) -> None:
    """Also while this queue has all the GPUs that it may have, and waits for none."""
    other = box.start("run", box.write(f"{SIMJOB} --mem 6000 --hold 30", name="other.txt"), "--gpu-list", "1")
    wait_for(lambda: box.running("other") == 1)
    run = box.start("run", box.write("sleep 30"), "--gpu-list", "0,1", "--max-gpus", "1")
    wait_for(lambda: box.running("list") == 1)
    wait_for(lambda: "claimed by your gpusched for " in " ".join(box.gpusched("status", "list").out.split()))
    for each in (run, other):
        each.signal(signal.SIGTERM)
        each.wait()


def test_a_report_that_a_later_start_asks_for_is_written_at_the_end(box: Box) -> None:
    run = box.start("run", box.write(UNTIL_GO))
    wait_for(lambda: box.running() == 1)
    assert box.gpusched("run", "list.txt", "--report").code == 75
    (box.work / "go").touch()
    ended = run.wait()
    assert ended.code == 0 and (box.queue() / "report.html").exists() and "report " in ended.out, ended.text
