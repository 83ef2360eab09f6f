"""`gpusched run` end to end: what a job gets, where it runs, how it ends, what is recorded."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import SIMJOB, Box, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        yield box


# ---- what a job gets -------------------------------------------------------------------------------


def test_a_job_gets_its_gpu_and_its_environment(box: Box) -> None:
    ended = box.run("env", MY_OWN="kept", GPUSCHED_MAX_CHECKS="2")
    assert ended.code == 0
    (row,) = box.jobs()
    told = dict(line.split("=", 1) for line in row.said().splitlines())
    queue = str(box.queue())
    assert told["CUDA_VISIBLE_DEVICES"] == "0"
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert told["GPUSCHED_JOB_ID"] == "1"
    assert told["GPUSCHED_ATTEMPT"] == "1"
    assert told["GPUSCHED_QUEUE"] == queue
    assert told["GPUSCHED_ATTEMPT_DIR"] == f"{queue}/attempts/1.1"
    assert told["GPUSCHED_PROGRESS"].startswith(told["GPUSCHED_ATTEMPT_DIR"])
    assert told["PWD"] == str(box.work)
    assert told["MY_OWN"] == "kept"
    assert "GPUSCHED_CHILD" not in told


def test_a_job_has_no_stdin_its_own_session_default_signals_and_no_strange_descriptors(box: Box) -> None:
    script = box.work / "look.py"
    script.write_text(
        "import os, signal\n"
        "print(os.readlink('/proc/self/fd/0'))\n"
        "print(os.getsid(0) == os.getpid() == os.getpgid(0))\n"
        "print(sorted(os.listdir('/proc/self/fd'))[:-1])\n"
        "print(*(line for line in open('/proc/self/status') if line.startswith(('SigBlk', 'SigIgn'))))\n"
    )
    assert box.run("exec python3 -S look.py").code == 0
    (row,) = box.jobs()
    stdin, leads, descriptors, *signals = row.said().splitlines()
    assert stdin == "/dev/null"
    assert leads == "True"
    assert descriptors == "['0', '1', '2', '230']"  # the claim: it is the job's as long as any process of it lives
    blocked, ignored = (int(line.split()[1], 16) for line in signals if line.strip())
    assert blocked == 0
    assert ignored & 0x7FFFFFFF & ~(1 << 12 | 1 << 24) == 0  # Python itself ignores PIPE and XFSZ


def test_stdout_and_stderr_share_a_log_as_they_come(box: Box) -> None:
    assert box.run("echo one; echo two >&2; printf 'raw \\377\\000 bytes'").code == 0
    (row,) = box.jobs()
    assert row.log is not None
    assert row.log.read_bytes() == b"one\ntwo\nraw \xff\x00 bytes"
    assert stat.S_IMODE(row.log.stat().st_mode) == 0o600


def test_split_streams(box: Box) -> None:
    assert box.run("echo one; echo two >&2", options="--split-streams").code == 0
    (row,) = box.jobs()
    assert row.said() == "one\n"
    assert (box.queue() / row.last.error_log).read_text() == "two\n"


def test_pipefail_and_the_hint_about_it(box: Box) -> None:
    ended = box.run("false | cat", "yes | head -1")
    assert ended.code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 1", "exited 141"]
    assert "pipefail" in ended.out


def test_setup_is_sourced_before_each_command(box: Box) -> None:
    (box.work / "setup.sh").write_text("export DATA=/data/a\nshopt -s nullglob\n")
    assert box.run('echo "$DATA" nothing*here', "echo two $DATA", options="--setup setup.sh").code == 0
    assert [row.said() for row in box.jobs()] == ["/data/a\n", "two /data/a\n"]


def test_why_a_job_failed_is_kept_beside_how(box: Box) -> None:
    (box.work / "lost.py").write_text("raise ValueError('loss is nan, API_KEY=s3cretword')\n")
    ended = box.run("python3 lost.py", "python3 trian.py 1", "python3 trian.py 2", "exit 3")
    reason = "ValueError: loss is nan, API_KEY=***"
    assert f"job 1, line 1: exit 1, {reason}\n" in ended.out
    assert re.search(r"  2 jobs: exit 2, python3: can't open file '\S+trian.py': .* \(jobs 2-3\)\n", ended.out)
    assert "job 4, line 4: exit 3\n" in ended.out
    for row in box.jobs():
        (box.queue() / row.last.log).unlink()  # the reason is stored
    queue = str(box.queue())
    assert f"how   exit 1, {reason}\n" in box.gpusched("explain", "1", "-q", queue).out
    status = box.gpusched("status", "-q", queue).out
    assert f"{reason}\n" in status and "(jobs 2-3)\n" in status


def test_a_setup_that_fails_fails_the_job_and_its_command_does_not_run(box: Box) -> None:
    (box.work / "setup.sh").write_text("return 7\n")
    assert box.run("touch ran", options="--setup setup.sh").code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 7"]
    assert not (box.work / "ran").exists()


def test_a_setup_that_is_not_there_is_refused(box: Box) -> None:
    ended = box.run("true", options="--setup missing.sh")
    assert ended.code == 2
    assert "missing.sh" in ended.err
    assert not box.queue().exists()


def test_another_shell(box: Box) -> None:
    assert box.run('echo "$0"', options="--shell sh").code == 0
    assert box.jobs()[0].said().strip().endswith("sh")
    ended = box.gpusched("run", box.write("true", name="b.txt"), "--shell", "no-such-shell")
    assert ended.code == 2
    assert "no-such-shell" in ended.err


def test_progress_is_recorded(box: Box) -> None:
    told = '{"done": 3, "total": 12, "unit": "layers", "message": "third"}'
    assert box.run(f"echo '{told}' > \"$GPUSCHED_PROGRESS\"; sleep 0.3").code == 0
    assert box.metrics()["jobs"][0]["progress"] == json.loads(told)


# ---- which GPU -------------------------------------------------------------------------------------


def test_each_gpu_has_one_job_at_a_time(box: Box) -> None:
    lines = [f"{SIMJOB} --mem {1000 + n} --hold 0.05" for n in range(12)]
    ended = box.run(*lines)
    assert ended.code == 0, ended.text
    report = box.audit()
    assert (report.jobs, report.clashes, report.too_early) == (12, [], 0)
    assert box.claimed() == set()
    used = {index for row in box.jobs() for index in row.indices}
    assert used == {0, 1, 2, 3}


def test_max_gpus_holds(box: Box) -> None:
    assert box.run(*[f"sleep 0.1; echo $CUDA_VISIBLE_DEVICES #{n}" for n in range(6)], options="--max-gpus 2").code == 0
    assert {row.said().strip() for row in box.jobs()} == {"0", "1"}


def test_several_gpus_a_job(box: Box) -> None:
    ended = box.run(
        *[f"{SIMJOB} --mem {1000 + n} --hold 0.1 --steps 1 && echo $CUDA_VISIBLE_DEVICES" for n in range(4)],
        options="--gpus-per-job 2",
    )
    assert ended.code == 0
    assert {row.said().splitlines()[-1] for row in box.jobs()} == {"0,1", "2,3"}
    assert box.audit().clashes == []


def test_the_list_is_an_order_of_preference(box: Box) -> None:
    ended = box.gpusched("run", box.write("sleep 1", "sleep 0.5"), "--gpu-list", "3", "1")
    assert ended.code == 0
    assert [row.indices for row in box.jobs()] == [[3], [1]]


def test_uuids_on_request(box: Box) -> None:
    assert box.run("echo $CUDA_VISIBLE_DEVICES", options="--visible-devices uuid").code == 0
    assert box.jobs()[0].said().strip() == box.uuid(0)


def test_cpu_jobs_see_no_gpu_and_wait_for_none(box: Box) -> None:
    for number in range(4):
        box.set_gpu(number, foreign=20000)
    line = (
        'echo "<$CUDA_VISIBLE_DEVICES>"; : > now.$GPUSCHED_JOB_ID; sleep 0.2; '
        "set -- now.*; echo $# > seen.$GPUSCHED_JOB_ID; rm now.$GPUSCHED_JOB_ID"
    )
    ended = box.run(*[f"{line} # {n}" for n in range(5)], options="--gpus-per-job 0 --cpu-jobs 2")
    assert ended.code == 0, ended.text
    assert {row.said() for row in box.jobs()} == {"<>\n"}
    assert {int(box.read(f"seen.{n}")) for n in range(1, 6)} <= {1, 2}


def test_cpu_jobs_run_where_there_is_no_gpu_at_all(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="") as box:
        assert box.run("echo ran", options="--gpus-per-job 0").code == 0
        assert box.jobs()[0].said() == "ran\n"


def test_a_gpu_in_use_is_left_alone_and_taken_when_it_is_free(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        bo = box.colleague(1, 9000)
        box.colleague(0, 9000)
        running = box.start("run", box.write(f"{SIMJOB} --mem 500 --hold 0"))
        running.wait_until_said("GPU 0, GPU 1 are used by bo (17.6 GiB in all, simjob)")
        assert "9000 MiB in use by bo's simjob" in (page := box.gpusched("status").out) and "threshold 500 MiB" in page
        assert box.states() == ["queued"]
        bo.kill()
        assert running.wait().code == 0
        assert box.jobs()[0].indices == [1]
        assert box.audit().clashes == []


def test_memory_below_the_threshold_is_free_and_at_it_is_not(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        box.set_gpu(0, foreign=700)
        box.set_gpu(1, foreign=699)
        assert box.run("true", options="--gpu-mem-threshold 700").code == 0
        assert box.jobs()[0].indices == [1]


def test_free_when_idle(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        box.colleague(0, 100)
        assert box.run("true", options="--free-when idle").code == 0
        assert box.jobs()[0].indices == [1]


@pytest.mark.parametrize(("rule", "used"), [("auto", 1), ("memory", 0), ("idle", 2)])
def test_a_colleague_who_works_in_little_memory_and_one_who_idles(tmp_path: Path, rule: str, used: int) -> None:
    with Box(tmp_path, gpus="3") as box:
        box.colleague(0, 490)
        box.colleague(1, 490, util=0)
        assert box.run("true", options=f"--free-when {rule}").code == 0
        assert box.jobs()[0].indices == [used]


def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        box.set_box(release_ms=300)
        assert box.run(*[f"{SIMJOB} --mem {2000 + n} --hold 0" for n in range(3)]).code == 0
        assert box.audit().too_early == 0
        assert box.audit().clashes == []


def test_memory_that_does_not_come_back_sets_the_gpu_aside_until_it_does(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        box.set_box(release_ms=1200)
        lines = [f"{SIMJOB} --mem {2000 + n} --hold 0" for n in range(2)]
        ended = box.run(*lines, GPUSCHED_SETTLE_TIMEOUT="0.3")
        assert ended.code == 0
        assert "set aside" in ended.out
        assert "is back" in ended.out
        assert box.audit().clashes == []


def test_a_lost_gpu_is_set_aside_once_and_the_others_go_on(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="3") as box:
        held = box.start("run", box.write(*[f"sleep 0.4; echo $CUDA_VISIBLE_DEVICES # {n}" for n in range(9)]))
        wait_for(lambda: box.running() == 3)
        box.set_gpu(1, fail="lost")
        ended = held.wait()
        assert ended.code == 0
        assert ended.out.count("set aside") == 1
        later = [row for row in box.jobs() if row.job.id > 3]
        assert {row.last.devices[0].uuid for row in later} == {box.uuid(0), box.uuid(2)}
        assert {row.said().strip() for row in later} == {box.uuid(0), box.uuid(2)}  # indices may shift now


def test_a_job_that_lost_its_gpu_is_tried_elsewhere_and_spends_no_try(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        lose = 'sleep 0.3; echo fail=lost >> "$GPUSCHED_SIMULATION/gpu0/state"'
        ended = box.run(f'[ "$GPUSCHED_ATTEMPT" = 2 ] || {{ ({lose}) & {SIMJOB} --mem 1000 --hold 60; }}')
        assert ended.code == 0, ended.text
        (row,) = box.jobs()
        assert [a.outcome.cause for a in row.attempts if a.outcome] == ["gpu_lost", ""]
        assert [d.index for a in row.attempts for d in a.devices] == [0, 1]
        assert row.job.tries == 1


@pytest.mark.parametrize("later", ["is back", "running jobs go on"])
def test_a_gpu_that_was_lost_meanwhile_is_blamed_for_a_failure(tmp_path: Path, later: str) -> None:
    """The GPU is back, or the driver as a whole does not answer, when the job fails."""
    with Box(tmp_path, gpus="2") as box:
        line = '[ "$GPUSCHED_ATTEMPT" = 2 ] || { while [ ! -e go ]; do sleep 0.02; done; exit 1; }'
        running = box.start("run", box.write(line))
        wait_for(lambda: box.running() == 1)
        box.set_gpu(0, fail="lost")
        running.wait_until_said("is set aside: lost")
        if later == "is back":
            box.set_gpu(0, fail=None)
        else:
            box.set_box(fail="Driver/library version mismatch")
        running.wait_until_said(later)
        (box.work / "go").touch()
        wait_for(lambda: box.jobs()[0].attempts[0].outcome)
        box.set_box(fail=None)
        assert running.wait().code == 0
        assert [a.outcome.cause for a in box.jobs()[0].attempts if a.outcome] == ["gpu_lost", ""]


def test_a_job_that_takes_a_gpu_of_its_own_choice_is_told_and_recorded(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        line = f'python3 -c \'import os; os.environ["CUDA_VISIBLE_DEVICES"] = "1"; os.system("{SIMJOB} --hold 0.6")\''
        ended = box.run(line)
        assert ended.code == 0
        assert "which it was not given" in ended.out
        assert "chose its own GPU" in box.metrics()["jobs"][0]["note"]


# ---- what can never be met -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--gpus-per-job 5", "5"),
        ("--gpu-list 1,4", "4"),
        ("--gpu-list 0,0", "more than once"),
        ("--gpus-per-job 3 --max-gpus 2", "max_gpus"),
        ("--gpus-per-job 2 --gpu-list 1", "1 GPU"),
        ("--max-checks 0", "max_checks"),
        ("--max-gpus 0", "max_gpus"),
        ("--poll-interval 0", "poll_interval"),
        ("--time-limit soon", "time_limit"),
        ("--simulate 0", "simulate"),
        ("--no-such-option", "No such option"),
    ],
)
def test_what_can_never_be_met_is_refused_at_once(box: Box, options: str, word: str) -> None:
    ended = box.run("true", options=options)
    assert ended.code == 2, ended.text
    assert word in ended.err
    assert "Traceback" not in ended.err
    assert not box.queue().exists()
    assert not box.claims.exists()


def test_an_outer_mask_is_the_allowed_set(box: Box) -> None:
    ended = box.run("sleep 1", "sleep 0.3", CUDA_VISIBLE_DEVICES=f"{box.uuid(2)},{box.uuid(1)[:12]}")
    assert ended.code == 0
    assert [row.indices for row in box.jobs()] == [[2], [1]]
    ended = box.gpusched("run", box.write("true", name="b.txt"), "--gpu-list", "0", CUDA_VISIBLE_DEVICES="1,2")
    assert ended.code == 2
    assert "outside" in ended.err


def test_another_order_of_devices_is_told_and_not_obeyed(box: Box) -> None:
    ended = box.run("echo $CUDA_DEVICE_ORDER", CUDA_DEVICE_ORDER="FASTEST_FIRST")
    assert ended.code == 0
    assert ended.out.count("FASTEST_FIRST") == 1
    assert box.jobs()[0].said() == "PCI_BUS_ID\n"


@pytest.mark.parametrize("mask", ["", "-1", "NoDevFiles"])
def test_an_empty_outer_mask_is_a_clear_error(box: Box, mask: str) -> None:
    ended = box.run("true", CUDA_VISIBLE_DEVICES=mask)
    assert ended.code == 3
    assert "CUDA_VISIBLE_DEVICES" in ended.err
    assert not box.queue().exists()
    assert box.run("true", options="--gpus-per-job 0", CUDA_VISIBLE_DEVICES=mask).code == 0


def test_a_nested_run_on_the_same_gpu_is_refused(box: Box) -> None:
    box.write("echo inner", name="inner.txt")
    (box.work / "other.sh").write_text(
        "unset CUDA_VISIBLE_DEVICES\ngpusched run inner.txt --gpu-list 3 --log-dir third\n"
    )
    ended = box.run(
        "gpusched run inner.txt", "gpusched run inner.txt --gpus-per-job 0", "sh other.sh", options="--max-gpus 1"
    )
    assert ended.code == 1
    same, cpu, other = box.jobs()
    assert same.outcome == "exited 2"
    assert "job 1 of another gpusched" in same.said()
    assert cpu.outcome == "exited 0", cpu.said()
    assert other.outcome == "exited 0", other.said()


def test_no_nvml_is_exit_3(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="") as box:
        ended = box.run("true")
        assert ended.code == 3
        assert "libnvidia-ml" in ended.err or "driver" in ended.err
        assert "--simulate" in ended.err
        assert not box.queue().exists()


def test_a_file_that_is_not_there(box: Box) -> None:
    ended = box.gpusched("run", "missing.txt")
    assert ended.code == 2
    assert ended.err.startswith("gpusched: error: missing.txt: cannot be read")


def test_a_file_without_commands(box: Box) -> None:
    ended = box.run("# nothing", "")
    assert ended.code == 2
    assert "no command" in ended.err


# ---- how a job ends --------------------------------------------------------------------------------


def test_retries(box: Box) -> None:
    assert box.run('[ "$GPUSCHED_ATTEMPT" = 2 ]', "exit 5", options="--retries 1").code == 1
    good, bad = box.jobs()
    assert (good.state, good.job.tries, good.outcome) == ("succeeded", 2, "exited 0")
    assert (bad.state, bad.job.tries, bad.outcome) == ("failed", 2, "exited 5")
    assert len({a.log for a in bad.attempts}) == 2


def test_time_limit(box: Box) -> None:
    began = time.monotonic()
    ended = box.run("sleep 30", "trap '' TERM; sleep 30; sleep 30", options="--time-limit 0.3 --grace 0.4")
    assert ended.code == 1
    assert time.monotonic() - began < 20
    assert [row.outcome for row in box.jobs()] == ["timed_out", "timed_out"]
    assert [row.last.outcome.signal for row in box.jobs() if row.last.outcome] == [15, 9]
    assert "time limit" in ended.out


def test_a_traceback_at_the_end_of_a_log_leaves_a_note(box: Box) -> None:
    ended = box.run("python3 -c 1/0; true", "python3 -c 1/0; echo but done")
    assert ended.code == 0
    assert "s: but its log ends in a traceback\n" in ended.out
    assert [row.note for row in box.jobs()] == ["but its log ends in a traceback", ""]
    assert "exit 0, but its log ends in a traceback" in box.gpusched("explain", "1").out
    assert "exit 0, but its log ends in a traceback" in box.gpusched("status", "-v").out


def test_out_of_gpu_memory_goes_to_a_larger_device(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1xT4+1xA100") as box:
        ended = box.run(f"{SIMJOB} --mem 20000 --hold 0", options="--retries 1")
        assert ended.code == 0, ended.text
        (row,) = box.jobs()
        assert [a.outcome.cause for a in row.attempts if a.outcome] == ["gpu_oom", ""]
        assert [d.index for a in row.attempts for d in a.devices] == [0, 1]
        assert row.job.tries == 2


def test_a_working_directory_that_is_gone_fails_its_jobs_alone(box: Box) -> None:
    gone = box.work / "gone"
    gone.mkdir()
    path = box.work / box.write("rmdir ../gone; sleep 0.2", "true", "true #3")
    ended = box.spawn("run", str(path), "--max-gpus", "1", "--log-dir", str(box.queue()), cwd=gone).wait()
    assert ended.code == 1
    first, *rest = box.jobs()
    assert first.state == "succeeded"
    assert [(row.state, row.outcome, row.cause) for row in rest] == [("failed", "not_started", "bad_command")] * 2
    assert "gone" in rest[0].note


# ---- what is recorded ------------------------------------------------------------------------------


def test_metrics_tell_all_of_both_starts(box: Box) -> None:
    box.run("true", "exit 4", "sleep 0.1")
    first = box.metrics()
    box.run("true", "exit 4", "sleep 0.1", "echo new")
    found = box.metrics()
    assert stat.S_IMODE(os.stat(box.queue() / "gpu_metrics.json").st_mode) == 0o600
    assert (found["total_jobs"], found["successful_jobs"], found["failed_jobs"]) == (4, 3, 1)
    assert (found["success_rate"], found["failure_rate"]) == (0.75, 0.25)
    assert found["schema_version"] == 1
    assert found["start_time"] == first["start_time"] < found["timestamp"]
    assert found["total_runtime"] > first["total_runtime"] > 0
    assert found["avg_wait_time"] == pytest.approx(found["total_wait_time"] / 4)
    assert len(found["devices"]) == 4
    job = found["jobs"][1]
    assert job["command"] == "exit 4"
    assert (job["line"], job["state"], job["outcome"], job["exit_code"]) == (2, "failed", "exited", 4)
    assert job["signal"] is None and job["tries"] == 1
    assert job["queued_at"] <= job["started_at"] <= job["ended_at"]
    assert job["devices"][0]["uuid"] in {box.uuid(n) for n in range(4)}
    assert Path(job["log"]).exists()


def test_metrics_tell_what_a_job_used(box: Box) -> None:
    assert box.run(f"{SIMJOB} --mem 3000 --hold 0.6 --util 70").code == 0
    (job,) = box.metrics()["jobs"]
    assert job["peak_memory_bytes"] == 3000 << 20
    assert 0 < job["mean_memory_bytes"] <= 3000 << 20
    assert 0 < job["mean_utilisation"] <= 0.7


def test_the_record_of_an_attempt_tells_who_else_was_there(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2") as box:
        box.colleague(0, 490, util=0)
        lines = [f"{SIMJOB} --mem 3000 --hold 1", f"[alone=yes] {SIMJOB} --mem 3001 --hold 1"]
        running = box.start("run", box.write(*lines), "--max-gpus", "2")
        wait_for(lambda: box.running() == 2)
        box.colleague(1, 300, util=40)
        assert running.wait().code == 0
        shared, disturbed = box.metrics()["jobs"]
        others = shared["foreign_use"]
        assert (others["share"], others["who"], others["disturbed"]) == (1.0, ["bo's simjob"], False)
        assert (others["peak_bytes"], others["peak_utilisation"]) == (490 << 20, 0.0)
        others = disturbed["foreign_use"]
        assert disturbed["alone"] and disturbed["devices"][0]["index"] == 1
        assert 0 < others["shared"] < others["samples"] and others["disturbed"]
        assert (others["peak_bytes"], others["peak_utilisation"]) == (300 << 20, 0.4)
        assert disturbed["note"] == "disturbed by bo's simjob"
        assert (
            "with  bo's simjob in " in (page := box.gpusched("explain", "2").out) and "(disturbed: alone=yes)" in page
        )
        assert "at most 490 MiB and 40% GPU use" in box.gpusched("usage").out
        total = json.loads(box.gpusched("usage", "--json").out)["total"]["foreign_use"]
        assert (total["who"], total["disturbed"]) == (["bo's simjob"], True)


def test_an_attempt_that_was_alone_says_so(box: Box) -> None:
    assert box.run(f"[alone=yes] {SIMJOB} --mem 3000 --hold 0.5; {SIMJOB} --mem 900 --hold 0.2").code == 0
    (job,) = box.metrics()["jobs"]
    assert job["foreign_use"]["share"] == 0.0 and job["note"] is None
    assert "no process of others in " in box.gpusched("explain", "1").out
    assert json.loads(box.gpusched("usage", "--json").out)["total"]["foreign_use"]["share"] == 0.0


def test_a_job_that_wants_to_be_alone_waits_for_a_gpu_without_processes(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        idler = box.colleague(0, 100, util=0)
        running = box.start("run", box.write(f"[alone=yes] {SIMJOB} --mem 500 --hold 0"))
        running.wait_until_said("without processes of others (GPU 0: bo's simjob")
        assert box.states() == ["queued"]
        idler.kill()
        assert running.wait().code == 0


def test_files_are_for_their_user_alone(box: Box) -> None:
    assert box.run("echo x").code == 0
    for directory, folders, files in os.walk(box.queue()):
        for name in folders + files:
            path = os.path.join(directory, name)
            assert stat.S_IMODE(os.lstat(path).st_mode) & 0o077 == 0, path
    assert stat.S_IMODE(os.stat(box.queue()).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(box.claims).st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in box.claims.glob("*.lock")} == {0o644}


def test_the_dispatchers_log(box: Box) -> None:
    box.run("echo x")
    text = (box.queue() / "dispatcher.log").read_text()
    assert "job 1 on GPU 0: echo x" in text
    assert "DEBUG" not in text
    box.run("echo y", LOG_LEVEL="DEBUG")
    assert "INFO dispatching" in (box.queue() / "dispatcher.log").read_text()


def test_json_is_all_of_stdout(box: Box) -> None:
    ended = box.run("true", "false", options="--json")
    assert ended.code == 1
    assert json.loads(ended.out)["failed_jobs"] == 1


def test_quiet_says_only_the_end(box: Box) -> None:
    ended = box.run("true", "true #2", options="--quiet")
    assert ended.code == 0
    assert "job 1" not in ended.text


def test_quiet_prints_nothing_when_nothing_was_to_be_done(box: Box) -> None:
    words = ("true", "false")
    assert "1 succeeded, 1 failed" in box.run(*words, options="--quiet").out
    again = box.run(*words, options="--quiet")
    assert (again.code, again.text) == (1, "")
    assert "1 failed" in box.run(*words).out
    assert json.loads(box.run(*words, options="--quiet --json").out)["failed_jobs"] == 1
    assert "1 failed" in box.run(*words, options="--quiet --retry-failed").out


def test_quiet_sums_up_what_a_stream_has_brought(box: Box) -> None:
    (box.work / "lines").write_text("true\n")
    with open(box.work / "lines", "rb") as lines:
        ended = box.spawn("run", "-", "-q", "s", "--quiet", stdin=lines.fileno()).wait()
    assert ended.code == 0 and "1 succeeded, 0 failed of 1 job" in ended.out


def test_quiet_beside_a_dispatcher_tells_only_what_is_new(box: Box) -> None:
    words = ("run", "-q", "list", "-c", "sleep {s}", "-p")
    running = box.start(*words, "s=20")
    wait_for(lambda: box.running() == 1)
    again = box.gpusched(*words, "s=20", "--quiet")
    assert (again.code, again.text) == (75, "")
    assert "has taken this list" in box.gpusched(*words, "s=21", "--quiet").err
    running.signal(signal.SIGTERM)
    running.wait()


def test_a_dry_run_beside_a_dispatcher_knows_its_jobs(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        box.write(f"{SIMJOB} --mem 8000 --hold 3600", "echo second")
        running = box.start("run", "list.txt")
        wait_for(lambda: box.running() == 1 and "simjob: pid" in box.jobs()[0].said())
        waits = "job 2, line 2: waits for a GPU (GPU 0: runs a job of this queue)"
        assert waits in box.gpusched("run", "list.txt", "--dry-run").out
        running.signal(signal.SIGTERM)
        running.wait()


def test_dry_run_changes_nothing(box: Box) -> None:
    ended = box.run("echo one", "echo two", options="--dry-run")
    assert ended.code == 0, ended.text
    assert "echo one" in ended.out
    assert not (box.work / "gpusched-runs").exists()
    assert not box.claims.exists()
