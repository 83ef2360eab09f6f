"""The plan of a sharded script: each item in one shard, the jobs of the shards, and what is refused."""

from __future__ import annotations

import glob
import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched import api
from gpusched.common.errors import GpuschedError
from gpusched.core.model import DependencyKind
from gpusched.lists.template import Template
from gpusched.shards.command import NAMES, check_command, command_line, placeholder_values
from gpusched.shards.jobs import make_jobs, merge_command
from gpusched.shards.merge_options import MergeOptions
from gpusched.shards.outputs import with_outputs
from gpusched.shards.plan import MERGE, TAG, ShardPlan, SplitOptions, from_document, to_document
from gpusched.shards.request import ShardRequest
from gpusched.shards.sizing import count_shards, make_plan
from gpusched.shards.split import shuffled

OPTIONS: dict[str, Any] = {"force": False, "strip_gpu_env": False, "gpus": 1}
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/{}"), max_size=20)
RANGE = "python run.py --start {start} --count {count} --out {suffix} --seed {seed}"


def plan_of(total: int, n: int, slots: int = 2, **options: Any) -> ShardPlan:
    return make_plan(total, SplitOptions(**options), n, slots)


# ---- which items -----------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> ShardPlan:
    total = draw(st.integers(1, 200))
    n = draw(st.integers(1, total))
    shuffle = draw(st.one_of(st.none(), st.integers(0, 2**40)))
    suffix = draw(st.sampled_from(["", "gpu", "shard"]))
    base = draw(st.integers(0, 2**31))
    return plan_of(total, n, strided=draw(st.booleans()), shuffle=shuffle, suffix=suffix, seed_base=base)


@pytest.mark.slow
@given(plans())
def test_every_item_is_in_exactly_one_shard(plan: ShardPlan) -> None:
    positions = [at for shard in plan.shards for at in plan.positions(shard)]
    assert sorted(positions) == list(range(plan.total))
    line = range(plan.total) if plan.shuffle_seed is None else shuffled(plan.total, plan.shuffle_seed)
    assert sorted(line[at] for at in positions) == list(range(plan.total))
    for shard in plan.shards:
        own = plan.positions(shard)
        assert shard.count == len(own) > 0
        assert (shard.start, shard.end) == (own[0], own[-1] + 1)
        if plan.strategy == "strided":
            assert list(own) == list(range(shard.start, shard.end, len(plan.shards)))
    assert len({shard.suffix for shard in plan.shards}) == len(plan.shards)
    assert len({shard.seed for shard in plan.shards}) == len(plan.shards)
    assert {TAG, MERGE}.isdisjoint(shard.suffix for shard in plan.shards)


@pytest.mark.slow
@given(plans(), st.booleans())
def test_a_plan_is_read_as_it_was_written(plan: ShardPlan, merges: bool) -> None:
    if merges:
        plan = with_outputs(replace(plan, merge=MergeOptions("/o", ("n",), "id")), ["o/x-{suffix}.pt"], "", "/work/[a]")
    found = json.loads(json.dumps(to_document(plan)))
    assert from_document(found) == replace(plan, inputs={})
    assert found["num_shards"] == len(found["shards"])


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(1, 6), st.integers(1, 20))
def test_more_shards_than_gpus_but_none_too_small(total: int, slots: int, per_gpu: int, least: int) -> None:
    n, note = count_shards(total, SplitOptions(shards_per_gpu=per_gpu, min_items=least), slots)
    assert 1 <= n <= slots * per_gpu
    assert n == 1 or total // n >= least
    assert bool(note) == (n < slots)
    assert note or n % slots == 0


def test_fewer_items_than_it_is_worth_make_fewer_shards_and_it_says_so() -> None:
    assert count_shards(1000, SplitOptions(), 2) == (8, "")
    assert count_shards(1000, SplitOptions(num_shards=3), 2) == (3, "")
    assert count_shards(1000, SplitOptions(shard_size=50), 2) == (20, "")
    assert count_shards(1010, SplitOptions(shard_size=50), 2)[0] == 21
    assert count_shards(3, SplitOptions(shard_size=1), 2) == (3, "")
    assert count_shards(20, SplitOptions(), 2) == (4, "")
    n, note = count_shards(8, SplitOptions(num_shards=4), 4)
    assert (n, note) == (4, ""), "an explicit number wins"
    assert count_shards(3, SplitOptions(num_shards=4), 4) == (3, "too few items for more: 3 items in 3 shards")
    assert count_shards(3, SplitOptions(), 2) == (
        1,
        "too few items for more: 3 items in 1 shard (--min-items-per-shard 4)",
    )
    with pytest.raises(GpuschedError, match="no items"):
        count_shards(0, SplitOptions(), 2)
    with pytest.raises(GpuschedError, match="more than"):
        count_shards(10**9, SplitOptions(shard_size=1), 2)


def test_the_library_splits_by_the_same_rule() -> None:
    plan = plan_of(103, 8)
    assert [(s.start, s.end) for s in plan.shards] == api.split_range(103, 8)
    assert api.shard_range(103, 8, 7) == (91, 103)


def test_suffixes() -> None:
    assert [s.suffix for s in plan_of(20, 2).shards] == ["gpu_0", "gpu_1"]
    assert [s.suffix for s in plan_of(20, 3).shards] == ["shard_00000", "shard_00001", "shard_00002"]
    assert plan_of(20, 3, suffix="gpu").shards[2].suffix == "gpu_2"
    assert plan_of(20, 2, suffix="shard").shards[1].suffix == "shard_00001"


# ---- the command ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0{}"), max_size=12), min_size=2, max_size=5))
def test_each_word_stays_one_word_for_the_shell(words: list[str]) -> None:
    words = ["x", *words, "--n={start}", "a {output_dir}'s", "{print}"]
    plan = plan_of(20, 2)
    values = placeholder_values(plan, plan.shards[1], "it's")
    text = Template(command_line(words), NAMES, shell=True).fill(values)
    assert shlex.split(text) == [*words[:-3], "--n=10", "a it's's", "{print}"]


def test_a_single_word_is_a_command_line() -> None:
    assert command_line(["a {start} | b > '{suffix}'"]) == "a {start} | b > '{suffix}'"
    assert command_line(["[mem=18G]", "a", "b c"]) == "[mem=18G] a 'b c'"
    assert command_line(["a", "--x={suffix}", "$HOME"]) == "a --x={suffix} '$HOME'"


def test_quotes_of_ours_hide_no_look_alike() -> None:
    assert command_line(["a", "–lr", "“b”", "한", "“b $c”", "–lr;"]) == "a –lr “b” '한' '“b $c”' '–lr;'"


@pytest.mark.parametrize(
    ("command", "wish", "from_items", "why"),
    [
        (RANGE, {}, False, ""),
        ("x {start} {end}", {}, True, ""),
        ("x {shard}/{num_shards}", {}, True, ""),
        ("x {items_file}", {"shuffle": 3}, True, ""),
        ("x {items_file}", {"strided": True}, False, ""),
        ("x {start} {end} {num_shards}", {"strided": True}, False, ""),
        ("x {shard} {num_shards}", {"strided": True}, False, ""),
        ("x --samples {count} --seed {seed}", {}, False, ""),
        ("x --samples {count} --seed {seed}", {}, True, "where a shard's items begin"),
        ("x {start}", {}, False, "where a shard's items begin"),
        ("x {end} {suffix}", {}, False, "where a shard's items begin"),
        ("x {shard}", {}, False, "where a shard's items begin"),
        ("x y", {}, False, "a command without placeholders does not say both"),
        ("x {start} {count}", {"strided": True}, False, "a strided shard is no range"),
        ("x {start} {end}", {"shuffle": 1}, True, "the items are shuffled"),
        ("x {start} {cuont}", {}, False, r"there is no \{cuont\}; did you mean \{count\}"),
        ("x {start} {COUNT}", {}, False, r"there is no \{COUNT\}; did you mean \{count\}"),
        ("x {start} {end} --log {sufix}", {}, False, r"did you mean \{suffix\}"),
        ("x {start} {end} ${SUFFIX} {} {a,b} '{print}'", {}, False, ""),
    ],
)
def test_a_command_must_say_which_items_belong_to_a_shard(
    command: str, wish: dict[str, Any], from_items: bool, why: str
) -> None:
    plan = plan_of(20, 2, **wish)
    if why:
        with pytest.raises(GpuschedError, match=why):
            check_command(command, plan, from_items=from_items)
    else:
        check_command(command, plan, from_items=from_items)


def test_one_number_is_enough_for_one_item() -> None:
    check_command("python fold.py --fold {shard}", plan_of(5, 5), from_items=False)
    check_command("python fold.py", plan_of(5, 1), from_items=False)


# ---- what each writes ------------------------------------------------------------------------------


def test_outputs_are_absolute_patterns_in_which_no_value_is_a_wildcard(tmp_path: Path) -> None:
    cwd = tmp_path / "a[1]*"
    (cwd / "o").mkdir(parents=True)
    plan = with_outputs(plan_of(20, 2), ["o/*_{suffix}.pt", "{output_dir}/{start}"], "d?", str(cwd))
    for shard in plan.shards:
        (cwd / "o" / f"x_{shard.suffix}.pt").touch()
    for name in ("x_gpu_0.pt.old", "gpu_0.pt"):
        (cwd / "o" / name).touch()
    found = [glob.glob(shard.outputs[0]) for shard in plan.shards]
    assert found == [[f"{cwd}/o/x_gpu_{n}.pt"] for n in (0, 1)]
    assert plan.shards[1].outputs[1] == f"{glob.escape(str(cwd))}/d[?]/10"


@pytest.mark.parametrize(
    ("pattern", "n", "suffix", "why"),
    [
        ("o/*_{suffix}.pt", 12, "gpu", ""),
        ("o/{suffix}*", 12, "gpu", ""),
        ("o/{suffix}/**", 12, "gpu", "at most one wildcard"),
        ("o/*_{suffix}_*.pt", 12, "gpu", "at most one wildcard"),
        ("o/*{shard}.pt", 9, "shard", ""),
        ("o/*.pt", 2, "gpu", "all shards would write the same files"),
        ("o/{sufix}.pt", 2, "gpu", "did you mean"),
    ],
)
def test_the_patterns_of_the_shards_differ(pattern: str, n: int, suffix: str, why: str) -> None:
    plan = plan_of(12 * n, n, suffix=suffix)
    if why:
        with pytest.raises(GpuschedError, match=why):
            with_outputs(plan, [pattern], "", "/w")
    else:
        with_outputs(plan, [pattern], "", "/w")


# ---- the jobs --------------------------------------------------------------------------------------


def test_the_jobs_of_a_plan() -> None:
    plan = replace(plan_of(10, 3), merge=MergeOptions())
    jobs = make_jobs(plan, "[mem=18G tag=x] " + RANGE, "", "python -m merge", options=OPTIONS)
    *shards, merge = jobs.specs
    assert [spec.line for spec in jobs.specs] == [1, 2, 3, 4]
    assert [spec.attributes.items for spec in shards] == [4, 3, 3]
    assert [spec.attributes.name for spec in shards] == ["shard_00000", "shard_00001", "shard_00002"]
    assert shards[1].command == b"python run.py --start 4 --count 3 --out shard_00001 --seed 1806341205"
    assert shards[0].attributes.mem_bytes == 18 << 30
    assert (merge.attributes.gpus, merge.attributes.name, merge.attributes.items) == (0, MERGE, 0)
    assert [(each.kind, each.refs) for each in merge.attributes.after] == [(DependencyKind.SUCCEEDED, (TAG,))]
    partial = make_jobs(replace(plan, merge=MergeOptions(allow_partial=True)), RANGE, "", "m", options=OPTIONS)
    assert partial.specs[-1].attributes.after[0].kind is DependencyKind.ENDED


def test_shards_that_would_all_do_the_same_are_refused() -> None:
    with pytest.raises(GpuschedError, match="the same for several shards"):
        make_jobs(plan_of(10, 2), "x {num_shards}", "", None, options=OPTIONS)


@settings(max_examples=20, deadline=None)
@given(WORDS)
@pytest.mark.slow
def test_the_shell_gives_the_values_on_as_they_are(text: str) -> None:
    words = ["printf", "%s|%s", "{output_dir}", "a b {start}"]
    jobs = make_jobs(plan_of(8, 2), command_line(words), f"a {text}", None, options=OPTIONS)
    said = subprocess.run(["bash", "-c", jobs.specs[1].command], capture_output=True, check=True).stdout
    assert said == os.fsencode(f"a {text}|a b 4")


def test_what_merges() -> None:
    assert merge_command("/py thon", "/q/p.json", None) == "'/py thon' -m gpusched.commands.merge --plan /q/p.json"
    assert merge_command("p", "q", "a b").endswith("--output 'a b'")


@pytest.mark.parametrize(
    "found", [None, [], {}, {"version": 2}, {"version": 1, "total": 3}, {**to_document(plan_of(5, 2)), "shards": [1]}]
)
def test_a_plan_that_is_none(found: Any) -> None:
    with pytest.raises(ValueError, match=r"it is|its version"):
        from_document(found)


def test_secrets_are_not_in_the_plan() -> None:
    plan = replace(plan_of(5, 2), command="HF_TOKEN=hf_abcdefghijklmnopqrstuvwx python x.py")
    assert "abcdefghijkl" not in json.dumps(to_document(plan))


# ---- the request -----------------------------------------------------------------------------------


def test_the_words_of_a_request_are_its_options() -> None:
    split = SplitOptions(num_shards=3, min_items=2, strided=True, shuffle=0)
    merge = MergeOptions("/o/all.pt", ("n", "m"), allow_partial=True)
    request = ShardRequest(("a", "{start}"), 9, split=split, patterns=("x*", "y*"), merge=merge, output_dir="d")
    assert shlex.join(request.words) == (
        "shard --total 9 --output-dir d --merge 'x*' --merge 'y*' "
        "--num-shards 3 --min-items-per-shard 2 --strided --shuffle 0 "
        "--merge-output /o/all.pt --merge-sum n --merge-sum m --allow-partial -- a '{start}'"
    )
    assert ShardRequest(("a",), items="f").words == ["shard", "--items", "f", "--", "a"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "either --total N or --items FILE"),
        ({"total": 1, "items": "f"}, "either --total N or --items FILE"),
        ({"total": 1, "split": SplitOptions(num_shards=1, shard_size=1)}, "--num-shards and --shard-size"),
        ({"total": 1, "split": SplitOptions(suffix="part")}, "--suffix part: must be one of gpu, shard"),
        ({"total": 1, "merge": MergeOptions("o")}, "need --merge PATTERN"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], why: str) -> None:
    with pytest.raises(GpuschedError, match=why):
        ShardRequest(("a",), **options).check()


def test_the_merge_job_of_a_queue_of_version_0_1_is_kept() -> None:
    plan = with_outputs(replace(plan_of(10, 2), merge=MergeOptions("/o.pt", ("n",), "id")), ["{suffix}.pt"], "", "/w")
    merge = make_jobs(plan, RANGE, "", "m", options=OPTIONS).specs[-1]
    assert dict(merge.attributes.env)[b"GPUSCHED_MERGE"] == b"8c321d5137abb9d0"


# ---- from Python -----------------------------------------------------------------------------------


def test_a_plan_of_version_0_1_is_read() -> None:
    document: dict[str, Any] = {
        "version": 1, "created_at": 7.5, "total": 5, "order": "given", "shuffle_seed": None, "strategy": "contiguous",
        "num_shards": 1, "items": "/w/in.txt", "command": "cp {items_file} {suffix}",
        "merge": {"output": "/w/all.txt", "sum": ["n"], "key": None, "on_duplicate": "error", "by": "given",
                  "allow_partial": False},
        "shards": [{"shard": 0, "suffix": "gpu_0", "start": 0, "end": 5, "count": 5, "seed": 3,
                    "items_file": "/q/items/gpu_0.txt", "outputs": ["/w/gpu_0"]}],
        "asked": {"num_shards": 1, "shard_size": None, "shards_per_gpu": 4, "min_items": 4, "strided": False,
                  "shuffle": None, "suffix": "", "seed_base": 0, "total": None, "weights": None, "digest": "d",
                  "cwd": "/w"},
    }  # fmt: skip
    plan = from_document(document)
    kept = to_document(plan)
    assert kept == {**document, "merge": {**kept["merge"], **document["merge"]}}  # which has more options now
    request = ShardRequest(("cp",), items="in.txt", split=SplitOptions(num_shards=1))
    assert {**request.split_inputs("d"), "cwd": "/w"} == plan.inputs, "another start keeps the split"


@pytest.mark.parametrize(
    ("options", "total", "slots", "right"),
    [
        (SplitOptions(num_shards=5), 6, 2, 5),  # an explicit number wins over the least number of items
        (SplitOptions(num_shards=9), 6, 2, 6),
        (SplitOptions(), 100, 1, 1),  # one GPU: nothing to even out
        (SplitOptions(), 100, 2, 8),
        (SplitOptions(shards_per_gpu=4), 100, 1, 4),
        (SplitOptions(), 10, 2, 2),
    ],
)
def test_the_number_of_shards(options: SplitOptions, total: int, slots: int, right: int) -> None:
    assert count_shards(total, options, slots)[0] == right
