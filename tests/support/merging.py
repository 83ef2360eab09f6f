"""What the tests of merging share: the stage called in this process, plans, and each format written and read back."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusched.commands.merge.__main__ import main

from gpusched.shards.split import shuffled, split_range, strided_positions


@dataclass(frozen=True)
class Said:
    """What a merge said, and its exit code."""

    code: int
    out: str
    err: str


def merge(capsys: Any, *words: object) -> Said:
    """One merge in this process."""
    capsys.readouterr()
    code = main([str(word) for word in words])
    told = capsys.readouterr()
    return Said(code, told.out, told.err)


# ---- plans -----------------------------------------------------------------------------------------


def dealt(total: int, n: int, strategy: str, seed: int | None) -> list[list[int]]:
    """The items of each shard, in the order in which its script sees them."""
    line = list(range(total)) if seed is None else shuffled(total, seed)
    if strategy == "strided":
        return [[line[position] for position in strided_positions(total, n, i)] for i in range(n)]
    return [line[start:end] for start, end in split_range(total, n)]


def write_plan(
    path: Path,
    total: int,
    n: int,
    pattern: str,
    *,
    strategy: str = "contiguous",
    seed: int | None = None,
    created_at: float | None = None,
    **asked: object,
) -> Path:
    """A plan as gpusched shard writes it; {suffix}, {shard}, {start}, {end}, {seed} in the pattern are each shard's."""
    shards = []
    for i, (start, end) in enumerate(split_range(total, n)):
        count = len(strided_positions(total, n, i)) if strategy == "strided" else end - start
        suffix = f"gpu_{i}"
        shards.append(
            {"shard": i, "suffix": suffix, "start": start, "end": end, "count": count, "seed": 100 + i}
            | {
                "items_file": None,
                "outputs": [pattern.format(suffix=suffix, shard=i, start=start, end=end, seed=100 + i)],
            }
        )
    plan = {
        "version": 1,
        "created_at": time.time() - 60 if created_at is None else created_at,
        "total": total,
        "order": "given" if seed is None else "shuffled",
        "shuffle_seed": seed,
        "strategy": strategy,
        "num_shards": n,
        "items": None,
        "command": "python run.py --token hf_abcdefghijklmnopqrst",
        "merge": {"output": None, "sum": [], "key": None, "on_duplicate": None, "by": "given", "allow_partial": False}
        | asked,
        "shards": shards,
    }
    path.write_text(json.dumps(plan))
    return path


# ---- formats ---------------------------------------------------------------------------------------


def _write_npz(path: Path, items: list[int]) -> None:
    import numpy as np

    np.savez(path, x=np.array(items, dtype=np.int64), y=np.array([[i, -i] for i in items], float).reshape(-1, 2))


def _read_npz(path: Path) -> list[int]:
    import numpy as np

    with np.load(path) as found:
        assert found["y"][:, 0].astype(int).tolist() == found["x"].tolist()
        return [int(i) for i in found["x"]]


def _write_npy(path: Path, items: list[int]) -> None:
    import numpy as np

    np.save(path, np.array([[i, i + 1] for i in items], dtype=np.int32).reshape(-1, 2))


def _read_npy(path: Path) -> list[int]:
    import numpy as np

    return [int(i) for i in np.load(path)[:, 0]]


def _write_safetensors(path: Path, items: list[int]) -> None:
    import torch
    from safetensors.torch import save_file

    rows = torch.tensor([[i, i] for i in items], dtype=torch.float32).reshape(-1, 2)
    save_file({"x": torch.tensor(items, dtype=torch.int64), "w": rows.bfloat16()}, path)


def _read_safetensors(path: Path) -> list[int]:
    from safetensors.torch import load_file

    found = load_file(path)
    assert found["w"][:, 0].long().tolist() == found["x"].tolist()
    return [int(i) for i in found["x"]]


def _write_pt(path: Path, items: list[int]) -> None:
    import torch

    torch.save({"x": torch.tensor(items, dtype=torch.int64), "names": [str(i) for i in items], "lr": 0.5}, path)


def _read_pt(path: Path) -> list[int]:
    import torch

    found = torch.load(path, weights_only=True)
    assert found["names"] == [str(int(i)) for i in found["x"]] and found["lr"] == 0.5
    return [int(i) for i in found["x"]]


def _write_parquet(path: Path, items: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": pa.array(items, pa.int64()), "name": pa.array(map(str, items), pa.string())}), path)


def _read_parquet(path: Path) -> list[int]:
    import pyarrow.parquet as pq

    found = pq.read_table(path).to_pydict()
    assert found["name"] == [str(i) for i in found["id"]]
    return [int(i) for i in found["id"]]


def _write_table(delimiter: str) -> Callable[[Path, list[int]], None]:
    def write(path: Path, items: list[int]) -> None:
        with open(path, "w", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows([["id", "text"], *([i, f"a\n{i}"] for i in items)])

    return write


def _read_table(delimiter: str) -> Callable[[Path], list[int]]:
    def read(path: Path) -> list[int]:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file, delimiter=delimiter))
        assert [row["text"] for row in rows] == [f"a\n{row['id']}" for row in rows]
        return [int(row["id"]) for row in rows]

    return read


def _write_jsonl(path: Path, items: list[int]) -> None:
    path.write_text("".join(json.dumps({"id": i, "t": "é\n"}, ensure_ascii=i % 2 == 0) + "\n" for i in items))


Write = Callable[[Path, list[int]], object]
Read = Callable[[Path], list[int]]
FORMATS: dict[str, tuple[Write, Read]] = {
    "jsonl": (_write_jsonl, lambda path: [json.loads(line)["id"] for line in path.read_text().splitlines()]),
    "json": (
        lambda path, items: path.write_text(json.dumps([{"id": i} for i in items], indent=1)),
        lambda path: [found["id"] for found in json.loads(path.read_text())],
    ),
    "txt": (
        lambda path, items: path.write_text("\n".join(map(str, items))),
        lambda path: [int(line) for line in path.read_text().split()],
    ),
    "csv": (_write_table(","), _read_table(",")),
    "tsv": (_write_table("\t"), _read_table("\t")),
    "npy": (_write_npy, _read_npy),
    "npz": (_write_npz, _read_npz),
    "safetensors": (_write_safetensors, _read_safetensors),
    "parquet": (_write_parquet, _read_parquet),
    "pt": (_write_pt, _read_pt),
}
