"""Columns of tables: their types, categories and names, and parts that have no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.merging import Said, merge

Capture = pytest.CaptureFixture[str]
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def parquet(tmp_path: Path, capsys: Capture, *tables: Any, words: tuple[str, ...] = ()) -> tuple[Said, Any]:
    paths = [tmp_path / f"p{number}.parquet" for number in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    out = tmp_path / "all.parquet"
    said = merge(capsys, "-o", out, *paths, *words, "--overwrite")
    return said, pq.read_table(out) if said.code == 0 else None


def categories(values: list[str | None], order: list[str], *, ordered: bool) -> Any:
    codes = pa.array([None if value is None else order.index(value) for value in values], pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(order), ordered=ordered)


def test_categories_and_plain_text_become_text(tmp_path: Path, capsys: Capture) -> None:
    encoded = pa.table({"id": [0, 1], "label": pa.array(["x", "y"]).dictionary_encode()})
    plain = pa.table({"id": [2], "label": ["z"]})
    for tables, right in (((encoded, plain), ["x", "y", "z"]), ((plain, encoded), ["z", "x", "y"])):
        said, found = parquet(tmp_path, capsys, *tables)
        assert said.code == 0 and found["label"].to_pylist() == right, said
        assert found["label"].type == pa.string() and "'label': its categories differ" in said.err
    said, found = parquet(tmp_path, capsys, encoded, encoded)
    assert found["label"].to_pylist() == ["x", "y", "x", "y"] and pa.types.is_dictionary(found["label"].type)


def test_ordered_categories_become_text(tmp_path: Path, capsys: Capture) -> None:
    one = pa.table({"g": categories(["low", "high"], ["low", "mid", "high"], ordered=True)})
    other = pa.table({"g": categories(["mid", None], ["low", "mid", "high"], ordered=True)})
    said, found = parquet(tmp_path, capsys, one, other)
    assert said.code == 0 and found["g"].type == pa.string() and "'g': its categories have an order" in said.err, said
    assert found["g"].to_pylist() == ["low", "high", "mid", None]
    other = pa.table({"g": categories(["mid", "low"], ["high", "mid", "low"], ordered=True)})
    said, found = parquet(tmp_path, capsys, one, other)
    assert said.code == 0 and found["g"].type == pa.string() and "'g': its categories have an order" in said.err
    assert found["g"].to_pylist() == ["low", "high", "mid", "low"]


def test_a_parquet_part_without_rows_decides_no_type(tmp_path: Path, capsys: Capture) -> None:
    empty = pa.table({"id": pa.array([], pa.string()), "more": pa.array([], pa.int64())})
    rows = pa.table({"id": [1, 2]})
    for tables in ((empty, rows), (rows, empty)):
        said, found = parquet(tmp_path, capsys, *tables)
        assert said.code == 0 and found.equals(rows), said
    said, found = parquet(tmp_path, capsys, empty, empty)
    assert said.code == 0 and found.schema == empty.schema


def test_whole_numbers_and_floats_are_joined_where_no_value_changes_if_that_is_asked_for(
    tmp_path: Path, capsys: Capture
) -> None:
    whole = pa.table({"n": pa.array([1, 2], pa.int64())})
    floats = pa.table({"n": pa.array([3.0, None], pa.float64())})  # as pandas makes them of whole numbers and nulls
    said, _ = parquet(tmp_path, capsys, whole, floats)
    assert said.code == 1 and "column 'n' is" in said.err and "--promote joins both" in said.err
    said, found = parquet(tmp_path, capsys, whole, floats, words=("--promote",))
    assert said.code == 0 and found["n"].to_pylist() == [1, 2, 3, None], said
    large = pa.table({"n": pa.array([5, 2**53 + 1], pa.int64())})
    said, _ = parquet(tmp_path, capsys, whole, large, floats, words=("--promote",))
    assert said.code == 1 and "p1.parquet: column 'n', row 2: 9007199254740993 is not exact in double" in said.err, said
    said, _ = parquet(tmp_path, capsys, whole, pa.table({"n": ["a"]}), words=("--promote",))
    assert said.code == 1 and "n" in said.err


def tables(tmp_path: Path, capsys: Capture, *texts: str, words: tuple[str, ...] = ()) -> tuple[Said, str]:
    paths = [tmp_path / f"p{number}.csv" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    out = tmp_path / "all.csv"
    out.unlink(missing_ok=True)
    said = merge(capsys, "-o", out, *paths, *words, "--overwrite")
    return said, out.read_text() if out.exists() else ""


def test_a_first_row_of_numbers_is_no_header_unless_that_is_stated(tmp_path: Path, capsys: Capture) -> None:
    texts = ("0,1\n1,1\n", "0,1\n2,2\n")
    said, found = tables(tmp_path, capsys, *texts)
    assert said.code == 1 and not found and "p0.csv: its first row looks like data" in said.err, said
    assert "--header yes or --header no" in said.err
    said, found = tables(tmp_path, capsys, *texts, words=("--header", "no"))
    assert said.code == 0 and found == "0,1\n1,1\n0,1\n2,2\n" and "4 records" in said.out
    said, found = tables(tmp_path, capsys, *texts, words=("--header", "yes"))
    assert said.code == 0 and found == "0,1\n1,1\n2,2\n"
    said, found = tables(tmp_path, capsys, "a,1\nb,2\n")
    assert said.code == 0 and found == "a,1\nb,2\n"


def test_a_table_without_rows_decides_no_columns(tmp_path: Path, capsys: Capture) -> None:
    said, found = tables(tmp_path, capsys, "x,y\n", "a,b\n1,2\n")
    assert said.code == 0 and found == "a,b\n1,2\n", said
    said, found = tables(tmp_path, capsys, "a,b\n", "a,b\n")
    assert said.code == 0 and found == "a,b\n"
