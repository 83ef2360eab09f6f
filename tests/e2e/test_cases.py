"""The cases of area `run` whose right answer shows only in a real run. Inputs: tests/cases/files, as found."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.host.store import meta_table
from tests.support.box import Box, Ended, wait_for
from tests.support.paths import TESTS

pytestmark = pytest.mark.slow

FILES = TESTS / "cases" / "files"


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, environment={"TRAIN_SLEEP": "0.02"}) as box:
        shutil.copytree(FILES / "stubs", box.work, dirs_exist_ok=True)
        (box.work / "sub").mkdir(exist_ok=True)
        yield box


def run(box: Box, name: str, *options: str, **environment: str | None) -> Ended:
    return box.gpusched("run", str(FILES / name), *options, **environment)


def calls(box: Box, name: str = "train_calls.jsonl") -> list[dict[str, Any]]:
    """What the stand-in for a training script noted, in the order of their ends."""
    return [json.loads(line) for line in box.read(name).splitlines()]


def words(text: str) -> list[str]:
    return text.split()


def test_case_1_a_list_kept_as_a_notebook(box: Box) -> None:
    ended = run(box, "01-annotated.txt")
    assert ended.code == 0
    assert len(box.jobs("01-annotated")) == 5
    assert sorted(call["argv"][:2] for call in calls(box)) == sorted(
        [
            ["--config", "conf/b/greedy.py"],
            ["--config", "conf/b/greedy.py"],
            ["--config", "conf/b/random.py"],
            ["--say", "run #4 of set B"],
            ["--tag", "set#B"],
        ]
    )
    assert "line 14 repeats line 11" in ended.err
    assert [row.job.line for row in box.jobs("01-annotated")] == [11, 12, 14, 16, 17]


def test_case_3_continued_lines(box: Box) -> None:
    ended = run(box, "03-continued.txt")
    assert ended.code == 2
    assert "03-continued.txt:8:" in ended.err and "space follows the backslash" in ended.err
    assert not (box.work / "gpusched-runs").exists()
    good = (FILES / "03-continued.txt").read_text().splitlines()
    assert box.run(*good[:7], *good[10:]).code == 0
    assert sorted(call["argv"] for call in calls(box)) == [
        words("--dataset alpha --batch 2000 --hidden 512 --hops 7 --heads 8 --lr 0.01 --wd=1e-05"),
        words("--dataset beta --batch 2000 --hidden 128 --hops 3 --heads 8 --lr 0.001"),
        ["--dataset", "delta", "--pattern", "C:\\tmp\\"],
    ]


def test_case_5_bom_crlf_and_bytes_that_are_no_utf8(box: Box) -> None:
    data = (FILES / "05-bom-crlf.txt").read_bytes() + b"\r\npython3 train.py --touch caf\xe9.txt\r\n"
    (box.work / "list.txt").write_bytes(data)
    for environment in ({"LANG": "C.UTF-8"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        for name in ("train_calls.jsonl", "out.txt"):
            (box.work / name).unlink(missing_ok=True)
        shutil.rmtree(box.work / "gpusched-runs", ignore_errors=True)
        ended = box.gpusched("run", "list.txt", **environment)
        assert ended.code == 0, ended.text
        assert len(box.jobs()) == 4
        assert (box.work / "out.txt").exists()
        assert os.path.exists(os.path.join(os.fsencode(box.work), b"caf\xe9.txt"))
        given = [os.fsencode(word) for call in calls(box) for word in call["argv"]]
        assert os.fsencode("둘") in given and "configs/Größe.json".encode() in given
        json.loads((box.queue() / "gpu_metrics.json").read_bytes())


def test_case_6_a_table_of_parameters(box: Box) -> None:
    ended = run(box, "06-params.txt")
    assert ended.code == 2
    assert "this does not start with a program (0001)" in ended.err
    assert "--force" in ended.err
    assert not (box.work / "gpusched-runs").exists()
    assert not box.claims.exists()


def test_case_8_commands_that_choose_their_gpu(box: Box) -> None:
    ended = run(box, "08-overrides.txt", "--gpu-list", "1")
    assert ended.code == 2
    for line in (1, 2, 3, 4):
        assert f"08-overrides.txt:{line}:" in ended.err
    assert "08-overrides.txt:10:" not in ended.err
    assert "--strip-gpu-env" in ended.err
    assert not box.claims.exists()
    ended = run(box, "08-overrides.txt", "--gpu-list", "1", "--strip-gpu-env")
    assert ended.code == 0, ended.text
    given = {call["argv"][call["argv"].index("--ix") + 1]: call["cvd"] for call in calls(box)}
    assert given == {str(n): "1" for n in range(1, 11)}


def test_case_8_run_as_they_are_it_is_recorded(box: Box) -> None:
    lines = (FILES / "08-overrides.txt").read_text().splitlines()
    ended = box.run(lines[4], options="--gpu-list 1")
    assert ended.code == 0
    assert "CPU job" in ended.err
    assert calls(box)[0]["cvd"] == ""


def test_case_10_commands_that_want_to_know_their_gpu(box: Box) -> None:
    for gpus in (1, 2):
        options = ["--gpus-per-job", str(gpus), "--log-dir", f"runs{gpus}", "--max-gpus", str(gpus)]
        assert run(box, "10-uses-assigned.txt", *options).code == 0
    found = [next(w for w in call["argv"] if w[0].isdigit()) for call in calls(box)]
    assert found == ["0", "0", "0,1", "0"]
    assert all(call["order"] == "PCI_BUS_ID" for call in calls(box))
    assert (box.work / "log a_100.log").exists() and (box.work / "log b_250.log").exists()
    logs = sorted((box.work / "runs2" / "logs").glob("0003*"))
    assert logs[0].read_text() == "[0, 1]\n"


def test_case_12_background(box: Box) -> None:
    ended = run(box, "12-background.txt", "--max-gpus", "1", TRAIN_SLEEP="0.15")
    assert ended.code == 0, ended.text
    for line, told in ((1, True), (2, True), (3, True), (4, True), (5, False), (6, False), (7, True)):
        assert (f"12-background.txt:{line}:" in ended.err) == told
    rows = box.jobs("12-background")
    ends = {call["argv"][1]: call for call in calls(box)}
    for row, ix in zip(rows, ("1", "2", "3", "4", "6", "7", "8"), strict=True):
        assert row.last.started_at <= ends[ix]["start"]
        assert row.last.ended_at is not None and row.last.ended_at >= ends[ix]["end"] - 0.01
    for before, after in itertools.pairwise(rows):
        assert before.last.ended_at is not None and after.last.started_at >= before.last.ended_at


def test_case_14_setup_lines(box: Box) -> None:
    ended = run(box, "14-setup-lines.txt")
    assert ended.code == 2
    for line in (2, 3, 4, 5):
        assert f"14-setup-lines.txt:{line}:" in ended.err
    assert "&&" in ended.err and "--setup" in ended.err
    assert not box.claims.exists()
    lines = (FILES / "14-setup-lines.txt").read_text().splitlines()
    (box.work / "setup.sh").write_text("\n".join(lines[1:5]) + "\n")
    assert box.run(*lines[5:], options="--setup setup.sh").code == 0
    found = [json.loads(line) for line in (box.work / "sub" / "train_calls.jsonl").read_text().splitlines()]
    assert all(call["argv"][2:] == words("--out results/day1 --env ready --data /data/projA") for call in found)


def test_case_14_forced_setup_lines_take_no_gpu(box: Box) -> None:
    lines = ["export A=1", "cd sub", "python3 train.py --ix 1"]
    assert box.run(*lines, options="--force").code == 0
    assert [row.command for row in box.jobs()] == ["python3 train.py --ix 1"]


def test_case_16_one_fails(box: Box) -> None:
    ended = run(box, "16-one-fails.txt")
    assert ended.code == 1
    assert [row.outcome for row in box.jobs("16-one-fails")] == [
        "exited 0",
        "exited 3",
        "exited 127",
        "exited 0",
        "signalled 9",
    ]
    assert "2 succeeded, 3 failed" in ended.out
    assert "exit 3" in ended.out and "not found (127)" in ended.out and "killed by SIGKILL" in ended.out
    found = box.metrics("16-one-fails")["jobs"]
    assert [(job["line"], job["exit_code"], job["signal"]) for job in found] == [
        (1, 0, None),
        (2, 3, None),
        (3, 127, None),
        (4, 0, None),
        (5, None, 9),
    ]
    assert all(Path(job["log"]).exists() for job in found)


def test_case_18_jobs_that_read_standard_input(box: Box) -> None:
    with open(FILES / "18-reads-stdin.txt", "rb") as file:
        ended = box.spawn("run", "-", "--log-dir", "runs", stdin=file.fileno()).wait()
    assert ended.code == 1
    assert sorted(call["argv"][1] for call in calls(box)) == ["1", "3"]
    assert all(call["stdin"] == "/dev/null" for call in calls(box))
    (log,) = (box.work / "runs" / "logs").glob("0002*")
    assert "EOFError" in log.read_text()


def test_case_19_very_many_lines_and_ctrl_c(box: Box) -> None:
    for number in range(4):
        box.set_gpu(number, foreign=9000)
    with open(box.work / "many.txt", "w") as file:
        file.writelines(f"python3 train.py --seed {n} --ix {n % 7}\n" for n in range(30_000))
    running = box.start("run", "many.txt")
    wait_for(lambda: (box.queue("many") / "devices.json").exists(), "the first look")
    peak = next(line for line in Path(f"/proc/{running.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 500 << 10
    began = time.monotonic()
    running.signal(signal.SIGINT)
    wait_for(lambda: "Ctrl-C" in running.said())
    assert time.monotonic() - began < 10
    assert running.wait().code == 130
    found = box.metrics("many")
    assert found["total_jobs"] == found["queued_jobs"] == len(found["jobs"]) == 30_000


def test_case_19_a_very_long_line(box: Box) -> None:
    line = "python3 train.py --files " + " ".join(f"/data/shard-{n:06d}.tar" for n in range(7000))
    assert len(line) > 150_000
    assert box.run(line, "true").code == 0
    assert len(calls(box)[0]["argv"]) == 7001


def test_case_31_schedulers_that_start_in_the_same_second(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="2", environment={"TRAIN_SLEEP": "0.2", "TRAIN_LOG": str(tmp_path / "all.jsonl")}) as box:
        shutil.copytree(FILES / "stubs", box.work, dirs_exist_ok=True)
        started = []
        for who in range(4):
            (tmp_path / f"run{who}").mkdir()
            path = tmp_path / f"run{who}" / "list.txt"
            path.write_text("".join(f"python3 train.py --who {who} --ix {n}\n" for n in range(3)))
            started.append(box.start("run", str(path), "--gpu-list", "0,1"))
        for running in started:
            assert running.wait().code == 0, running.said()
        found = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
        assert len(found) == 12
        for gpu in "01":
            mine = sorted((call["start"], call["end"]) for call in found if call["cvd"] == gpu)
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(mine))
        assert len(list((box.work / "gpusched-runs").iterdir())) == 4  # one queue a file, though of one stem


def test_case_34_grandchildren(box: Box) -> None:
    running = box.start("run", str(FILES / "34-tree.txt"), "--max-gpus", "1", "--grace", "1")
    wait_for(lambda: {"sleep 31.4159", "sleep 27.1828"} <= set(box.commands()))
    os.killpg(running.pid, signal.SIGINT)
    running.wait_until_said("nothing new starts")
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait().code == 130
    box.wait_until_empty()
    assert box.claimed() == set()
    assert [row.outcome for row in box.jobs("34-tree")] == ["interrupted", ""]


def test_case_36_ctrl_c_reaches_no_job_twice(box: Box) -> None:
    running = box.start("run", str(FILES / "36-ctrlc.txt"), "--max-gpus", "2", "--grace", "1")
    wait_for(lambda: box.read("c1.json") and box.read("c2.json"))
    os.killpg(running.pid, signal.SIGINT)
    running.wait_until_said("nothing new starts")
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait().code == 130
    for name in ("c1.json", "c2.json"):
        assert json.loads(box.read(name)) == {"INT": 0, "TERM": 1, "HUP": 0}
    assert [row.outcome for row in box.jobs("36-ctrlc")] == ["interrupted", "interrupted", ""]
    assert [job["state"] for job in box.metrics("36-ctrlc")["jobs"]] == ["queued"] * 3
    assert calls(box) == []


@pytest.mark.parametrize("variant", ["whole", "interrupted"])
def test_case_38_resume_after_the_list_was_edited(box: Box, variant: str) -> None:
    shutil.copy(FILES / "38-list-v1.txt", box.work / "list.txt")
    if variant == "whole":
        assert box.gpusched("run", "list.txt").code == 1
    else:
        running = box.start("run", "list.txt", "--max-gpus", "1", TRAIN_SLEEP="0.3")
        wait_for(lambda: box.states()[:4] == ["succeeded"] * 3 + ["running"])
        running.signal(signal.SIGINT)
        assert running.wait().code == 130
    assert len(calls(box)) == (7 if variant == "whole" else 4)
    (box.work / "train_calls.jsonl").unlink()
    shutil.copy(FILES / "38-list-v2.txt", box.work / "list.txt")
    ended = box.gpusched("run", "list.txt")
    assert ended.code == 0  # the line that failed before was mended: its failure is one of this list no more
    ran = sorted(" ".join(call["argv"][1:]) for call in calls(box))
    # by our manual a comment and a second blank are part of the text: new commands
    assert ran == ["0", "3", "5", "6"]
    found = box.metrics()
    done = {job["command"]: job["state"] for job in found["jobs"]}
    if variant == "whole":
        assert done["python3 train.py --ix 4"] == "succeeded"
        assert done["python3 train.py --ix 5 --fail"] == "failed"
    assert found["successful_jobs"] == (10 if variant == "whole" else 8)


def test_case_38_the_failed_again_on_request(box: Box) -> None:
    shutil.copy(FILES / "38-list-v1.txt", box.work / "list.txt")
    assert box.gpusched("run", "list.txt").code == 1
    assert len(calls(box)) == 7
    assert box.gpusched("run", "list.txt").code == 1
    assert len(calls(box)) == 7
    assert box.gpusched("run", "list.txt", "--retry-failed").code == 1
    assert [call["argv"][1] for call in calls(box)][7:] == ["5"]


def test_case_52_log_names(box: Box) -> None:
    assert run(box, "52-longnames.txt").code == 0
    rows = box.jobs("52-longnames")
    logs = {row.log for row in rows}
    assert len(logs) == 5
    for row in rows:
        assert row.log is not None and row.log.parent == box.queue("52-longnames") / "logs"
        assert len(os.fsencode(row.log.name)) <= 255
        assert not set(row.log.name) & set("/ *?'\"\n")
    assert not (box.root / "etc").exists()
    assert len(box.metrics("52-longnames")["jobs"][0]["command"]) > 900


def test_case_54_secrets(box: Box) -> None:
    shutil.copy(FILES / "54-secrets.txt", box.work / "list.txt")
    (box.work / "wandb").write_text("#!/bin/sh\nexit 0\n")
    (box.work / "wandb").chmod(0o755)
    secrets = [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
        "0123456789abcdef0123456789abcdef01234567",
        "hf_ZyXwVuTsRqPoNmLkJiHgFeDcBa543210",
        "89abcdef0123456789abcdef0123456789abcdef",
        "76543210fedcba9876543210fedcba9876543210",
    ]
    ended = box.gpusched("run", "list.txt", "-v", PATH=f"{box.work}:{box.environment['PATH']}")
    assert ended.code == 0, ended.text
    assert "--tokenizer acme/tok --max_tokens 512 --key-bindings vim" in ended.out
    given = [word for call in calls(box) for word in call["argv"]]
    assert secrets[2] in given and f"--wandb-key={secrets[3]}" in given
    for number, verb in enumerate((("status",), ("status", "-v"), ("status", "--json"), ("explain", "1"))):
        ended = Ended(0, ended.out, ended.err + box.gpusched(*verb).text) if number else ended
    for directory, _, files in os.walk(box.root):
        for name in files:
            path = Path(directory) / name
            if path.name in ("list.txt", "train_calls.jsonl", "wake") or path.name.startswith("queue.db"):
                continue
            data = path.read_bytes() + os.fsencode(path.name)
            assert not [s for s in secrets if s.encode() in data], path
    assert not [s for s in secrets if s in ended.text]
    for path in box.queue().glob("queue.db*"):
        assert path.stat().st_mode & 0o077 == 0
    assert box.gpusched("run", "list.txt").code == 0
    assert all(len(row.attempts) == 1 for row in box.jobs())


def test_case_56_cron(box: Box) -> None:
    shutil.copy(FILES / "56-list.txt", box.work / "list.txt")
    cron = ["bash", str(FILES / "56-run-like-cron.sh")]
    settings = [f"{k}={v}" for k, v in box.environment.items() if k.startswith(("GPUSCHED_", "E2E_"))]
    words = [*settings, "TRAIN_SLEEP=5", sys.executable, "-m", "gpusched", "run", "list.txt"]
    first = box.spawn(*words, program=cron)
    wait_for(lambda: box.running() == 2)
    second = box.spawn(*words, program=cron).wait()
    assert second.code == 75
    assert "is being dispatched by pid" in second.err
    assert len(second.text.splitlines()) == 1
    ended = first.wait()
    assert ended.code == 0
    assert "Traceback" not in ended.text and "\x1b" not in ended.text and "\r" not in ended.text
    assert len(ended.text.splitlines()) < 12
    assert ended.out.isascii()
    assert len(calls(box)) == 2
    assert all(call["cwd"] == str(box.work) for call in calls(box))
    assert box.jobs()[0].said() == "✅ größe 모델\n"
    assert box.metrics()["jobs"][0]["command"].startswith("python3 train.py --say '✅ größe 모델'")
    with box.store() as store:
        assert meta_table.source(store) == os.fsencode(box.work / "list.txt")
    third = box.spawn(*words, program=cron).wait()  # five minutes later there is nothing to do
    assert third.code == 0
    assert len(calls(box)) == 2


def test_a_program_that_pins_its_own_gpu(box: Box) -> None:
    """The mask that a job changes is its own affair; what is recorded says which one it was given."""
    assert box.run("python3 pins_its_own_gpu.py --ix 1", options="--gpu-list 1").code == 0
    assert calls(box)[0]["cvd"] == "3"
    assert box.jobs()[0].indices == [1]


def test_an_environment_wrapper_that_does_not_pass_term_on(box: Box) -> None:
    began = time.monotonic()
    ended = box.run("bash run_in_env.sh", options="--time-limit 0.7 --grace 0.5")
    assert ended.code == 1
    assert time.monotonic() - began < 15
    box.wait_until_empty()
    assert subprocess.run(["pgrep", "-f", "^sleep 20.0202"], check=False).returncode == 1


def test_case_58_a_list_in_utf_16_is_refused_by_name_from_a_file_and_from_a_pipe(box: Box) -> None:
    (box.work / "list.txt").write_bytes("# from PowerShell\r\ntouch ran\r\n".encode("utf-16"))
    for ended in (
        box.gpusched("run", "list.txt"),
        box.gpusched("check", "list.txt"),
        box.gpusched("check", "-c", "echo {a}", "--each", "list.txt"),
        box.gpusched("shard", "--items", "list.txt", "--num-shards", "2", "--", "cp", "{items_file}", "x"),
    ):
        assert ended.code == 2
        assert "UTF-16, not UTF-8" in ended.text and "iconv -f UTF-16 -t UTF-8" in ended.text
    with open(box.work / "list.txt", "rb") as file:
        ended = box.spawn("run", "-", stdin=file.fileno()).wait()
    assert ended.code == 2 and "standard input: this is UTF-16" in ended.err
    assert not (box.work / "ran").exists()
