"""Merging by a plan: items come back in order for each format, and only what the plan's patterns name is merged."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from gpusched.commands.merge.parts.groups import find_groups
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.shards.plan import Shard, ShardPlan
from tests.support.merging import FORMATS, dealt, merge, write_plan

Capture = pytest.CaptureFixture[str]

SPLITS = st.tuples(
    st.integers(0, 40),
    st.integers(1, 6),
    st.sampled_from(["contiguous", "strided"]),
    st.none() | st.integers(0, 99),
)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(split=SPLITS)
def test_items_come_back_in_order(form: str, split: tuple[int, int, str, int | None], capsys: Capture) -> None:
    total, n, strategy, seed = split
    write, read = FORMATS[form]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for i, items in enumerate(dealt(total, n, strategy, seed)):
            write(place / f"x_gpu_{i}.{form}", items)
        plan = write_plan(
            place / "plan.json",
            total,
            n,
            f"{place}/*_{{suffix}}.{form}",
            strategy=strategy,
            seed=seed,
        )
        said = merge(capsys, "--plan", plan)
        assert said.code == 0, said
        assert read(place / f"x_merged.{form}") == list(range(total))
        told = json.loads((place / "x_merged_metadata.json").read_text())
        assert told["complete"] is True and len(told["parts"]) == n
        assert told["records"] == total


def jsonl(place: Path, name: str, items: list[int]) -> Path:
    path = place / name
    path.write_text("".join(f'{{"id": {i}}}\n' for i in items))
    return path


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def test_files_of_other_runs_are_not_merged(tmp_path: Path, capsys: Capture) -> None:
    for i in range(11):
        jsonl(tmp_path, f"x_gpu_{i}.jsonl", [i])
    jsonl(tmp_path, "x_gpu_11.jsonl", [99])
    jsonl(tmp_path, "x_gpu_1_old.jsonl", [98])
    said = merge(capsys, "--plan", write_plan(tmp_path / "p.json", 11, 11, f"{tmp_path}/*_{{suffix}}.jsonl"))
    assert said.code == 0 and ids(tmp_path / "x_merged.jsonl") == list(range(11))


def test_a_pattern_that_also_names_other_shards_is_sorted_out(tmp_path: Path, capsys: Capture) -> None:
    for i in range(11):
        jsonl(tmp_path, f"x_gpu_{i}.jsonl", [i])
    said = merge(capsys, "--plan", write_plan(tmp_path / "p.json", 11, 11, f"{tmp_path}/*{{suffix}}.jsonl"))
    assert said.code == 0 and ids(tmp_path / "x_merged.jsonl") == list(range(11))


def test_several_names_make_several_outputs(tmp_path: Path, capsys: Capture) -> None:
    for i in range(2):
        jsonl(tmp_path, f"a_gpu_{i}.jsonl", [i])
        jsonl(tmp_path, f"b_gpu_{i}.jsonl", [i + 10])
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/*_{{suffix}}.jsonl")
    assert merge(capsys, "--plan", plan).code == 0
    assert ids(tmp_path / "a_merged.jsonl") == [0, 1] and ids(tmp_path / "b_merged.jsonl") == [10, 11]
    said = merge(capsys, "--plan", plan, "-o", tmp_path / "c.jsonl")
    assert said.code == 2 and "c.jsonl: would be made twice: of" in said.err and "name a directory" in said.err, said
    (tmp_path / "into").mkdir()
    assert merge(capsys, "--plan", plan, "-o", tmp_path / "into").code == 0
    assert ids(tmp_path / "into" / "b_merged.jsonl") == [10, 11]


@pytest.mark.parametrize(
    ("outputs", "into"),
    [
        (["features/gpu_{}.jsonl", "labels/gpu_{}.jsonl"], "into"),
        (["gpu_{}/x.jsonl", "x_gpu_{}.jsonl"], None),
        (["gpu_{}/x.jsonl", "link/x_gpu_{}.jsonl"], None),
    ],
)
def test_outputs_that_would_have_one_name_are_refused(
    tmp_path: Path, capsys: Capture, outputs: list[str], into: str | None
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "link").symlink_to(".")
    for i in range(2):
        for number, name in enumerate(outputs):
            path = tmp_path / name.format(i)
            path.parent.mkdir(exist_ok=True)
            jsonl(path.parent, path.name, [i + 10 * number])
    plan = write_plan(tmp_path / "p.json", 2, 2, "")
    held = json.loads(plan.read_text())
    for i, shard in enumerate(held["shards"]):
        shard["outputs"] = [f"{tmp_path}/{name.format(i)}" for name in outputs]
    plan.write_text(json.dumps(held))
    said = merge(capsys, "--plan", plan, *([] if into is None else ["-o", tmp_path / into]))
    assert said.code == 2 and "merged.jsonl: would be made twice: of" in said.err, said
    assert outputs[0].format(0) in said.err and outputs[1].format(0) in said.err, said
    assert not list(tmp_path.rglob("*merged*"))


@pytest.mark.parametrize("pattern", ["*_*.pt", "x?.pt", "[ab].pt", "**/x.pt", "a*/*.pt"])
def test_wildcards_beyond_one_star_are_refused(tmp_path: Path, capsys: Capture, pattern: str) -> None:
    said = merge(capsys, "--plan", write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/{{suffix}}_{pattern}"))
    assert said.code == 2 and "a pattern has at most one wildcard" in said.err, said


NAMES = ("a_1.pt", "b_1.pt", ".a_1.pt", "a]1.pt", "[a]_1.pt", "a*_1.pt", "é_1.pt", "a_1.pt.tmp", "gone")


@pytest.mark.parametrize("pattern", ["*_1.pt", "a_1.pt", "none", "*", ".*", "[[]a]*", "a[*]_1.pt", "a*", "*/a_1.pt"])
def test_patterns_name_what_glob_says(tmp_path: Path, pattern: str) -> None:
    for place in (tmp_path / "run [1] *", tmp_path / "run [1] *" / "deep"):
        place.mkdir()
        for name in NAMES:
            (place / name).touch()
        (place / "link_1.pt").symlink_to("nowhere")
    below = glob.escape(str(tmp_path / "run [1] *"))
    plan = ShardPlan(1, "contiguous", (Shard(0, "none", 0, 1, 1, 0, outputs=(f"{below}/{pattern}",)),))
    right = {one for one in glob.glob(f"{below}/{pattern}") if os.path.isfile(one)}
    assert {path for _, files in find_groups(plan).groups for path in files.values()} == right


def test_a_suffix_in_the_directory(tmp_path: Path, capsys: Capture) -> None:
    place = tmp_path / "gpu_1"  # above all outputs, a suffix means nothing
    for i in range(2):
        (place / f"gpu_{i}").mkdir(parents=True)
        jsonl(place / f"gpu_{i}", "x.jsonl", [i])
    assert merge(capsys, "--plan", write_plan(tmp_path / "p.json", 2, 2, f"{place}/{{suffix}}/x.jsonl")).code == 0
    assert ids(place / "x_merged.jsonl") == [0, 1]


def test_names_with_numbers_only(tmp_path: Path, capsys: Capture) -> None:
    for i in range(3):
        jsonl(tmp_path, f"out-{i}.jsonl", [i])
    assert merge(capsys, "--plan", write_plan(tmp_path / "p.json", 3, 3, f"{tmp_path}/out-{{shard}}.jsonl")).code == 0
    assert ids(tmp_path / "out-merged.jsonl") == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["x_{suffix}_{start}-{end}", "{seed}_{suffix}", "{start}/{suffix}", "{suffix}/{shard}"]
)
def test_what_a_pattern_without_wildcards_names_is_one_output(tmp_path: Path, capsys: Capture, name: str) -> None:
    plan = write_plan(tmp_path / "p.json", 40, 4, f"{tmp_path}/{name}.jsonl")
    parts = [Path(shard["outputs"][0]) for shard in json.loads(plan.read_text())["shards"]]
    for i, part in enumerate(parts):
        part.parent.mkdir(exist_ok=True)
        jsonl(part.parent, part.name, list(range(i * 10, i * 10 + 10)))
    said = merge(capsys, "--plan", plan)
    assert said.code == 0, said
    (whole,) = tmp_path.rglob("*merged.jsonl")
    assert ids(whole) == list(range(40))
    whole.unlink()
    parts[2].unlink()
    assert merge(capsys, "--plan", plan, "--allow-partial").code == 0
    assert ids(whole) == [*range(20), *range(30, 40)]  # under the same name


@pytest.mark.parametrize(
    ("pattern", "name", "output"),
    [
        ("*_{suffix}_{start}-{end}", "{which}_{suffix}_{start}-{end}", "{which}_merged"),
        ("{start}_*_{suffix}", "{start}_{which}_{suffix}", "{which}_merged"),
        ("v2_{seed}_*", "v2_{seed}_{which}_{suffix}", "v2_{which}_merged"),
        ("{seed}/*_{suffix}", "{seed}/{which}_{suffix}", "{which}_merged"),
    ],
)
def test_what_differs_beside_the_suffix_may_stand_beside_wildcards(
    tmp_path: Path, capsys: Capture, pattern: str, name: str, output: str
) -> None:
    plan = write_plan(tmp_path / "p.json", 40, 4, f"{tmp_path}/{pattern}.jsonl")
    for shard in json.loads(plan.read_text())["shards"]:
        for which, first in (("a", 0), ("b", 100)):
            part = tmp_path / f"{name.format(which=which, **shard)}.jsonl"
            part.parent.mkdir(parents=True, exist_ok=True)
            jsonl(part.parent, part.name, list(range(first + shard["start"], first + shard["end"])))
    said = merge(capsys, "--plan", plan)
    assert said.code == 0, said
    assert ids(tmp_path / f"{output.format(which='a')}.jsonl") == list(range(40))
    assert ids(tmp_path / f"{output.format(which='b')}.jsonl") == list(range(100, 140))


@pytest.mark.parametrize("names", [["{seed}_{suffix}_a", "{seed}_{suffix}_b"], ["{shard}_a", "{shard}_b"]])
def test_two_patterns_that_differ_at_their_end_make_two_outputs(
    tmp_path: Path, capsys: Capture, names: list[str]
) -> None:
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/{names[0]}.jsonl")
    told = json.loads(plan.read_text())
    for shard in told["shards"]:
        shard["outputs"] = [f"{tmp_path}/{name.format(**shard)}.jsonl" for name in names]
        for path in map(Path, shard["outputs"]):
            jsonl(path.parent, path.name, [shard["shard"]])
    plan.write_text(json.dumps(told))
    assert merge(capsys, "--plan", plan).code == 0
    found = {path.stem: ids(path) for path in tmp_path.glob("*merged*.jsonl")}
    assert sorted(found.values()) == [[0, 1], [0, 1]]


def test_names_that_differ_in_what_no_pattern_says_are_refused_with_a_remedy(tmp_path: Path, capsys: Capture) -> None:
    for i, name in enumerate(["a", "b"]):
        jsonl(tmp_path, f"gpu_{i}_{name}.jsonl", [i])
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/{{suffix}}_*.jsonl")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and ids(tmp_path / "merged.jsonl") == [0, 1], "one file a shard is one group"
    jsonl(tmp_path, "gpu_1_a.jsonl", [2])
    said = merge(capsys, "--plan", plan, "-o", f"{tmp_path}/into/")
    assert said.code == 1 and "gpu_1_b.jsonl has no counterpart of gpu_0, which has left gpu_0_a.jsonl" in said.err
    assert "name in --merge what differs, by {start} or {seed}" in said.err and not (tmp_path / "into").exists()
    (tmp_path / "into").mkdir()
    said = merge(capsys, "--plan", plan, "-o", tmp_path / "into", "--allow-partial")
    assert said.code == 0 and ids(tmp_path / "into/merged_a.jsonl") == [0, 2], said


def test_a_directory_with_wildcards_and_a_suffix_in_its_name(tmp_path: Path, capsys: Capture) -> None:
    place = tmp_path / "gpu_0 [a]"
    place.mkdir()
    for i in range(2):
        jsonl(place, f"x_gpu_{i}.jsonl", [i])
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{glob.escape(str(place))}/*_{{suffix}}.jsonl")
    assert merge(capsys, "--plan", plan).code == 0
    assert ids(place / "x_merged.jsonl") == [0, 1]


def test_where_no_file_is_as_the_plan_says_the_patterns_are_named(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "--plan", write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/*_{{suffix}}.pt"))
    assert said.code == 1
    assert f"no shard has left a file\n  looked for {tmp_path}/*_gpu_0.pt, {tmp_path}/*_gpu_1.pt" in said.err


def test_a_missing_shard_holds_the_merge_or_is_written_down(tmp_path: Path, capsys: Capture) -> None:
    jsonl(tmp_path, "x_gpu_0.jsonl", [0, 1])
    jsonl(tmp_path, "x_gpu_2.jsonl", [4])
    plan = write_plan(tmp_path / "p.json", 5, 3, f"{tmp_path}/*_{{suffix}}.jsonl")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "gpu_1: it has left no file" in said.err and "--allow-partial" in said.err
    assert not (tmp_path / "x_merged.jsonl").exists()
    said = merge(capsys, "--plan", plan, "--allow-partial")
    assert said.code == 0 and "INCOMPLETE" in said.out
    assert ids(tmp_path / "x_merged.jsonl") == [0, 1, 4]
    told = json.loads((tmp_path / "x_merged_metadata.json").read_text())
    assert told["missing"] == [
        {"name": "gpu_1", "shard": 1, "suffix": "gpu_1", "start": 2, "end": 4, "items": 2, "seed": 101}
        | {"why": "it has left no file"}
    ]
    assert told["complete"] is False and (tmp_path / "x_merged.jsonl.incomplete").exists()
    jsonl(tmp_path, "x_gpu_1.jsonl", [2, 3])
    assert merge(capsys, "--plan", plan).code == 0
    assert ids(tmp_path / "x_merged.jsonl") == [0, 1, 2, 3, 4]
    assert not (tmp_path / "x_merged.jsonl.incomplete").exists()


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("form", ["jsonl", "parquet", "npy"])
def test_order_without_a_missing_shard(tmp_path: Path, capsys: Capture, form: str, seed: int | None) -> None:
    write, read = FORMATS[form]
    items = dealt(17, 4, "strided", seed)
    for i in (0, 1, 3):
        write(tmp_path / f"x_gpu_{i}.{form}", items[i])
    pattern = f"{tmp_path}/*_{{suffix}}.{form}"
    plan = write_plan(tmp_path / "p.json", 17, 4, pattern, strategy="strided", seed=seed, allow_partial=True)
    assert merge(capsys, "--plan", plan).code == 0
    assert read(tmp_path / f"x_merged.{form}") == sorted(set(range(17)) - set(items[2]))


def test_a_file_older_than_the_plan_is_stale(tmp_path: Path, capsys: Capture) -> None:
    jsonl(tmp_path, "x_gpu_0.jsonl", [0])
    old = jsonl(tmp_path, "x_gpu_1.jsonl", [7])
    for i in range(2):
        os.utime(jsonl(tmp_path, f"old_gpu_{i}.jsonl", [i]), (1e9, 1e9))
    os.utime(old, (1e9, 1e9))
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/*_{{suffix}}.jsonl", created_at=time.time() - 100)
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "x_gpu_1.jsonl is older than the plan; it is not merged" in said.err, said
    said = merge(capsys, "--plan", plan, "--allow-partial")
    assert said.code == 0 and ids(tmp_path / "x_merged.jsonl") == [0]
    assert not (tmp_path / "old_merged.jsonl").exists()


def test_counts_are_compared_with_the_split(tmp_path: Path, capsys: Capture) -> None:
    jsonl(tmp_path, "x_gpu_0.jsonl", [0, 1])
    jsonl(tmp_path, "x_gpu_1.jsonl", [2])
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/*_{{suffix}}.jsonl")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "x_gpu_1.jsonl: 1 record of 2 items" in said.err
    assert ids(tmp_path / "x_merged.jsonl") == [0, 1, 2] and "INCOMPLETE" in said.out
    said = merge(capsys, "--plan", plan, "--allow-partial")
    assert said.code == 0 and "warning: x_gpu_1.jsonl: 1 record of 2 items" in said.err and "INCOMPLETE" in said.out


@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize("form", FORMATS)
def test_a_short_part_makes_the_output_incomplete(tmp_path: Path, capsys: Capture, form: str, left: int) -> None:
    write, read = FORMATS[form]
    items = dealt(21, 3, "contiguous", None)
    items[1] = items[1][:left]  # of seven: what a shard had written when it failed
    parts = [tmp_path / f"x_gpu_{i}.{form}" for i in range(3)]
    for path, some in zip(parts, items, strict=True):
        write(path, some)
    plan = write_plan(tmp_path / "p.json", 21, 3, f"{tmp_path}/*_{{suffix}}.{form}")
    for words, code in [([], 1), (["--allow-partial"], 0)]:
        said = merge(capsys, "--plan", plan, *words)
        line = f"x_gpu_1.{form}: {left} records of 7 items"
        assert said.code == code and line in said.err, said
        assert "INCOMPLETE" in said.out
        told = json.loads((tmp_path / "x_merged_metadata.json").read_text())
        assert told["complete"] is False and told["missing"] == []
        assert told["short"] == [
            {"part": f"x_gpu_1.{form}", "shard": 1, "suffix": "gpu_1", "records": left, "items": 7, "lacks": 7 - left}
        ]
        assert line in (tmp_path / f"x_merged.{form}.incomplete").read_text()
        assert read(tmp_path / f"x_merged.{form}") == [*items[0], *items[1], *items[2]]
    write(parts[1], list(range(7, 14)))
    assert merge(capsys, "--plan", plan, "--allow-partial").code == 0
    assert json.loads((tmp_path / "x_merged_metadata.json").read_text())["short"] == []
    assert read(tmp_path / f"x_merged.{form}") == list(range(21))


def test_a_complete_output_is_not_replaced_by_one_of_a_short_part(tmp_path: Path, capsys: Capture) -> None:
    for i in range(2):
        jsonl(tmp_path, f"x_gpu_{i}.jsonl", [2 * i, 2 * i + 1])
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/*_{{suffix}}.jsonl")
    assert merge(capsys, "--plan", plan).code == 0
    jsonl(tmp_path, "x_gpu_1.jsonl", [2])
    said = merge(capsys, "--plan", plan, "--allow-partial")
    assert said.code == 1 and "it is kept:\n  x_gpu_1.jsonl: 1 record of 2 items" in said.err
    assert ids(tmp_path / "x_merged.jsonl") == [0, 1, 2, 3]


@pytest.mark.parametrize(("total", "bins"), [(10, 3), (1, 0)])
def test_lists_that_are_no_items_make_nothing_short(tmp_path: Path, capsys: Capture, total: int, bins: int) -> None:
    np = pytest.importorskip("numpy")
    for i in range(2):  # at 1 item, the second shard has none, and an array without rows
        np.savez(tmp_path / f"x_gpu_{i}.npz", hist=np.zeros(bins), n=np.int64(i))
    plan = write_plan(tmp_path / "p.json", total, 2, f"{tmp_path}/*_{{suffix}}.npz")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and "INCOMPLETE" not in said.out, said


@pytest.mark.parametrize("second", [[2, 2, 3, 3], [2, 2, 3]])
def test_several_records_an_item_are_told(tmp_path: Path, capsys: Capture, second: list[int]) -> None:
    jsonl(tmp_path, "x_gpu_0.jsonl", [0, 0, 1, 1])
    jsonl(tmp_path, "x_gpu_1.jsonl", second)
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/*_{{suffix}}.jsonl", strategy="strided")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and "2 parts with more records than items" in said.err
    assert "x_merged.jsonl: 4 rows for 2 items in x_gpu_0.jsonl, so the parts stand one after the other" in said.err
    assert ids(tmp_path / "x_merged.jsonl") == [0, 0, 1, 1, *second]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_parquet_part_without_the_key_leaves_the_others_in_order(
    tmp_path: Path, capsys: Capture, seed: int | None
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shards = dealt(9, 3, "strided", seed)
    for i, items in enumerate(shards):
        held = {"n": items} if i == 1 else {"id": items, "n": items}
        pq.write_table(pa.table(held), tmp_path / f"x_gpu_{i}.parquet")
    pattern = f"{tmp_path}/*_{{suffix}}.parquet"
    plan = write_plan(tmp_path / "p.json", 9, 3, pattern, strategy="strided", seed=seed, key="id")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "x_gpu_1.parquet: has no field of the name that --key gives" in said.err, said
    assert pq.read_table(tmp_path / "x_merged.parquet")["n"].to_pylist() == sorted(shards[0] + shards[2])
    assert "6 records of 2 parts, INCOMPLETE" in said.out


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what is read by /proc/self/io")
def test_shuffled_records_are_read_once_each_from_where_they_wait(tmp_path: Path, capsys: Capture) -> None:
    for i, items in enumerate(dealt(2000, 2, "contiguous", 3)):
        (tmp_path / f"x_gpu_{i}.txt").write_text("".join(f"{item:01000d}\n" for item in items))
    plan = write_plan(tmp_path / "p.json", 2000, 2, f"{tmp_path}/*_{{suffix}}.txt", seed=3)

    def read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read()
    assert merge(capsys, "--plan", plan).code == 0
    assert read() - before < 10_000_000, "a block of the file for each record"
    assert [int(line) for line in (tmp_path / "x_merged.txt").read_text().split()] == list(range(2000))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_there_may_be_more_parts_than_files_may_be_open(tmp_path: Path, form: str) -> None:
    for i, items in enumerate(dealt(200, 100, "strided", None)):
        FORMATS[form][0](tmp_path / f"x_gpu_{i}.{form}", items)
    plan = write_plan(tmp_path / "p.json", 200, 100, f"{tmp_path}/*_{{suffix}}.{form}", strategy="strided")
    limited = ["bash", "-c", 'ulimit -n 64; exec "$@"', "-"]
    command = [*limited, sys.executable, "-m", "gpusched.commands.merge", "--plan", str(plan)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert FORMATS[form][1](tmp_path / f"x_merged.{form}") == list(range(200))


def test_metadata_of_the_scripts_are_kept_and_added_up(tmp_path: Path, capsys: Capture) -> None:
    for i, (count, accuracy) in enumerate([(30, 0.5), (10, 0.9)]):
        jsonl(tmp_path, f"x_gpu_{i}.jsonl", [i])
        (tmp_path / f"x_gpu_{i}_metadata.json").write_text(
            json.dumps(
                {"count": count, "accuracy": accuracy, "loss": float("nan"), "api_token": "hf_secret", "seed": i}
            )
        )
    plan = write_plan(tmp_path / "p.json", 2, 2, f"{tmp_path}/x_{{suffix}}*")
    assert merge(capsys, "--plan", plan).code == 0
    assert sorted(path.name for path in tmp_path.glob("*merged*")) == ["x_merged.jsonl", "x_merged_metadata.json"]
    text = (tmp_path / "x_merged_metadata.json").read_text()
    told = json.loads(text)
    assert told["totals"] == {"count": 40}
    assert [part["metadata"]["accuracy"] for part in told["parts"]] == [0.5, 0.9]
    assert [(part["shard"], part["seed"], part["start"], part["end"]) for part in told["parts"]] == [
        (0, 100, 0, 1),
        (1, 101, 1, 2),
    ]
    assert "hf_" not in text and str(tmp_path) not in text


def told_of(place: Path, capsys: Capture, *parts: tuple[str, object]) -> dict[str, Any]:
    """The metadata of a merge of parts with these texts, and these metadata of their scripts."""
    for i, (text, left) in enumerate(parts):
        (place / f"x_{i}.jsonl").write_text(text, "latin-1")
        (place / f"x_{i}_metadata.json").write_text(json.dumps(left))
    merge(capsys, "-o", place / "x.jsonl", *(place / f"x_{i}.jsonl" for i in range(len(parts))))
    found: dict[str, Any] = json.loads((place / "x_merged_metadata.json").read_text())
    return found


@pytest.mark.parametrize("key", [(), ("--key", "id")])
@pytest.mark.parametrize(
    "bad", ["\xff\xfe{\0}\0\n\0", "\0" * 90, "\0\n" * 9, '{"id": 7'], ids=["utf-16", "nul", "nuls", "cut"]
)
def test_what_is_left_out_counts_in_no_total(tmp_path: Path, capsys: Capture, bad: str, key: tuple[str, ...]) -> None:
    good, left = "".join(f'{{"id": {i}}}\n' for i in range(10)), {"num_samples": 10, "accuracy": 0.5}
    texts = [(good, left), (bad, {"num_samples": 30, "accuracy": 0.9})]
    told = told_of(tmp_path, capsys, *texts)
    assert told["records"] == 10 and told["complete"] is False and told["totals"] == {"num_samples": 10}
    assert "left_out" in told["parts"][1] and told["parts"][1]["metadata"]["num_samples"] == 30


EMPTY = """{"version": 1, "created_at": 1, "total": TOTAL, "num_shards": 0, "shards": [], "strategy": "contiguous",
"shuffle_seed": null, "items": null, "command": "", "merge": null}"""


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("[1]", 2, "cannot be read as a plan"),
        ('{"version": 2, "created_at": 1, "total": 0, "num_shards": 0, "shards": []}', 2, "its version is 2"),
        (EMPTY.replace("TOTAL", "3"), 2, "0 items of 3"),
        (EMPTY.replace("TOTAL", "0"), 1, "name no outputs"),
    ],
)
def test_a_plan_that_is_none(tmp_path: Path, capsys: Capture, text: str, code: int, why: str) -> None:
    (tmp_path / "p.json").write_text(text)
    said = merge(capsys, "--plan", tmp_path / "p.json")
    assert said.code == code and why in said.err
