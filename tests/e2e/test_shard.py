"""`gpusched shard` from the split to the merged file: run, interrupted, killed, failed, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box, Ended, Row, wait_for
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

COLLECT = str(ROOT / "examples" / "collect.py")
SCRIPT = """\
import json, os, sys, time
start, count, suffix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
while os.path.exists("wait"):
    time.sleep(0.02)
if os.path.exists(f"bad_{suffix}"):
    sys.exit(f"{suffix} is bad")
os.makedirs("out", exist_ok=True)
with open(f"out/.{suffix}", "w") as file:
    for item in range(start, start + count):
        file.write(json.dumps({"item": item, "text": "x" * item}) + "\\n")
os.rename(f"out/.{suffix}", f"out/{suffix}.jsonl")
"""
WORDS = ("python", "work.py", "{start}", "{count}", "{suffix}")
MERGE = ("--merge", "out/{suffix}.jsonl", "--merge-output", "all.jsonl")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        (box.work / "work.py").write_text(SCRIPT)
        yield box


def shard(box: Box, *options: str, words: tuple[str, ...] = WORDS, **environment: str) -> Ended:
    return box.gpusched("shard", "--log-dir", "gpusched-runs/q", *options, "--", *words, **environment)


def rows(box: Box) -> dict[str, Row]:
    return {row.job.name: row for row in box.jobs("q") if row.job.listed}


def attempts(box: Box) -> dict[str, int]:
    return {name: len(row.attempts) for name, row in rows(box).items()}


def merged(box: Box, name: str = "all.jsonl") -> list[int]:
    return [json.loads(line)["item"] for line in box.read(name).splitlines()]


def test_from_the_split_to_the_merged_file_and_nothing_twice(box: Box) -> None:
    options = ("--total", "30", "--min-items-per-shard", "2", *MERGE)
    found = shard(box, *options)
    assert found.code == 0, found.text
    assert merged(box) == list(range(30))
    assert "shards   8 of 8 done, 30 of 30 items" in found.out
    assert "merged   all.jsonl: 30 records of 8 parts" in found.out
    assert shard(box, *options).code == 0
    assert attempts(box) == {**{f"shard_{n:05}": 1 for n in range(8)}, "merge": 1}
    queue = box.queue("q")
    assert (queue / "shard_plan.json").stat().st_mode & 0o777 == 0o600
    plan = json.loads((queue / "shard_plan.json").read_text())
    assert plan["shards"][7] == {
        "shard": 7, "suffix": "shard_00007", "start": 27, "end": 30, "count": 3, "seed": plan["shards"][7]["seed"],
        "items_file": None, "outputs": [f"{box.work}/out/shard_00007.jsonl"],
    }  # fmt: skip
    assert len(list((queue / "logs").glob("*.out.log"))) == 9

    for other in (("--num-shards", "4"), ("--total", "31"), ("--strided",), ("--seed-base", "3")):
        refused = shard(box, *options, *other, words=(*WORDS, "{num_shards}"))
        assert refused.code == 2, refused.text  # another command in this directory
        refused = shard(box, *options, *other)
        assert refused.code == 2, refused.text
        if "--strided" not in other:
            assert "8 of its shards are done, 0 running" in refused.err
            assert "use --log-dir NEW to start over" in refused.err
    assert attempts(box)["shard_00000"] == 1


def test_items_of_a_table_shuffled_and_strided_come_back_in_order(box: Box) -> None:
    lines = [f'{n},"a\n{n}",{n % 5}\n' for n in range(23)]
    (box.work / "in.csv").write_text("id,text,w\n" + "".join(lines))
    copy = (
        "import csv, json, sys; rows = csv.DictReader(open(sys.argv[1], newline=''));"
        "open(sys.argv[2], 'w').writelines(json.dumps(dict(row, item=int(row['id']))) + '\\n' for row in rows)"
    )
    (box.work / "take.py").write_text(copy)
    words = ("python", "take.py", "{items_file}", "{output_dir}/{suffix}.jsonl")
    for n, options in enumerate(((), ("--strided",), ("--shuffle", "7"), ("--shuffle", "7", "--strided"))):
        found = box.gpusched(
            "shard", "--items=in.csv", "--log-dir", f"gpusched-runs/q{n}", "--output-dir", f"o {n}", "--num-shards=3",
            "--merge", "{output_dir}/{suffix}.jsonl", "--merge-output", f"all{n}.jsonl", *options, "--", *words,
        )  # fmt: skip
        assert found.code == 0, found.text
        assert merged(box, f"all{n}.jsonl") == list(range(23))
        assert sorted(os.listdir(box.queue(f"q{n}") / "items")) == [
            "shard_00000.csv",
            "shard_00001.csv",
            "shard_00002.csv",
        ]


def test_other_items_are_other_work(box: Box) -> None:
    (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(8)))
    options, words = ("--items", "in.txt", "--num-shards", "2"), ("cat", "{items_file}")
    assert shard(box, *options, words=words).code == 0
    assert shard(box, *options, words=words).code == 0
    assert sorted(row.said() for row in box.jobs("q")) == ["0\n1\n2\n3\n", "4\n5\n6\n7\n"]
    (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(1, 9)))
    refused = shard(box, *options, words=words)
    assert refused.code == 2
    assert "2 of its shards are done, 0 running" in refused.err
    assert f"the items in {box.work}/in.txt have changed since the shards were made" in refused.err
    for other in ("--suffix=shard", "--seed-base=3"):
        (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(8)))
        refused = shard(box, *options, other, words=words)
        assert refused.code == 2 and "as many with other limits, suffixes or seeds" in refused.err


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_shard_that_fails_holds_the_merge_until_it_is_done(box: Box, by_hand: bool) -> None:
    (box.work / "bad_gpu_1").touch()
    options = ("--total", "20", "--num-shards", "3", "--suffix", "gpu", *MERGE)
    found = shard(box, *options)
    assert found.code == 1
    assert "missing  gpu_1 (items 7-13)" in found.out
    assert "held     merge: until what is missing has succeeded" in found.out
    assert rows(box)["merge"].state == "held"
    assert not (box.work / "all.jsonl").exists()
    told = json.loads(shard(box, *options, "--json").out)["groups"][0]
    assert told["missing"] == [{"name": "gpu_1", "items": "7-13"}]
    assert [each["name"] for each in told["times"]] == ["gpu_0", "gpu_2"]
    refused = shard(box, *options, "--num-shards", "4")
    assert refused.code == 2
    assert "2 of its shards are done, 0 running\n  use exactly the previous options to continue" in refused.err
    (box.work / "bad_gpu_1").unlink()
    if by_hand:
        assert box.gpusched("requeue", "gpu_1", "-q", "q").code == 0
        assert shard(box, *options).code == 0
    else:
        assert shard(box, *options, "--retry-failed").code == 0
    assert merged(box) == list(range(20))
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 2, "gpu_2": 1, "merge": 1}


@pytest.mark.parametrize("by_hand", [False, True])
def test_part_of_it_is_merged_if_that_is_allowed_and_the_whole_in_the_end(box: Box, by_hand: bool) -> None:
    (box.work / "bad_gpu_0").touch()
    options = ("--total", "20", "--num-shards", "2", *MERGE, "--allow-partial")
    said = shard(box, *options)
    assert said.code == 1 and re.search(r"merged +\S+: 10 records of 1 part, INCOMPLETE", said.out), said
    assert merged(box) == list(range(10, 20))
    before = attempts(box)
    assert shard(box, *options).code == 1
    assert attempts(box) == before
    (box.work / "bad_gpu_0").unlink()
    if by_hand:
        assert box.gpusched("requeue", "gpu_0", "-q", "q").code == 0
        assert shard(box, *options).code == 0
    else:
        assert shard(box, *options, "--retry-failed").code == 0
    assert merged(box) == list(range(20))
    assert shard(box, *options).code == 0
    assert attempts(box)["gpu_0"] == 2


def test_why_a_merge_has_failed_is_told_at_the_end(box: Box) -> None:
    said = shard(box, "--total", "8", "--num-shards", "2", "--merge", "none/{suffix}.jsonl")
    assert said.code == 1 and re.search(r"wrong +.*no shard has left a file", said.out), said


def test_shards_that_fail_at_once_keep_no_other_shard_from_its_try(box: Box) -> None:
    for n in range(6):
        (box.work / f"bad_gpu_{n}").touch()
    options = ("--total", "30", "--num-shards", "6", "--suffix", "gpu", *MERGE, "--max-gpus", "1")
    assert shard(box, *options).code == 1
    assert sorted(row.state for row in rows(box).values()) == ["failed"] * 6 + ["held"]
    for n in range(6):
        (box.work / f"bad_gpu_{n}").unlink()
    assert shard(box, *options, "--retry-failed").code == 0
    assert merged(box) == list(range(30))


def test_the_plan_stays_when_the_gpus_are_others(box: Box) -> None:
    (box.work / "bad_shard_00003").touch()
    assert shard(box, "--total", "30", *MERGE, "--min-items-per-shard", "2").code == 1
    (box.work / "bad_shard_00003").unlink()
    found = shard(box, "--total", "30", *MERGE, "--min-items-per-shard", "2", "--gpu-list", "1", "--retry-failed")
    assert found.code == 0, found.text
    assert merged(box) == list(range(30))
    assert attempts(box) == {f"shard_{n:05}": 1 + (n == 3) for n in range(8)} | {"merge": 1}


def test_a_shard_that_was_cancelled_is_missing(box: Box) -> None:
    (box.work / "wait").touch()
    options = ("--total", "20", "--num-shards", "3", *MERGE)
    running = box.start("shard", "--log-dir", "gpusched-runs/q", *options, "--", *WORDS)
    wait_for(lambda: box.queue("q").exists() and box.running("q") == 2)
    assert box.gpusched("cancel", "shard_00002", "-q", "q").code == 0
    (box.work / "wait").unlink()
    ended = running.wait()
    assert ended.code == 1, ended.text
    assert "2 of 3 done, 14 of 20 items" in ended.out
    assert "missing  shard_00002 (items 14-19)" in ended.out
    assert "gpusched requeue JOB -q q" in ended.out
    assert not (box.work / "all.jsonl").exists()
    assert box.gpusched("requeue", "shard_00002", "-q", "q").code == 0
    ended = shard(box, *options)
    assert ended.code == 0 and "3 of 3 done, 20 of 20 items" in ended.out, ended.text
    assert merged(box) == list(range(20))


def test_the_merge_that_is_told_of_is_the_one_that_ran_last(box: Box) -> None:
    (box.work / "bad_gpu_1").touch()
    options = ("--total", "20", "--num-shards", "2", *MERGE)
    assert shard(box, *options).code == 1
    partly = shard(box, *options, "--allow-partial")
    assert "10 records of 1 part" in partly.out, partly.text
    (box.work / "bad_gpu_1").unlink()
    whole = shard(box, *options, "--retry-failed")
    assert whole.code == 0 and "merged   all.jsonl: 20 records of 2 parts" in whole.out, whole.text
    assert "INCOMPLETE" not in whole.out


def test_without_one_finished_shard_the_split_may_be_another(box: Box) -> None:
    for n in range(4):
        (box.work / f"bad_gpu_{n}").touch()
    options = ("--total", "30", "--suffix", "gpu", *MERGE)
    assert shard(box, *options, "--num-shards", "2").code == 1
    for n in range(4):
        (box.work / f"bad_gpu_{n}").unlink()
    assert shard(box, *options, "--num-shards", "4").code == 0
    assert merged(box) == list(range(30))


BY_ITEMS = ("shard", "--log-dir", "gpusched-runs/q", "--items", "in.txt", "--num-shards", "2", "--output-dir", "out")
TO_ALL = ("--merge", "out/{suffix}.txt", "--merge-output", "all.txt", "--", "cp", "{items_file}", "out/{suffix}.txt")
SLOWLY = """\
import time
from gpusched.cli.main import main
from gpusched.shards import files

write_items = files.write_items
def slowly(*given, **more):
    open("writing", "w").close()
    time.sleep(1)  # a dispatcher that is free to start what waits has started it by now
    write_items(*given, **more)
files.write_items = slowly
main()
"""


def test_another_split_first_takes_back_what_a_live_dispatcher_could_start(box: Box) -> None:
    (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(20)))
    colleagues = [box.colleague(gpu, 4000) for gpu in (0, 1)]
    first = box.start(*BY_ITEMS, *TO_ALL)
    wait_for((box.queue("q") / "dispatcher.log").exists)
    wait_for(lambda: "dispatching" in (box.queue("q") / "dispatcher.log").read_text())
    second = box.spawn("-c", SLOWLY, *BY_ITEMS, "--strided", *TO_ALL, program=(sys.executable,))
    wait_for((box.work / "writing").exists)
    for colleague in colleagues:
        colleague.kill()
        colleague.wait()
    assert second.wait().code in (0, 75)
    assert first.wait().code in (0, 75)
    assert box.read("all.txt").splitlines() == [str(n) for n in range(20)]
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 1, "merge": 1}


def test_what_a_start_that_was_killed_has_taken_back_runs_at_the_next(box: Box) -> None:
    (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(20)))
    killed = box.start(*BY_ITEMS, "--max-checks", "1000", *TO_ALL)
    wait_for(lambda: (box.queue("q") / "queue.db").exists() and len(box.jobs("q")) == 3)
    killed.signal(signal.SIGKILL)
    killed.wait()
    (box.work / "writing").unlink(missing_ok=True)
    killed = box.spawn("-c", SLOWLY, *BY_ITEMS, "--strided", *TO_ALL, program=(sys.executable,))
    wait_for((box.work / "writing").exists)
    killed.signal(signal.SIGKILL)
    killed.wait()
    assert {row.job.state for row in box.jobs("q")} == {"cancelled"}
    for _ in range(2):
        ended = box.gpusched(*BY_ITEMS, *TO_ALL)
        assert ended.code == 0, ended.text
    assert box.read("all.txt").splitlines() == [str(n) for n in range(20)]
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 1, "merge": 1}


def test_without_its_plan_shards_that_are_done_are_not_done_again(box: Box) -> None:
    options = ("--total", "20", "--num-shards", "2")
    assert shard(box, *options).code == 0
    (box.queue("q") / "shard_plan.json").unlink()
    refused = shard(box, *options)
    assert refused.code == 2 and "its plan is gone\n  2 of its shards are done, 0 running" in refused.err
    assert not (box.queue("q") / "shard_plan.json").exists()
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 1}


def test_a_merged_file_that_is_gone_is_made_again(box: Box) -> None:
    options = ("--total", "20", "--num-shards", "2", "--merge", "out/{suffix}.jsonl", "--merge-output", "new/all.jsonl")
    for _ in range(2):
        assert shard(box, *options).code == 0
        assert merged(box, "new/all.jsonl") == list(range(20))
    (box.work / "new" / "all.jsonl").unlink()
    assert shard(box, *options).code == 0
    assert merged(box, "new/all.jsonl") == list(range(20))
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 1, "merge": 1}


def test_other_ways_to_merge_merge_again_and_do_no_shard_again(box: Box) -> None:
    options = ("--total", "20", "--num-shards", "2")
    assert shard(box, *options).code == 0
    assert shard(box, *options, "--merge", "out/{suffix}.jsonl").code == 0
    assert merged(box, "out/merged.jsonl") == list(range(20))
    assert shard(box, *options, *MERGE, "--merge-key", "item").code == 0
    assert shard(box, *options, *MERGE, "--merge-key", "text").code == 0
    assert merged(box) == list(range(20))
    assert attempts(box) == {"gpu_0": 1, "gpu_1": 1, "merge": 1}


def test_a_dry_run_says_who_does_what_and_changes_nothing(box: Box) -> None:
    options = ("--total", "10", "--num-shards", "2", "--strided", "--dry-run", "--merge", "out/{suffix}.txt")
    words = ("python", "x.py", "{start}", "{end}", "{num_shards}", "it's {suffix}")
    found = shard(box, *options, words=words)
    assert found.code == 0, found.err
    assert "gpu_1  1-9 by 2      5  python x.py 1 10 2 'it'\"'\"'s gpu_1'" in found.out
    assert "10 items in 2 shards, queue gpusched-runs/q: nothing was changed" in found.out
    told = json.loads(shard(box, *options, "--json", words=words).out)
    assert [shlex.split(each["command"])[-1] for each in told["shards"]] == ["it's gpu_0", "it's gpu_1"]
    assert not (box.work / "gpusched-runs").exists()


@pytest.mark.parametrize(
    ("options", "words", "why"),
    [
        (("--total", "9", "--gpu-list", "0,5"), WORDS, "5"),
        (("--total", "9"), ("python", "x.py", "{strat}", "{count}"), "did you mean {start}?"),
        (("--total", "9"), ("python", "x.py", "{start}", "{output_dir}", "{end}"), "--output-dir"),
        (("--total", "9"), ("export A={start}{end}",), "what this line sets is lost"),
        (("--total", "0"), WORDS, "no items"),
        (("--total", "9", "--items", "x"), WORDS, "either --total N or --items FILE"),
        ((), WORDS, "either --total N or --items FILE"),
        (("--items", "none*.txt"), WORDS, "no file matches"),
        (("--total", "9", "a.txt"), WORDS, "put a pattern for --items in quotes"),
        (("--total", "9", "--shard-size", "2", "--num-shards", "2"), WORDS, "exclude each other"),
        (("--total", "9", "--merge-output", "x"), WORDS, "need --merge PATTERN"),
        (("--total", "9", "--merge", "x/{suffix}.bin"), WORDS, "its suffix names no format that can be merged"),
        (
            ("--total", "9", "--merge", "{suffix}.pt", "--merge-output", "a"),
            WORDS,
            "names no format that can be merged",
        ),
        (
            ("--total", "9", "--merge", "{output_dir}/{suffix}.txt"),
            WORDS,
            "{output_dir} needs --output-dir",
        ),
        (("--items", "/dev/null"), WORDS, "--items /dev/null: no regular file"),
        (("--items", "empty.txt"), WORDS, "--items empty.txt: it has no items"),
        (("--total", "9", "--suffix", "part"), WORDS, "--suffix"),
        (("--total", "9", "--snapshot", "--merge", "x/{suffix}"), WORDS, "with --snapshot a relative path"),
        (
            ("--total", "9", "--merge", "\x1b{suffix}.xyz"),
            WORDS,
            r"--merge \x1b{suffix}.xyz: its suffix names no format",
        ),
    ],
)
def test_what_cannot_be_is_refused(box: Box, options: tuple[str, ...], words: tuple[str, ...], why: str) -> None:
    (box.work / "empty.txt").touch()
    found = shard(box, *options, words=words)
    assert found.code == 2, found.text
    assert why in found.err
    assert "Traceback" not in found.err
    assert not (box.work / "gpusched-runs").exists()


def test_a_gpu_that_is_not_there_is_refused_as_by_run(box: Box) -> None:
    box.write("true")
    ours, theirs = shard(box, "--total", "9", "--gpu-list", "7"), box.gpusched("run", "list.txt", "--gpu-list", "7")
    assert ours.err == theirs.err
    assert "0" in ours.err and "1" in ours.err


def test_a_start_beside_a_running_one_hands_its_list_over(box: Box) -> None:
    options = ("--log-dir", "gpusched-runs/q", "--total", "20", *MERGE, "--", *WORDS)
    (box.work / "wait").touch()
    running = box.start("shard", *options)
    wait_for(lambda: box.running("q"))
    beside = shard(box, "--total", "20", *MERGE)
    assert beside.code == 75, beside.text
    shown = box.gpusched("status", "-q", "q")
    assert "shards  " in shown.out and "20 items" in shown.out
    group = json.loads(box.gpusched("status", "-q", "q", "--json").out)["queues"][0]["groups"][0]
    assert (group["jobs"], group["items"]) == (4, 20)
    quiet = shard(box, "--total", "20", *MERGE, "--quiet")
    assert (quiet.code, quiet.text) == (75, "")
    refused = shard(box, "--total", "20", "--num-shards", "2", *MERGE)
    assert refused.code == 2 and "2 running" in refused.err
    (box.work / "wait").unlink()
    assert running.wait().code == 0
    assert merged(box) == list(range(20))
    quiet = shard(box, "--total", "20", *MERGE, "--quiet")
    assert (quiet.code, quiet.text) == (0, "")


def test_the_resume_command_of_status_goes_on(box: Box) -> None:
    (box.work / "wait").touch()
    words = ("shard", "--total", "20", "--num-shards", "2", *MERGE, "--max-gpus", "1", "--suffix=gpu", "--", *WORDS)
    running = box.start(*words, "--hub_token", "s3cretS3cret99")
    wait_for(lambda: any(box.running(name) for name in iter_queues(box)))
    running.signal(signal.SIGKILL)
    running.process.wait()
    name = next(iter_queues(box))
    said = box.gpusched("status", "-q", name).out
    line = next(line for line in said.splitlines() if "gpusched shard" in line).partition("gpusched shard ")[2]
    assert "s3cret" not in said
    assert line.startswith(
        "--total 20 --merge 'out/{suffix}.jsonl' --num-shards 2 --suffix gpu --merge-output all.jsonl"
    )
    assert line.partition(" -- ")[0].endswith(" --max-gpus 1")
    (box.work / "wait").unlink()
    assert (
        box.gpusched(
            "shard", *shlex.split(line.replace("'***'", "s3cretS3cret99").replace("***", "s3cretS3cret99"))
        ).code
        == 0
    )
    assert merged(box) == list(range(20))
    assert [len(row.attempts) for row in box.jobs(name)] == [1, 1, 1]


def iter_queues(box: Box) -> Iterator[str]:
    folder = box.work / "gpusched-runs"
    return iter(sorted(os.listdir(folder)) if folder.exists() else ())


COPY = 'sleep 0.15; mkdir -p "$2"; cp "$1" "$2/.$3"; mv "$2/.$3" "$2/copy_$3.txt"\n'


@pytest.mark.parametrize(("seed", "form"), [(0, "jsonl"), (1, "txt")])
def test_killed_at_any_point_and_started_again_the_merged_file_is_the_same(box: Box, seed: int, form: str) -> None:
    (box.work / "in.txt").write_text("".join(f"{n}\n" for n in range(60)))
    (box.work / "copy.sh").write_text(COPY)
    words: tuple[str, ...] = ("bash", "copy.sh", "{items_file}", "{output_dir}", "{suffix}")
    options: tuple[str, ...] = ("--items", "in.txt", "--shuffle", "5", "--strided")
    if form == "jsonl":
        words = (
            "python", COLLECT, "--data_start_idx", "{start}", "--max_samples", "{count}", "--output_suffix", "{suffix}",
            "--seed", "{seed}", "--format", "jsonl", "--seconds", "0.03", "--output-dir", "{output_dir}",
        )  # fmt: skip
        options = ("--total", "60")
    options += ("--min-items-per-shard", "5", "--merge", f"{{output_dir}}/*_{{suffix}}.{form}")
    whole = box.gpusched("shard", *options, "--output-dir", "whole", "--merge-output", f"whole.{form}", "--", *words)
    assert whole.code == 0, whole.text
    rng = random.Random(seed)
    again = ("shard", "--log-dir", "gpusched-runs/q", *options, "--output-dir", "o", "--merge-output", f"again.{form}")
    kills = 0
    while kills < 6:
        running = box.start(*again, "--", *words)
        time.sleep(rng.choice([0.1, 0.3, 0.6, 1.0]) * rng.random())
        if running.process.poll() is not None:
            break
        os.killpg(running.pid, signal.SIGKILL)
        running.process.wait()
        if kills % 3 == 1:  # twice everything else too, as when the box goes down
            for pid in box.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        kills += 1
    assert kills
    ended = box.gpusched(*again, "--", *words)
    assert ended.code == 0, ended.text
    assert box.read(f"again.{form}") == box.read(f"whole.{form}") != ""
    lines = box.read(f"again.{form}").splitlines()
    assert [json.loads(line)["index"] if form == "jsonl" else int(line) for line in lines] == list(range(60))
    for row in box.jobs("q"):
        assert row.state == "succeeded"
        assert sum(attempt.outcome is not None and attempt.outcome.ok for attempt in row.attempts) == 1
    left = {name for name in os.listdir(box.work) if "again" in name}
    assert left == {f"again.{form}", "again_merged_metadata.json"}


# ---- what is on disk decides -----------------------------------------------------------------------

ON_DISK = ("--total", "8", "--num-shards", "2", "--suffix", "gpu", *MERGE)


def test_what_is_gone_is_told_and_made_again_when_that_is_asked_for(box: Box) -> None:
    assert shard(box, *ON_DISK).code == 0
    for name in ("out/gpu_0.jsonl", "out/gpu_1.jsonl", "all.jsonl"):
        (box.work / name).unlink()
    said = shard(box, *ON_DISK)
    assert said.code == 1 and "merged " not in said.out and "no shard has left a file" in said.out, said.text
    said = shard(box, *ON_DISK, "--retry-failed")
    assert said.code == 0 and "merged   all.jsonl: 8 records of 2 parts" in said.out, said.text
    assert merged(box) == list(range(8)) and attempts(box)["gpu_0"] == attempts(box)["gpu_1"] == 2


@pytest.mark.parametrize("damage", ["", '{"item": 4}\n', '{"item": 4, "te'])
def test_a_shard_whose_part_is_short_or_cut_runs_again(box: Box, damage: str) -> None:
    assert shard(box, *ON_DISK).code == 0
    (box.work / "out/gpu_1.jsonl").write_text(damage)
    said = shard(box, *ON_DISK)  # a part that has changed is merged again
    assert said.code == 1 and "gpu_1.jsonl" in said.out, said.text
    assert merged(box) == list(range(8)), "an incomplete result replaces no complete one"
    assert attempts(box)["gpu_1"] == 1
    said = shard(box, *ON_DISK, "--retry-failed")
    assert said.code == 0 and merged(box) == list(range(8)), said.text
    assert {name: n for name, n in attempts(box).items() if "gpu" in name} == {"gpu_0": 1, "gpu_1": 2}


def test_an_edited_part_is_merged_again_and_parts_may_be_gone_once_it_is(box: Box) -> None:
    assert shard(box, *ON_DISK).code == 0
    part = box.work / "out/gpu_1.jsonl"
    part.write_text(part.read_text().replace('"item": 4', '"item": 44'))
    assert shard(box, *ON_DISK).code == 0
    assert merged(box) == [0, 1, 2, 3, 44, 5, 6, 7]
    (box.work / "out/gpu_0.jsonl").unlink()
    part.unlink()
    before = attempts(box)
    for options in ((), ("--retry-failed",)):
        said = shard(box, *ON_DISK, *options)
        assert said.code == 0 and "merged   all.jsonl: 8 records" in said.out, said.text
    assert attempts(box) == before


def test_a_corrected_pattern_runs_no_shard_again(box: Box) -> None:
    wrong = ("--total", "8", "--num-shards", "2", "--suffix", "gpu", "--merge-output", "all.jsonl", "--merge")
    assert shard(box, *wrong, "o/{suffix}.jsonl").code == 1
    said = shard(box, *wrong, "out/{suffix}.jsonl", "--retry-failed")
    assert said.code == 0 and merged(box) == list(range(8)), said.text
    assert attempts(box)["gpu_0"] == 1


def test_a_script_that_appends_and_is_started_again_leaves_no_complete_file(box: Box) -> None:
    words = ("bash", "-c", "seq {start} $(({end} - 1)) >> {suffix}.txt; [ -e go ]")
    options = ("--total", "8", "--num-shards", "2", "--suffix", "gpu", "--merge", "{suffix}.txt")
    assert shard(box, *options, words=words).code == 1
    (box.work / "go").touch()
    said = shard(box, *options, "--retry-failed", words=words)
    assert said.code == 1 and "gpu_0.txt: 8 records of 4 items, and its shard had 2 attempts" in said.out, said.text
    for n in range(2):
        (box.work / f"gpu_{n}.txt").unlink()
    said = shard(box, *options, "--retry-failed", words=words)
    assert said.code == 0 and (box.work / "merged.txt").read_text().split() == [str(n) for n in range(8)], said.text


def test_the_file_of_the_attempt_that_succeeded_is_merged(box: Box) -> None:
    script = "f=x_$(date +%s%N)_{suffix}.txt; seq {start} $(({end} - 1)) > $f; mkdir go_{suffix} || exit 0; exit 1"
    words = ("bash", "-c", script)
    (box.work / "go_gpu_0").mkdir()
    options = ("--total", "8", "--num-shards", "2", "--suffix", "gpu", "--merge", "x_*_{suffix}.txt", "--retries", "1")
    said = shard(box, *options, "--merge-output", "all.txt", words=words)
    assert said.code == 0, said.text
    assert (box.work / "all.txt").read_text().split() == [str(n) for n in range(8)]


def test_the_warnings_of_the_merge_are_told_at_the_end_and_later(box: Box) -> None:
    (box.work / "work.py").write_text(SCRIPT.replace('"text": "x" * item', '"text": float("nan")'))
    text = "gpu_0.jsonl, line 1: NaN or Infinity is written as null"
    said = shard(box, *ON_DISK)
    assert said.code == 0 and re.search(rf"warned +out/{text}", said.out), said.text
    assert text in box.gpusched("status", "-q", "q").out
    assert text in box.gpusched("explain", "merge", "-q", "q").out
    assert text not in box.gpusched("explain", "gpu_0", "-q", "q").out


def test_a_job_that_has_succeeded_is_queued_again_by_name(box: Box) -> None:
    assert shard(box, *ON_DISK).code == 0
    refused = box.gpusched("requeue", "gpu_1", "-q", "q")
    assert refused.code == 1 and "(--again: succeeded ones too)" in refused.text
    (box.work / "out/gpu_1.jsonl").unlink()
    assert box.gpusched("requeue", "gpu_1", "--again", "-q", "q").code == 0
    assert shard(box, *ON_DISK).code == 0
    assert merged(box) == list(range(8)) and attempts(box)["gpu_1"] == 2
