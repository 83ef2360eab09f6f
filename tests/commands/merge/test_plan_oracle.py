"""Random sharded runs: what is merged equals the run of one process, for all keys and outputs together, or is refused.

Rows of ragged, empty, short, doubled and stale parts; files of failed attempts; each strategy and several formats.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.shards.on_disk import ShardRun
from tests.support.merging import dealt, merge, write_plan

Capture = pytest.CaptureFixture[str]
np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
st_torch = pytest.importorskip("safetensors.torch")

Rows = dict[str, list[int]]  # key -> its rows
RULES: dict[str, Callable[[int], list[int]]] = {  # how many rows an item has, and which
    "one": lambda item: [item],
    "ragged": lambda item: [item * 10 + n for n in range(2 + item % 3)],
    "double": lambda item: [item * 10, item * 10 + 1],
}


def save(path: Path, rows: Rows) -> None:
    arrays = {key: np.array(held, dtype=np.int64) for key, held in rows.items()}
    only = next(iter(rows.values()))
    match path.suffix:
        case ".pt":
            torch.save({key: torch.from_numpy(held) for key, held in arrays.items()} | {"n": 5}, path)
        case ".npz":
            np.savez(path, **arrays)
        case ".safetensors":
            st_torch.save_file({key: torch.from_numpy(held) for key, held in arrays.items()}, path)
        case ".npy":
            np.save(path, arrays["a"])
        case ".parquet":
            pq.write_table(pa.table({"a": pa.array(only, pa.int64())}), path)
        case ".csv":
            path.write_text("".join(f"{row}\n" for row in ["a", *only]))
        case _:
            path.write_text("".join(f"{row}\n" for row in only))


def load(path: Path) -> Rows:
    match path.suffix:
        case ".pt":
            return {key: held.tolist() for key, held in torch.load(path).items() if key != "n"}
        case ".npz":
            return {key: held.tolist() for key, held in np.load(path).items()}
        case ".safetensors":
            return {key: held.tolist() for key, held in st_torch.load_file(path).items()}
        case ".npy":
            return {"a": np.load(path).tolist()}
        case ".parquet":
            return {"a": pq.read_table(path)["a"].to_pylist()}
        case _:
            return {"a": [int(line) for line in path.read_text().split() if line != "a"]}


KEYED = (".pt", ".npz", ".safetensors")
FAULTS = ("none",) * 6 + ("empty", "short", "gone", "twice", "older", "failed beside it", "empty key")


def rows_of(items: list[int], rules: dict[str, str]) -> Rows:
    return {key: [row for item in items for row in RULES[rule](item)] for key, rule in rules.items()}


def write_parts(
    place: Path, data: st.DataObject, outputs: list[tuple[str, dict[str, str]]], shards: list[list[int]]
) -> Iterator[tuple[str, ShardRun]]:
    """Write the files of each shard, some of them faulty, and yield its attempts."""
    now = time.time()
    for i, items in enumerate(shards):
        fault = (
            data.draw(st.sampled_from(FAULTS), label=f"fault of gpu_{i}") if i else "none"
        )  # one shows what is right
        for number, (suffix, rules) in enumerate(outputs):
            rows, path = rows_of(items, rules), place / f"o{number}_2024010{i}_gpu_{i}{suffix}"
            if fault == "gone" and number == 0:
                continue
            is_counted = rules["a"] == "one"  # else nobody can tell from the number of rows
            if fault == "twice" and suffix == ".txt" and rules["a"] != "ragged":
                rows = {key: held * 2 for key, held in rows.items()}
            elif fault == "empty" or (fault == "short" and is_counted):
                rows = rows_of([] if fault == "empty" else items[:-1], rules)
            elif fault == "empty key" and is_counted:
                rows["a"] = []
            save(path, rows)
            written_at = now - (40 if fault == "older" else 10)
            os.utime(path, (written_at, written_at))
            if fault == "failed beside it":
                wrong = place / f"o{number}_2023010{i}_gpu_{i}{suffix}"
                save(wrong, {key: [-1, *held] for key, held in rows.items()})
                os.utime(wrong, (now - 40, now - 40))
        yield f"gpu_{i}", ShardRun(1 + (fault in ("twice", "older", "failed beside it")), now - 20, now - 9)


def check_run(capsys: Capture, monkeypatch: pytest.MonkeyPatch, data: st.DataObject) -> None:
    from gpusched.commands.merge import plan as plans

    n = data.draw(st.integers(1, 4), label="shards")
    total = data.draw(st.integers(n, 12), label="items")
    strategy = data.draw(st.sampled_from(["contiguous", "strided"]))
    seed = data.draw(st.none() | st.integers(0, 9))
    outputs = []
    for _ in range(data.draw(st.integers(1, 2), label="outputs")):
        suffix = data.draw(st.sampled_from([*KEYED, ".npy", ".txt", ".csv", ".parquet"]))
        keys = "abc"[: data.draw(st.integers(1, 3))] if suffix in KEYED else "a"
        outputs.append((suffix, {key: data.draw(st.sampled_from(["one", "one", *RULES])) for key in keys}))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shards = dealt(total, n, strategy, seed)
        runs = dict(write_parts(place, data, outputs, shards))
        monkeypatch.setattr(plans, "read_runs", lambda path: runs)
        plan = write_plan(place / "p.json", total, n, "", strategy=strategy, seed=seed)
        document = json.loads(plan.read_text())
        for shard in document["shards"]:
            shard["outputs"] = [f"{place}/o{k}_*_{shard['suffix']}{suffix}" for k, (suffix, _) in enumerate(outputs)]
        plan.write_text(json.dumps(document))
        said = merge(capsys, "--plan", plan)
        made = sorted(path for path in place.glob("o*merged*") if path.suffix not in (".json", ".incomplete"))
        if said.code:
            assert "error: " in said.err and "Traceback" not in said.err, said
            assert all(Path(f"{path}.incomplete").exists() or said.code for path in made)
            return
        assert len(made) == len(outputs) and not list(place.glob("*.incomplete")), said
        in_line = strategy == "contiguous" and seed is None
        orders = {json.loads(path.read_text())["order"] for path in place.glob("*_metadata.json")}
        assert len(orders) == 1, "all outputs have one order"
        is_restored = orders == {"the items' own order"}
        assert is_restored or not in_line
        line = [*range(total)] if is_restored else [item for items in shards for item in items]
        for path, (_, rules) in zip(made, outputs, strict=True):
            assert load(path) == rows_of(line, rules), (path.name, said)


FIXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=FIXED)
@given(data=st.data())
def test_a_sharded_run_is_that_of_one_process_or_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    check_run(capsys, monkeypatch, data)


@pytest.mark.soak
@settings(max_examples=3000, deadline=None, suppress_health_check=FIXED)
@given(data=st.data())
def test_many_sharded_runs_are_those_of_one_process_or_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    check_run(capsys, monkeypatch, data)
