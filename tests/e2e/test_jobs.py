"""What a job says of itself, in real runs: dependencies, priorities, limits, budgets, shared GPUs, snapshots."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.box import SIMJOB, Box, Row, wait_for
from tests.support.paths import TESTS

pytestmark = pytest.mark.slow

MIB = 1 << 20
FILES = TESTS / "cases" / "files"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, gpus="2") as box:
        yield box


def ran(box: Box) -> list[str]:
    """The words that the jobs have appended to the file `ran`."""
    return box.read("ran").split()


def by_command(box: Box) -> dict[str, Row]:
    return {row.command: row for row in box.jobs()}


def states(box: Box) -> dict[int, tuple[str, str]]:
    """State and cause by id."""
    return {row.job.id: (row.state, row.job.cause) for row in box.jobs()}


def until(path: str) -> str:
    """A command that waits for a file."""
    return f"while [ ! -e {path} ]; do sleep 0.05; done"


def cost_nothing(box: Box) -> None:
    """Whatever was refused has made and taken nothing."""
    assert not (box.work / "gpusched-runs").exists()
    assert not box.claims.exists()


# ---- names -----------------------------------------------------------------------------------------


def test_a_job_is_called_by_its_name(box: Box) -> None:
    ended = box.run("[name=lr/one] echo 1", "[name=lr/two tag=lr] echo 2; exit 3", options="--max-gpus 1")
    assert " job 1 on GPU 0: lr/one\n" in ended.out and " job 1 (lr/one) succeeded: exit 0" in ended.out
    assert " job 2 (lr/two) failed: exit 3" in ended.out
    assert "  job 2 (lr/two), line 2: exit 3\n      echo 2; exit 3\n" in ended.out
    assert [row.last.log for row in box.jobs()] == ["logs/0001.1-lr_one.log", "logs/0002.1-lr_two.log"]
    metrics = json.loads((box.queue() / "gpu_metrics.json").read_text())
    assert {(job["name"], *job["tags"]) for job in metrics["jobs"]} == {("lr/one",), ("lr/two", "lr")}


# ---- dependencies ----------------------------------------------------------------------------------


def test_a_job_waits_for_names_tags_and_ids(box: Box) -> None:
    ended = box.run(
        "[after=prep] echo by-name >> ran",
        "[name=prep] sleep 0.4; echo prep >> ran",
        "[after=2] echo by-id >> ran",
        "[tag=t after=t] echo by-tag >> ran",
        "#gpusched: tag=t",
        "sleep 0.3; echo t1 >> ran",
        "sleep 0.5; echo t2 >> ran",
        "[gpus=0 tag= after-any=prep,t] echo any >> ran",
    )
    assert ended.code == 0, ended.text
    order = ran(box)
    assert len(order) == 7
    assert order.index("prep") < min(order.index("by-name"), order.index("by-id"))
    assert max(order.index("t1"), order.index("t2")) < order.index("by-tag")
    assert order.index("any") > 0


def test_what_failed_stops_those_that_need_it_and_frees_them_when_it_is_queued_again(box: Box) -> None:
    ended = box.run(
        "[name=a] [ -e go ]",
        "[name=b after=a] echo b >> ran",
        "[after=b] echo c >> ran",
        "[after-failed=a] echo cleanup >> ran",
        "[after-ended=a] echo ended >> ran",
        "[after-any=a,z] echo any >> ran",
        "[name=z] echo z >> ran",
        "[after-failed=z] echo spare >> ran",
    )
    assert ended.code == 1
    assert sorted(ran(box)) == ["any", "cleanup", "ended", "z"]
    assert states(box) | {1: None} == {
        1: None,
        2: ("cancelled", "dependency"),
        3: ("cancelled", "dependency"),
        **dict.fromkeys((4, 5, 6, 7), ("succeeded", "")),
        8: ("cancelled", "not_needed"),
    }
    assert "job 2 (b) is cancelled: job 1 (a), which it waits for, " in ended.out
    assert "job 8 is not needed" in ended.out
    assert "it is cancelled: it waits after job 1 (a, " in box.gpusched("explain", "2").out
    assert "it was not needed" in box.gpusched("explain", "8").out
    refused = box.gpusched("requeue", "3")
    assert (refused.code, states(box)[3]) == (1, ("cancelled", "dependency"))
    assert "job 3: stays cancelled: it waits after job 2 (b, " in refused.out
    (box.work / "go").touch()
    assert box.gpusched("requeue", "1").code == 0
    assert [states(box)[n] for n in (1, 2, 3)] == [("queued", "")] * 3
    assert box.gpusched("run", "list.txt").code == 0
    assert ran(box)[-2:] == ["b", "c"]
    assert box.metrics()["total_jobs"] == 7  # what was not needed counts nowhere


def test_what_waits_for_a_repair_that_was_not_needed_is_not_needed(box: Box) -> None:
    ended = box.run("[name=train] true", "[name=fix after-failed=train] exit 3", "[after=fix] exit 4")
    assert ended.code == 0, ended.text
    assert [states(box)[n] for n in (2, 3)] == [("cancelled", "not_needed")] * 2
    assert "job 3 is not needed: the failure that it was for did not come" in ended.out
    assert box.metrics()["total_jobs"] == 1


def test_a_job_that_could_never_start_counts_as_failed(box: Box) -> None:
    ended = box.run("[name=prep] false", "[name=train after=prep] true", "[after-failed=train] echo mail >> ran")
    assert (ended.code, ran(box)) == (1, ["mail"])


def test_a_dependant_may_be_held_instead(box: Box) -> None:
    lines = ["[name=a] [ -e go ]", "[name=b after=a] echo b >> ran", "[after=b] echo c >> ran"]
    ended = box.run(*lines, options="--on-dep-fail hold")
    assert ended.code == 1  # it does not wait for what only a person can change
    assert [states(box)[n] for n in (2, 3)] == [("held", "dependency"), ("queued", "")]
    assert "waits after job 2 (b, held)" in box.gpusched("explain", "3").out
    refused = box.gpusched("release", "2")
    assert (refused.code, states(box)[2]) == (1, ("held", "dependency"))
    assert "stays held: it waits after job 1 (a, " in refused.out
    (box.work / "go").touch()
    assert box.run(*lines, options="--on-dep-fail hold --retry-failed").code == 0
    assert ran(box) == ["b", "c"]


def test_what_waits_for_a_cancelled_job_goes_with_it(box: Box) -> None:
    for number in (0, 1):
        box.set_gpu(number, foreign=9000)
    lines = ["[name=a] echo a >> ran", "[name=b after=a] echo b >> ran", "[after=b] echo c >> ran"]
    running = box.start("run", box.write(*lines, "[gpus=0] " + until("go")))
    wait_for(lambda: box.running() == 1)
    told = box.gpusched("cancel", "1", "3").out
    assert told == "jobs 1, 3: cancelled\njob 2: cancelled too, for what it waits for\n"
    for number in (0, 1):
        box.set_gpu(number, foreign=0)
    assert box.gpusched("requeue", "1").code == 0
    wait_for(lambda: ran(box) == ["a", "b"])
    (box.work / "go").touch()
    assert running.wait().code == 1
    assert states(box)[3] == ("cancelled", "")  # by a person, so it stays


def test_dependants_start_at_once(box: Box) -> None:
    """Not at the next poll: that of a GPU job, and of a CPU job that no device wakes."""
    lines = ["[name=a] date +%s%N >> ran", "[name=b after=a gpus=0] date +%s%N >> ran", "[after=b] date +%s%N >> ran"]
    assert box.run(*lines, options="--poll-interval 20").code == 0
    moments = [int(word) for word in ran(box)]
    assert moments[2] - moments[0] < 10e9


@pytest.mark.parametrize(
    ("lines", "place", "says"),
    [
        (
            ["[after=prpe] echo 1", "[name=prep] echo 2"],
            "1",
            "no job has the name or the tag prpe; did you mean prep?",
        ),
        (["[name=a after=b] x", "[name=b after=c] y", "[name=c after=a] z"], "1", "these jobs wait for each other"),
        (["echo 1", "[name=a after-ended=a] x"], "2", "these jobs wait for each other: a (line 2) -> a (line 2)"),
    ],
)
def test_what_waits_for_nothing_or_in_a_circle_is_refused_before_anything_runs(
    box: Box, lines: list[str], place: str, says: str
) -> None:
    ended = box.run(*lines)
    assert ended.code == 2
    assert f"list.txt:{place}: error: {says}" in ended.err
    cost_nothing(box)
    assert says in box.gpusched("check", "list.txt").out


def test_an_edit_that_waits_for_nothing_is_refused_once_and_a_better_one_taken(box: Box) -> None:
    lines = [until("go"), "[name=a] echo a >> ran"]
    running = box.start("run", box.write(*lines))
    wait_for(lambda: ran(box) == ["a"])
    for n, line in enumerate(
        ("[after=nobody] echo c", "[name=b after=a2] x\n[name=a2 after=b] y", "[gpus=3] echo big"), 1
    ):
        box.write(*lines, line)
        wait_for(lambda n=n: running.said().count("not taken") == n)  # type: ignore[misc]
    time.sleep(0.3)
    assert running.said().count("not taken") == 3
    assert len(box.jobs()) == 2
    box.write(*lines, "[after=a] echo c >> ran; touch go")
    assert running.wait().code == 0
    assert ran(box) == ["a", "c"]


def test_names_and_tags_are_those_of_the_list_as_it_is(box: Box) -> None:
    assert box.run("[name=a] echo one >> ran", "[tag=t] false", "[after=t] echo report >> ran").code == 1
    assert ran(box) == ["one"]
    ended = box.run("[name=b] echo one >> ran", "[after=t] echo report >> ran", "[tag=t after=b] echo two >> ran")
    assert ended.code == 0  # what failed before has left the list
    assert ran(box) == ["one", "two", "report"]


def test_a_line_of_a_stream_that_waits_for_nothing_is_left_out_alone(box: Box) -> None:
    read, write = os.pipe()
    running = box.spawn("run", "-", "--log-dir", "q", stdin=read)
    os.close(read)
    os.write(write, b"[name=a] echo one >> ran\n[after=nobody] echo two >> ran\n[after=a] echo three >> ran\n")
    wait_for(lambda: len(ran(box)) == 2)
    os.write(write, b"[gpus=7] echo big >> ran\n[after=1] echo four >> ran\n")
    os.close(write)
    ended = running.wait()
    assert (ended.code, ran(box)) == (1, ["one", "three", "four"])
    assert "line 2: there is no job or tag 'nobody'" in ended.text
    assert "line 4: wants 7 GPUs" in ended.text
    assert ended.text.count("left out") == 2


# ---- order and limits ------------------------------------------------------------------------------


def test_priorities_before_the_order_of_the_file(box: Box) -> None:
    lines = [f"[prio={prio}] echo {n} >> ran" for n, prio in enumerate((0, 5, -3, 10, 5))]
    assert box.run(*lines, options="--max-gpus 1").code == 0
    assert ran(box) == ["3", "1", "4", "0", "2"]


def test_cpu_jobs_beside_gpu_jobs(box: Box) -> None:
    lines = [f'[gpus=0] echo "<$CUDA_VISIBLE_DEVICES>" >> ran; {until("go")} #{n}' for n in range(4)]
    running = box.start("run", box.write(*lines, "[gpus=2] touch go"), "--cpu-jobs", "3")
    wait_for(lambda: len(ran(box)) >= 3)
    assert box.states()[:4].count("running") <= 3
    assert running.wait().code == 0
    assert ran(box) == ["<>"] * 4
    assert [row.last.devices for row in box.jobs()[:4]] == [()] * 4


def test_directory_and_variables_reach_the_job_and_make_it_another_one(box: Box) -> None:
    (box.work / "sub dir").mkdir()
    show = 'echo "$PWD <$X>" >> ../ran'
    lines = [f"[cwd='sub dir' env.X='a b'] {show}", f"[cwd='sub dir' env.X=c] {show}", f"[cwd=home] {show}", show]
    (box.work / "home").mkdir()
    assert box.run(*lines).code == 0
    sub = box.work / "sub dir"
    assert sorted(box.read("ran").splitlines()) == sorted([f"{sub} <a b>", f"{sub} <c>", f"{box.work / 'home'} <>"])
    assert (box.root / "ran").read_text() == f"{box.work} <>\n"
    assert box.run(lines[1], lines[0].replace("a b", "new"), "[name=z retries=1] " + show).code == 0
    assert [len(row.attempts) for row in box.jobs()] == [1] * 5  # but for the new value, all had run


def test_a_jobs_own_time_and_retries(box: Box) -> None:
    ended = box.run("[time=0.3] sleep 60", "[retries=1] echo x >> ran; exit 4", "exit 5", options="--time-limit 30")
    assert ended.code == 1
    assert [(row.outcome, len(row.attempts)) for row in box.jobs()] == [
        ("timed_out", 1),
        ("exited 4", 2),
        ("exited 5", 1),
    ]


def test_a_model_that_is_asked_for(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2xT4+1xA100") as box:
        ended = box.run("[gpu-model=a100] true", *[f"true {n}" for n in range(3)], "[gpu-model=T4 gpus=2] true 9")
        assert ended.code == 0, ended.text
        assert box.jobs()[0].indices == [2]
        assert box.jobs()[4].indices == [0, 1]
        refused = box.run("[gpu-model=H100] true", "[gpu-model=A100 gpus=2] true")
        assert refused.code == 2
        assert "line 1: wants a GPU named H100, and there is none here" in refused.err
        assert "line 2: wants 2 GPUs named A100, and 1 is allowed here" in refused.err


def test_a_tag_has_its_own_limit(box: Box) -> None:
    lines = [f"[tag=t] echo t >> ran; {until(f'go{n}')}" for n in range(2)] + ["echo free >> ran; touch go0"]
    running = box.start("run", box.write(*lines), "--tag-max-gpus", "t=1")
    wait_for(lambda: len(ran(box)) == 3)
    assert sorted(ran(box)[:2]) == ["free", "t"]  # the second GPU was free, and not for this tag
    (box.work / "go1").touch()
    assert running.wait().code == 0


def test_after_so_many_failures_nothing_more_starts(box: Box) -> None:
    ended = box.run(*[f"exit {n}" for n in range(1, 9)], options="--max-fails 2 --max-gpus 1")
    assert ended.code == 1
    assert "2 jobs failed (--max-fails 2)" in ended.out
    assert box.states() == ["failed"] * 2 + ["queued"] * 6


def test_a_program_that_fails_at_once_is_held_until_it_is_released(box: Box) -> None:
    lines = [f"python3 trian.py --seed {n}" for n in range(1, 10)] + ["python3 -c pass"]
    ended = box.run(*lines, options="--max-gpus 1")
    assert ended.code == 1
    assert "3 jobs of python3 trian.py in a row failed within a minute of their start" in ended.out
    assert "can't open file" in ended.out
    assert "6 more jobs held; `gpusched release 4-9 -q list` lets them go" in ended.out
    assert box.states() == ["failed"] * 3 + ["held"] * 6 + ["succeeded"]
    assert "it is held: jobs of its program failed at once" in box.gpusched("explain", "4").out
    assert "jobs of this program failed at once by the same error (`gpusched release JOB" in box.gpusched("status").out
    assert box.gpusched("release", "4-9").code == 0
    assert box.gpusched("run", "list.txt", "--max-gpus", "1").code == 1
    assert box.states() == ["failed"] * 6 + ["held"] * 3 + ["succeeded"]  # three more, and they are held again


def test_jobs_that_say_why_they_fail_in_words_of_their_own_are_held_too(box: Box) -> None:
    (box.work / "t.py").write_text("import sys\nprint('epoch 1')\nsys.exit('data/shard.bin missing')\n")
    ended = box.run(*[f"python3 t.py --seed {n}" for n in range(1, 7)], options="--max-gpus 1")
    why = "(exit 1, its log ends with: data/shard.bin missing)"
    assert f"in a row failed within a minute of their start {why}: 3 more jobs held" in ended.out
    assert "3 jobs: exit 1, its log ends with: data/shard.bin missing (jobs 1-3)" in box.gpusched("status").out


def test_jobs_that_fail_without_a_word_are_all_tried(box: Box) -> None:
    box.run(*["exit 9"] * 6, options="--max-gpus 1")
    assert box.states() == ["failed"] * 6


def test_hold_and_release_while_it_runs(box: Box) -> None:
    running = box.start(
        "run", box.write(until("go"), "echo two >> ran", "[after=2] echo three >> ran"), "--max-gpus", "1"
    )
    wait_for(lambda: box.running() == 1)
    assert box.gpusched("hold", "2").code == 0
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 1  # held is not done
    assert states(box) == {1: ("succeeded", ""), 2: ("held", ""), 3: ("queued", "")}
    assert "gpusched release" in ended.out
    assert box.gpusched("release", "2").code == 0
    assert box.gpusched("run", "list.txt").code == 0
    assert ran(box) == ["two", "three"]


def test_a_job_without_a_process_on_its_gpu_is_told_of_and_stopped_if_asked(box: Box) -> None:
    busy = f"{SIMJOB} --mem 1000 --hold 1.5"
    ended = box.run("sleep 3600", busy, options="--idle-timeout 0.8 --idle-action stop")
    assert ended.code == 1
    assert "job 1 has shown no process on its GPUs for 0.8 s (--idle-timeout): stopping it" in ended.out
    assert "job 2 has" not in ended.out
    assert [row.outcome for row in box.jobs()] == ["timed_out", "exited 0"]
    story = box.gpusched("explain", "1").out
    assert "stopped, no process on its GPUs (--idle-timeout)" in story and "--time-limit" not in story
    ended = box.run("sleep 1.2", "[gpus=0] sleep 1.3", options="--idle-timeout 0.5")
    assert ended.out.count("for 0.5 s (--idle-timeout): see its log") == 1
    assert [row.state for row in box.jobs()[-2:]] == ["succeeded"] * 2


def test_how_long_a_job_was_idle_counts_from_the_take_over(box: Box) -> None:
    running = box.start("run", box.write("sleep 5"), "--idle-timeout", "3", "--idle-action", "stop")
    wait_for(lambda: box.running() == 1)
    time.sleep(1)
    running.signal(signal.SIGKILL)
    running.wait()
    time.sleep(2.2)
    ended = box.gpusched("run", "list.txt", "--idle-timeout", "3", "--idle-action", "stop")
    assert (ended.code, box.states()) == (0, ["succeeded"]), ended.text


# ---- several jobs on one GPU -----------------------------------------------------------------------


def test_jobs_that_state_their_memory_share_a_gpu(box: Box) -> None:
    tell = 'echo "$GPUSCHED_JOB_ID $CUDA_VISIBLE_DEVICES" >> ran'
    ended = box.run(
        f"[mem=30G] {tell}; {SIMJOB} --mem 29000 --hold 0.8",
        f"[mem=40G] {tell}; {SIMJOB} --mem 39000 --hold 0.8",
        f"{tell}; {SIMJOB} --mem 1000 --hold 0.8",
    )
    assert ended.code == 0, ended.text
    assert sorted(box.read("ran").splitlines()) == ["1 0", "2 0", "3 1"]
    report = box.audit()
    assert (report.ooms, report.too_early) == (0, 0)
    assert [clash.gpu for clash in report.clashes] == [0]  # the two met there, and the third met nobody
    told = box.gpusched("explain", "1").out
    assert "29000 MiB of GPU memory at most (30720 MiB stated)" in told
    first, _, third = box.metrics()["jobs"]
    assert (first["stated_mem_bytes"], first["mem_bytes"]) == (30 << 30, 30 << 30)
    assert first["peak_device_bytes"] == first["peak_memory_bytes"] == 29000 * MIB
    assert (third["stated_mem_bytes"], third["mem_bytes"]) == (None, None)


def test_a_job_that_states_none_is_never_beside_another(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        lines = [f"[mem=1G] {SIMJOB} --mem 500 --hold 0.3 #{n}" for n in range(3)]
        alone = [f"{SIMJOB} --mem 500 --hold 0.3 #{n}" for n in range(3, 5)]
        ended = box.run(lines[0], alone[0], lines[1], alone[1], lines[2])
        assert ended.code == 0, ended.text
        spans = {n: (row.last.started_at, row.last.ended_at or 0.0) for n, row in enumerate(box.jobs())}
        for n in (1, 3):
            others = [span for m, span in spans.items() if m != n]
            assert all(end <= spans[n][0] or start >= spans[n][1] for start, end in others)


def test_no_more_jobs_on_a_gpu_than_allowed(box: Box) -> None:
    lines = [f"[mem=1G] echo x >> ran; {until('go')} #{n}" for n in range(5)]
    running = box.start("run", box.write(*lines), "--max-jobs-per-gpu", "2")
    wait_for(lambda: len(ran(box)) == 4)
    time.sleep(0.3)
    assert [row.indices for row in box.jobs()[:4]] == [[0], [0], [1], [1]]
    why = "waits for a GPU with 1024 MiB (GPU 0, GPU 1: shared by 2 jobs (--max-jobs-per-gpu)"
    assert why in box.gpusched("explain", "5").out
    (box.work / "go").touch()
    assert running.wait().code == 0


def test_a_job_that_uses_more_than_it_stated_is_told_of_and_counted_so(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1xT4") as box:
        over = f"[mem=1G] {SIMJOB} --mem 9000 --hold 2; echo over >> ran"
        running = box.start(
            "run", box.write(over, f"[mem=8G after-any=3] {SIMJOB} --mem 8000; echo next >> ran", "true")
        )
        running.wait_until_said("job 1 uses 9000 MiB on GPU 0 of a budget of 1024: counted at its real use")
        assert running.wait().code == 0
        assert ran(box) == ["over", "next"]  # 16 GiB are enough for both as stated, and not as they are
        assert box.audit().ooms == 0


def test_after_an_out_of_memory_the_budget_grows(box: Box) -> None:
    fails = "echo torch.OutOfMemoryError: CUDA out of memory; exit 1"
    lines = [
        f"[mem=1G retries=1] {SIMJOB} --mem 3000 --hold 0.3; {fails}",
        f"[mem=60G retries=3] {SIMJOB} --mem 64000 --hold 0.3; {fails}",
    ]
    ended = box.run(*lines)
    assert ended.code == 1
    grown, never = box.jobs()
    assert (len(grown.attempts), grown.job.stated_mem_bytes >> 20) == (2, 1024)
    assert "its budget is 3840 MiB from now on" in ended.out  # 1.25 times what was seen, in steps of 256
    assert (len(never.attempts), never.state, never.cause) == (2, "failed", "gpu_oom")
    assert "would need 100352 MiB after an out-of-memory, and too few allowed GPUs have that much" in ended.out
    assert "it is not tried again by itself" in box.gpusched("explain", "2").out
    assert never.job.mem_bytes >> 20 == 80128  # as much as some GPU has: queued again it can start
    assert box.gpusched("requeue", "2").code == 0
    assert box.gpusched("run", "list.txt").code == 1
    assert len(box.jobs()[1].attempts) == 3


def test_what_can_never_fit_is_refused_at_once(box: Box) -> None:
    ended = box.run(
        "true", "[mem=80G] true 2", "[gpus=3] true 3", "[gpus=2 tag=x] true 4", options="--tag-max-gpus x=1"
    )
    assert ended.code == 2
    assert "line 2: wants 81920 MiB on a GPU, and a GPU here can give 81408 at most" in ended.err
    assert "line 3: wants 3 GPUs, and 2 are allowed here" in ended.err
    assert "line 4: wants 2 GPUs, and the tag x may hold 1 (--tag-max-gpus)" in ended.err
    cost_nothing(box)


def test_a_newcomer_joins_jobs_that_were_adopted(box: Box) -> None:
    """Their shepherds hand copies of the claim to the next dispatcher."""
    old = [f"[mem=1G] {until(f'go{n}')}" for n in range(2)]
    running = box.start("run", box.write(*old), "--gpu-list", "0")
    wait_for(lambda: box.running() == 2)
    running.signal(signal.SIGKILL)
    running.wait()
    running = box.start("run", box.write(*old, "[mem=1G] echo new >> ran"), "--gpu-list", "0")
    wait_for(lambda: ran(box) == ["new"])
    assert box.states()[:2] == ["running", "running"]
    for n in range(2):
        (box.work / f"go{n}").touch()
    assert running.wait().code == 0


# ---- passing ---------------------------------------------------------------------------------------


def test_small_jobs_pass_a_larger_one_for_so_long_only(box: Box) -> None:
    small = [f"sleep 0.3; echo {n} >> ran" for n in range(12)]
    lines = [until("go"), "[gpus=2] echo large >> ran", *small]
    running = box.start("run", box.write(*lines), "--max-bypass", "1")
    wait_for(lambda: "kept for job 2" in box.gpusched("explain", "14").out)
    passed = len(ran(box)) + box.states()[2:].count("running")
    told = box.gpusched("explain", "2").out
    assert "waits for 2 GPUs, has " in told and "kept for it: GPU 1, GPU 0" in told
    assert "waits for a GPU; GPU 1 is kept for job 2, which has waited " in box.gpusched("status").out
    wait_for(lambda: box.states().count("running") == 1)
    time.sleep(0.5)
    assert box.states()[1] == "queued" and box.states().count("running") == 1
    (box.work / "go").touch()
    assert running.wait().code == 0
    assert 1 <= passed < 12
    assert ran(box).index("large") == passed


# ---- snapshots -------------------------------------------------------------------------------------


def git(box: Box, *words: str) -> str:
    who = ["-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, *words], cwd=box.work, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_job_that_waits_runs_the_code_as_it_was(box: Box) -> None:
    (box.work / "code.sh").write_text("echo committed\n")
    box.write(until(f"{box.root}/go"), "bash code.sh", "[cwd=sub] bash ../code.sh")
    (box.work / "sub").mkdir()
    git(box, "init")
    git(box, "add", "code.sh", "list.txt")
    git(box, "commit", "-m", "one")
    commit = git(box, "rev-parse", "HEAD")
    (box.work / "code.sh").write_text("echo uncommitted\n")
    running = box.start("run", "list.txt", "--snapshot", "--max-gpus", "1")
    wait_for(lambda: box.running() == 1)
    (box.work / "code.sh").write_text("echo later\n")
    git(box, "commit", "-am", "two")
    (box.root / "go").touch()
    assert running.wait().code == 0
    assert [row.said() for row in box.jobs()[1:]] == ["uncommitted\n"] * 2
    assert {(job["git_commit"], job["git_dirty"]) for job in box.metrics()["jobs"]} == {(commit, True)}
    assert git(box, "status", "--short") == ""
    box.write("bash code.sh", name="b.txt")
    git(box, "add", "b.txt")
    git(box, "commit", "-m", "three")
    assert box.gpusched("run", "b.txt").code == 0
    (job,) = box.metrics("b")["jobs"]
    assert (job["git_commit"], job["git_dirty"]) == (git(box, "rev-parse", "HEAD"), False)
    assert box.jobs("b")[0].said() == "later\n"


# ---- the same cases, as a job file -----------------------------------------------------------------


@pytest.mark.parametrize("case", ["01-annotated", "10-uses-assigned", "12-background", "16-one-fails", "52-longnames"])
def test_a_case_gives_the_same_as_a_job_file(box: Box, case: str) -> None:
    """The jobs that `check` tells of a list, written as a YAML file, run as those of the list do."""
    shutil.copytree(FILES / "stubs", box.work, dirs_exist_ok=True)
    first = box.gpusched("run", str(FILES / f"{case}.txt"), TRAIN_SLEEP="0")
    told = json.loads(box.gpusched("check", str(FILES / f"{case}.txt"), "--json").out)
    calls, ends = called(box), sorted((row.command, row.outcome) for row in box.jobs(case))
    jobs = [job["command"] if n % 2 else {"run": job["command"]} for n, job in enumerate(told["jobs"])]
    (box.work / "again.yaml").write_text(yaml.safe_dump({"jobs": jobs}, allow_unicode=True))
    second = box.gpusched("run", "again.yaml", TRAIN_SLEEP="0")
    assert second.code == first.code, second.text
    assert sorted((row.command, row.outcome) for row in box.jobs("again")) == ends
    assert called(box) == calls


def called(box: Box) -> list[list[str]]:
    """What the stand-in for a training script was called with since the last time."""
    lines = box.read("train_calls.jsonl").splitlines()
    (box.work / "train_calls.jsonl").unlink(missing_ok=True)
    return sorted(json.loads(line)["argv"] for line in lines)


@pytest.mark.parametrize("case", ["03-continued", "06-params", "08-overrides", "14-setup-lines"])
def test_what_a_case_refuses_is_refused_by_check_and_in_a_job_file(box: Box, case: str) -> None:
    run, check = (box.gpusched(verb, str(FILES / f"{case}.txt")) for verb in ("run", "check"))
    assert (run.code, check.code) == (2, 2)
    shown = [line for line in run.err.splitlines() if line.startswith(str(FILES))]
    errors = [line for line in shown if ": error: " in line]
    assert errors and all(line in check.out for line in errors)
    lines = (FILES / f"{case}.txt").read_text().splitlines()
    wrong = next(lines[int(line.split(":")[1]) - 1] for line in errors)
    (box.work / "again.yaml").write_text(yaml.safe_dump({"jobs": [wrong, "true"]}))
    refused = box.gpusched("run", "again.yaml")
    if case != "06-params":  # a row of a table is a program of that name, for all that a single line can tell
        assert refused.code == 2
        assert "again.yaml:2:" in refused.err
    cost_nothing(box)
