"""One order for all that a plan merges, and the files of the attempts that succeeded."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpusched.shards.on_disk import ShardRun
from tests.support.merging import FORMATS, dealt, merge, write_plan

Capture = pytest.CaptureFixture[str]
torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")


def strided_plan(tmp_path: Path, total: int, n: int, *patterns: str, **more: Any) -> Path:
    plan = write_plan(tmp_path / "p.json", total, n, "", strategy="strided", **more)
    document = json.loads(plan.read_text())
    for shard in document["shards"]:
        shard["outputs"] = [f"{tmp_path}/{pattern.format(**shard)}" for pattern in patterns]
    plan.write_text(json.dumps(document))
    return plan


def write(path: Path, value: dict[str, list[Any]]) -> None:
    if path.suffix == ".pt":
        torch.save({key: torch.tensor(held) for key, held in value.items()}, path)
    elif path.suffix == ".npz":
        np.savez(path, **{key: np.array(held) for key, held in value.items()})
    else:
        from safetensors.torch import save_file

        save_file({key: torch.tensor(held) for key, held in value.items()}, path)


@pytest.mark.parametrize("form", ["pt", "npz", "safetensors"])
@pytest.mark.parametrize("seed", [None, 3])
def test_keys_of_which_one_has_no_row_for_each_item_are_refused(
    tmp_path: Path, capsys: Capture, form: str, seed: int | None
) -> None:
    for i, items in enumerate(dealt(12, 3, "strided", seed)):
        held = {"ids": items, "lengths": [n + 1 for n in items], "tokens": [n for n in items for _ in range(n + 1)]}
        write(tmp_path / f"x_gpu_{i}.{form}", held)
    plan = strided_plan(tmp_path, 12, 3, f"*_{{suffix}}.{form}", seed=seed)
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "the order of the items can be restored in some of it (x_merged" in said.err, said
    assert "'tokens': " in said.err and "rows for 4 items in x_gpu_0" in said.err, said
    assert not list(tmp_path.glob("*merged*"))


@pytest.mark.parametrize("form", ["pt", "npz", "safetensors"])
def test_a_key_that_is_empty_in_one_part_is_not_in_the_order_of_the_items(
    tmp_path: Path, capsys: Capture, form: str
) -> None:
    for i, items in enumerate(dealt(12, 3, "strided", None)):
        write(tmp_path / f"x_gpu_{i}.{form}", {"ids": items, "more": [] if i == 1 else items})
    said = merge(capsys, "--plan", strided_plan(tmp_path, 12, 3, f"*_{{suffix}}.{form}"))
    assert said.code == 1 and "'more': 0 rows for 4 items in x_gpu_1" in said.err, said


def test_outputs_of_which_one_has_no_row_for_each_item_are_refused(tmp_path: Path, capsys: Capture) -> None:
    for i, items in enumerate(dealt(12, 3, "strided", None)):
        np.save(tmp_path / f"x_gpu_{i}.npy", np.array(items))
        (tmp_path / f"y_gpu_{i}.jsonl").write_text("".join(f"{n}\n" * (1 + (n == 5)) for n in items))
    plan = strided_plan(tmp_path, 12, 3, "x_{suffix}.npy", "y_{suffix}.jsonl")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "y_merged.jsonl: 5 rows for 4 items in y_gpu_2.jsonl" in said.err, said
    assert not list(tmp_path.glob("*merged*"))
    (tmp_path / "y_gpu_2.jsonl").write_text("2\n5\n8\n11\n")
    assert merge(capsys, "--plan", plan).code == 0
    assert np.load(tmp_path / "x_merged.npy").tolist() == list(range(12))
    assert (tmp_path / "y_merged.jsonl").read_text().split() == [str(n) for n in range(12)]
    assert json.loads((tmp_path / "y_merged_metadata.json").read_text())["order"] == "the items' own order"


def test_parts_without_rows_for_the_items_stand_by_their_shards_and_say_so(tmp_path: Path, capsys: Capture) -> None:
    for i, items in enumerate(dealt(12, 3, "strided", None)):
        torch.save({"tokens": [n for n in items for _ in range(2)], "loss": float(i)}, tmp_path / f"x_gpu_{i}.pt")
    said = merge(capsys, "--plan", strided_plan(tmp_path, 12, 3, "*_{suffix}.pt"))
    assert said.code == 0 and "'tokens': 8 rows for 4 items in x_gpu_0.pt, so the parts stand one" in said.err, said
    order = json.loads((tmp_path / "x_merged_metadata.json").read_text())["order"]
    assert order == "the parts one after the other, by their shards"


@pytest.mark.parametrize("form", ["npy", "npz", "pt", "safetensors"])
def test_a_part_without_rows_decides_no_type_and_no_shape(tmp_path: Path, capsys: Capture, form: str) -> None:
    arrays = [np.empty((0, 7)), np.array([[1, 2], [3, 4]]), np.empty(0)]
    paths = [tmp_path / f"p{n}.{form}" for n in range(3)]
    for path, array in zip(paths, arrays, strict=True):
        if form == "npy":
            np.save(path, array)
        else:
            write(path, {"x": array.tolist() if array.size else array})
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *paths)
    assert said.code == 0, said
    if form == "npy":
        found = np.load(tmp_path / "all.npy")
    elif form == "npz":
        found = np.load(tmp_path / "all.npz")["x"]
    else:
        from safetensors.torch import load_file

        found = (torch.load if form == "pt" else load_file)(tmp_path / f"all.{form}")["x"].numpy()
    assert found.tolist() == [[1, 2], [3, 4]] and found.dtype == np.int64


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_a_part_without_rows_takes_no_part_in_a_sum(tmp_path: Path, capsys: Capture, form: str) -> None:
    paths = [tmp_path / f"p{n}.{form}" for n in range(3)]
    for path, array in zip(paths, [np.empty((0, 7)), [[1, 2], [3, 4]], [[10, 20], [30, 40]]], strict=True):
        write(path, {"hist": array})
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *paths, "--sum", "hist")
    assert said.code == 0 and f"p0.{form}: 'hist' is empty" in said.err, said
    found = (torch.load if form == "pt" else np.load)(tmp_path / f"all.{form}")["hist"]
    assert found.tolist() == [[11, 22], [33, 44]] and str(found.dtype).endswith("int64")


# ---- whose file it is ------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, ShardRun]:
    """The attempts that the queue of a plan has."""
    from gpusched.commands.merge import plan

    held: dict[str, ShardRun] = {}
    monkeypatch.setattr(plan, "read_runs", lambda path: held)
    return held


def part(path: Path, items: list[int], age_s: float) -> Path:
    path.write_text("".join(f"{item}\n" for item in items))
    os.utime(path, (time.time() - age_s, time.time() - age_s))
    return path


def test_the_file_of_a_failed_attempt_is_not_merged(tmp_path: Path, capsys: Capture, runs: dict[str, ShardRun]) -> None:
    now = time.time()
    for i in range(3):
        part(tmp_path / f"t_m_20240101_12000{i}_gpu_{i}.txt", [2 * i, 2 * i + 1], 40)
        runs[f"gpu_{i}"] = ShardRun(1, now - 50, now - 39)
    part(tmp_path / "t_m_20240101_120100_gpu_1.txt", [2, 3], 10)
    runs["gpu_1"] = ShardRun(2, now - 20, now - 9)
    part(tmp_path / "t_m_20240101_120001_gpu_1.txt", [99], 40)
    plan = write_plan(tmp_path / "p.json", 6, 3, f"{tmp_path}/t_m_*_{{suffix}}.txt")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and "t_m_20240101_120001_gpu_1.txt: of an attempt that failed" in said.err, said
    (out,) = tmp_path.glob("*merged.txt")
    assert out.name == "t_m_20240101_merged.txt" and out.read_text().split() == [str(n) for n in range(6)]


def test_an_older_file_of_a_shard_counts_if_its_records_fit(
    tmp_path: Path, capsys: Capture, runs: dict[str, ShardRun]
) -> None:
    now = time.time()
    for i in range(2):
        part(tmp_path / f"x_gpu_{i}.txt", [2 * i, 2 * i + 1], 40)
        runs[f"gpu_{i}"] = ShardRun(2, now - 20, now - 9)
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/x_{{suffix}}.txt")
    said = merge(capsys, "--plan", plan)
    assert said.code == 0 and "x_gpu_0.txt: 2 records of 2 items, written before the attempt that" in said.err
    part(tmp_path / "x_gpu_0.txt", [0, 1, 0], 40)
    said = merge(capsys, "--plan", plan, "--overwrite")
    assert (
        said.code == 1 and "x_gpu_0.txt: 3 records of 2 items, written before" in said.err and "INCOMPLETE" in said.out
    )


def test_more_records_than_items_after_several_attempts_are_an_error(
    tmp_path: Path, capsys: Capture, runs: dict[str, ShardRun]
) -> None:
    now = time.time()
    for i in range(2):
        part(tmp_path / f"x_gpu_{i}.txt", [2 * i, 2 * i + 1] * (1 + i), 10)
        runs[f"gpu_{i}"] = ShardRun(1 + i, now - 20, now - 9)
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/x_{{suffix}}.txt")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "x_gpu_1.txt: 4 records of 2 items, and its shard had 2 attempts" in said.err
    assert json.loads((tmp_path / "x_merged_metadata.json").read_text())["complete"] is False
    assert merge(capsys, "--plan", plan, "--expect", 6).code == 0, "they are meant"
    runs.clear()
    assert merge(capsys, "--plan", plan).code == 0


@pytest.mark.parametrize("form", ["pt", "npz", "safetensors"])
@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"ids": [2, 3, 2, 3], "flat": [1] * 9}, "x_gpu_1.FORM: 4 records of 2 items, and its shard had 2 attempts"),
        ({"ids": [2, 3], "flat": [1] * 9}, ""),  # many rows of what is no item
        ({"ids": [2, 3, 2], "flat": [1] * 3}, "x_gpu_1.FORM: 3 records of 2 items"),
    ],
)
def test_more_rows_than_items_inside_a_dict_are_records_too(
    tmp_path: Path, capsys: Capture, runs: dict[str, ShardRun], form: str, second: dict[str, list[int]], why: str
) -> None:
    for i, value in enumerate(({"ids": [0, 1], "flat": [1] * 5}, second)):
        write(tmp_path / f"x_gpu_{i}.{form}", value)
        runs[f"gpu_{i}"] = ShardRun(1 + i, time.time() - 20)
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/x_{{suffix}}.{form}")
    said = merge(capsys, "--plan", plan)
    assert said.code == (1 if why else 0) and why.replace("FORM", form) in said.err, said
    assert ("INCOMPLETE" in said.out) == bool(why)


def test_where_no_length_is_that_of_the_items_what_all_lists_have_is_the_count(
    tmp_path: Path, capsys: Capture, runs: dict[str, ShardRun]
) -> None:
    for i in range(2):
        torch.save({"trees": [i] * 4, "ok": [True] * 4}, tmp_path / f"x_gpu_{i}.pt")
        runs[f"gpu_{i}"] = ShardRun(2, time.time() - 20)
    plan = write_plan(tmp_path / "p.json", 4, 2, f"{tmp_path}/x_{{suffix}}.pt")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and said.err.count("4 records of 2 items, and its shard had 2 attempts") == 2, said
    assert merge(capsys, "--plan", plan, "--expect", 8).code == 0
    torch.save({"trees": [0], "ok": [True] * 3}, tmp_path / "x_gpu_0.pt")
    os.utime(tmp_path / "x_gpu_0.pt", (time.time() - 40, time.time() - 40))
    said = merge(capsys, "--plan", plan, "--overwrite")
    assert said.code == 1 and "x_gpu_0.pt: no count of records of 2 items, written before the attempt" in said.err, said


@pytest.mark.parametrize("form", FORMATS)
def test_one_file_for_each_shard_is_one_output_whatever_the_wildcard_stands_for(
    tmp_path: Path, capsys: Capture, form: str
) -> None:
    save, read = FORMATS[form]
    for i, items in enumerate(dealt(9, 3, "contiguous", None)):
        save(tmp_path / f"gsm8k_beam_20240101_23595{i}_gpu_{i}.{form}", items)
    said = merge(capsys, "--plan", write_plan(tmp_path / "p.json", 9, 3, f"{tmp_path}/gsm8k_*_{{suffix}}.{form}"))
    assert said.code == 0, said
    assert read(tmp_path / f"gsm8k_beam_20240101_merged.{form}") == list(range(9))


# ---- NumPy in .pt, and accuracies ------------------------------------------------------------------


def test_plain_arrays_and_scalars_of_numpy_need_no_trust(tmp_path: Path, capsys: Capture) -> None:
    for i in range(2):
        arrays = {"x": np.array([[i, 1.5]]), "t": np.array([f"é{i}"]), "n": np.array([i]), "w": torch.ones(1, 2)}
        torch.save(
            {**arrays, "loss": np.float64(0.5), "k": np.int64(2 + i), "b": np.bool_(True)}, tmp_path / f"p{i}.pt"
        )
    said = merge(capsys, "-o", tmp_path / "all.pt", tmp_path / "p0.pt", tmp_path / "p1.pt", "--sum", "k")
    assert said.code == 0, said
    found = torch.load(tmp_path / "all.pt", weights_only=False)
    assert found["x"].tolist() == [[0, 1.5], [1, 1.5]] and found["x"].dtype == np.float64
    assert found["t"].tolist() == ["é0", "é1"] and found["n"].tolist() == [0, 1] and found["w"].shape == (2, 2)
    assert found["loss"] == 0.5 and found["k"] == 5 and found["b"]
    torch.save({"x": torch.zeros(1, 2), "loss": np.float64(0.5)}, tmp_path / "p1.pt")
    said = merge(capsys, "-o", tmp_path / "more.pt", tmp_path / "p0.pt", tmp_path / "p1.pt")
    assert said.code == 1 and "'x' is float32, rows of (2,), and NumPy float64, rows of (2,)" in said.err
    torch.save({"x": np.array(["a"], dtype=object)}, tmp_path / "p1.pt")
    said = merge(capsys, "-o", tmp_path / "more.pt", tmp_path / "p1.pt")
    assert said.code == 1 and "which is not loaded without trust; --allow-pickle" in said.err, said


@pytest.mark.parametrize(
    ("left", "right", "value", "weight", "name"),
    [
        ({"accuracy": 1.0, "num_questions": 90}, {"accuracy": 0.0, "num_questions": 10}, 0.9, 100, "num_questions"),
        (
            {"accuracy": 1.0, "num_samples": 90, "count": 1},
            {"accuracy": 0.0, "count": 10},
            0.9,
            100,
            "num_samples/count",
        ),
        ({"accuracy": 1.0, "answered": 90}, {"accuracy": 0.0, "answered": 10}, 2 / 3, 3, "items"),
    ],
)
def test_accuracies_are_weighted_by_the_count_beside_them(
    tmp_path: Path,
    capsys: Capture,
    left: dict[str, float],
    right: dict[str, float],
    value: float,
    weight: int,
    name: str,
) -> None:
    for i, values in enumerate((left, right)):
        torch.save({"trees": [{"nodes": i}] * (2 - i), **values}, tmp_path / f"x_gpu_{i}.pt")
    plan = write_plan(tmp_path / "p.json", 3, 2, f"{tmp_path}/*_{{suffix}}.pt")
    assert merge(capsys, "--plan", plan).code == 0
    held = json.loads((tmp_path / "x_merged_metadata.json").read_text())
    assert held["overall"] == {"accuracy": {"value": pytest.approx(value), "weight": weight, "weighted_by": name}}
    assert [one["metadata"]["accuracy"] for one in held["parts"]] == [1.0, 0.0]


def test_an_accuracy_without_a_weight_is_none_over_all(tmp_path: Path, capsys: Capture) -> None:
    for i in range(2):
        torch.save({"x": [i], "accuracy": i / 2}, tmp_path / f"p{i}.pt")
    assert merge(capsys, "-o", tmp_path / "all.pt", tmp_path / "p0.pt", tmp_path / "p1.pt").code == 0
    assert json.loads((tmp_path / "all_merged_metadata.json").read_text())["overall"] == {}
