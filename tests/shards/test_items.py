"""Items files: what is an item of each format, and that a shard's file holds its items and nothing else."""

from __future__ import annotations

import csv
import io
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.common.errors import GpuschedError
from gpusched.common.item_files import NumberItems, open_items
from gpusched.common.text import natural_key
from gpusched.shards.files import read_plan, write_items, write_plan
from gpusched.shards.outputs import check_formats, output_matcher
from gpusched.shards.plan import SplitOptions
from gpusched.shards.sizing import make_plan

ANYWHERE = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(tmp_path: Path, name: str, data: bytes) -> str:
    (tmp_path / name).write_bytes(data)
    return str(tmp_path / name)


def shard_of(items: Any, tmp_path: Path, own: Any) -> bytes:
    path = str(tmp_path / "shard")
    write_items(items, str(tmp_path / "items"), [(path, own)], only_missing=False)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    return Path(path).read_bytes()


def test_lines_are_items_but_empty_ones(tmp_path: Path) -> None:
    items = open_items(written(tmp_path, "list", b"\xef\xbb\xbfa b\n\n  \nc\r\nlast"))
    assert (items.count, items.suffix) == (3, ".txt")
    assert shard_of(items, tmp_path, [2, 0]) == b"last\na b\n"
    assert shard_of(items, tmp_path, range(1, 2)) == b"c\r\n"


def test_no_items(tmp_path: Path) -> None:
    for name, data in (("list", b""), ("a.jsonl", b"\n\n"), ("a.csv", b"x,y\n"), ("b.csv", b"")):
        assert open_items(written(tmp_path, name, data)).count == 0


def test_json_lines(tmp_path: Path) -> None:
    items = open_items(written(tmp_path, "a.jsonl", b'{"n": 3}\n{"n": "1.5"}\n{"m": 1}'))
    assert items.count == 3
    assert shard_of(items, tmp_path, range(1, 3)) == b'{"n": "1.5"}\n{"m": 1}\n'


def test_records_of_a_table(tmp_path: Path) -> None:
    text = 'id;note;w\r\n1;"two\r\nlines; "";""";2\r\n\r\n2;plain;0\r\n3;last;1e1'
    items = open_items(written(tmp_path, "a.csv", text.encode()))
    assert items.count == 3
    assert shard_of(items, tmp_path, [2, 0]).decode() == ('id;note;w\r\n3;last;1e1\r\n1;"two\r\nlines; "";""";2\r\n')
    with pytest.raises(GpuschedError, match="line 2"):
        open_items(written(tmp_path, "b.csv", b'a,b\n1,"x" y\n'))


def test_a_record_of_empty_cells_is_an_item_and_a_blank_line_is_none(tmp_path: Path) -> None:
    items = open_items(written(tmp_path, "a.csv", b"a,b,c\n1,2,3\n,,\n\n  \n4,5,6\n"))
    assert items.count == 3
    assert shard_of(items, tmp_path, [1, 2]) == b"a,b,c\n,,\n4,5,6\n"


def test_what_a_spreadsheet_adds_is_no_item(tmp_path: Path) -> None:
    text = "\ufeffsep=;\r\n# made by hand\r\nid;t\r\n0;a\r\nid;t\r\n1;b\r\n"
    items = open_items(written(tmp_path, "a.csv", text.encode()))
    assert items.count == 2
    assert shard_of(items, tmp_path, [1]) == b"id;t\r\n1;b\r\n"
    assert items.notes == ["line 5 repeats the names of the columns and is left out"]
    for name, data, says in (
        ("u.csv", "id\n1\n".encode("utf-16"), "UTF-16"),
        ("u.txt", "한\n글 abc\n".encode("utf-16-be"), "UTF-16BE"),
        ("r.txt", b"a\rb\r", r"\\r alone"),
        ("w.csv", b"a,b\n1,2\n3\n", "line 3 has 1 field"),
    ):
        with pytest.raises(GpuschedError, match=says):
            open_items(written(tmp_path, name, data))


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8)


@ANYWHERE
@given(st.lists(st.tuples(CELLS, CELLS), max_size=12), st.sampled_from(["\n", "\r\n"]), st.integers(1, 4))
def test_the_records_of_the_shards_are_those_of_the_table(
    tmp_path: Path, rows: list[tuple[str, str]], end: str, n: int
) -> None:
    whole = io.StringIO()
    csv.writer(whole, lineterminator=end).writerows([("é", "b"), *((f"x{a}", b) for a, b in rows)])
    items = open_items(written(tmp_path, "a.csv", whole.getvalue().encode()))
    assert items.count == len(rows)
    found = []
    for shard in range(n):
        text = shard_of(items, tmp_path, range(shard, len(rows), n)).decode()
        head, *own = list(csv.reader(io.StringIO(text, newline="")))
        assert head == ["é", "b"]
        found += [(row[0][1:], row[1]) for row in own]
    assert found == [row for shard in range(n) for row in rows[shard::n]]


def test_the_directory_that_a_pattern_starts_from_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run [1] *" / "in").mkdir(parents=True)
    (tmp_path / "run [1] *" / "in" / "a.wav").touch()
    monkeypatch.chdir(tmp_path / "run [1] *")
    items = open_items("./in/*.wav")
    assert shard_of(items, tmp_path, range(1)).decode() == f"{tmp_path}/run [1] */in/a.wav\n"
    monkeypatch.chdir(tmp_path / "run [1] *" / "in")
    assert open_items("../in/*.wav").count == 1


def test_files_are_items_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for n, name in enumerate(("x10.wav", "x9.wav", "deep/a.wav", "é 1.wav")):
        (tmp_path / "in" / name).write_bytes(b"x" * n)
    items = open_items(str(tmp_path / "in/*.wav"))
    assert shard_of(items, tmp_path, range(3)).decode().split("\n") == [
        *(f"{tmp_path}/in/{name}" for name in ("x9.wav", "x10.wav", "é 1.wav")),
        "",
    ]
    assert open_items(str(tmp_path / "in/**/*.wav")).count == 4
    (tmp_path / "in" / "b\nc.wav").touch()
    with pytest.raises(GpuschedError, match="there is a newline in this name"):
        open_items(str(tmp_path / "in/*.wav"))


def test_rows_of_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"t": ["a", "b", "c"], "w": [1, 2.5, 0]}), tmp_path / "a.parquet")
    items = open_items(str(tmp_path / "a.parquet"))
    assert items.count == 3
    for own, rows in ((range(1, 3), ["b", "c"]), ([2, 0], ["c", "a"]), (range(0, 3, 2), ["a", "c"])):
        shard_of(items, tmp_path, own)
        assert parquet.read_table(tmp_path / "shard").column("t").to_pylist() == rows
    with pytest.raises(GpuschedError, match="not a readable parquet file"):
        open_items(written(tmp_path, "b.parquet", b"PAR1"))


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.json", b"[1]", r"items cannot be read from \.json"),
        ("a.jsonl.gz", b"x", r"items cannot be read from \.gz"),
        ("a.txt", b"a\0b", "not a text file"),
    ],
)
def test_what_holds_no_items(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    with pytest.raises(GpuschedError, match=why):
        open_items(written(tmp_path, name, data))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GpuschedError, match="there is no such file"):
        open_items(str(tmp_path / "none"))
    with pytest.raises(GpuschedError, match="no file matches"):
        open_items(str(tmp_path / "none*"))
    with pytest.raises(GpuschedError, match="no regular file"):
        open_items(str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GpuschedError, match="no regular file"):
        open_items(str(tmp_path / "pipe"))


@given(st.lists(st.text("a01\u0661_-/", max_size=6), max_size=8))
def test_names_have_a_natural_order_whatever_they_are(names: list[str]) -> None:
    names.sort(key=natural_key)
    again = names[::-1]
    again.sort(key=natural_key)
    assert again == names


def test_numbers_in_names_go_by_their_value() -> None:
    names = ["run", "run02", "run2", "run10", "run" + "9" * 5000, "run1" + "0" * 5000, "runs"]
    found = list(reversed(names))
    found.sort(key=natural_key)
    assert found == names


def test_other_items_have_another_digest(tmp_path: Path) -> None:
    one, two = (open_items(written(tmp_path, "a", data)).digest for data in (b"a\nb\n", b"a\nc\n"))
    assert one != two


def test_items_files_are_written_once_and_what_is_missing_is_made_good(tmp_path: Path) -> None:
    items = NumberItems(6)
    wanted = [(str(tmp_path / "items" / f"{n}.txt"), range(n, 6, 2)) for n in (0, 1)]
    write_items(items, str(tmp_path / "items"), wanted, only_missing=False)
    assert stat.S_IMODE(os.stat(tmp_path / "items").st_mode) == 0o700
    assert (tmp_path / "items" / "1.txt").read_text() == "1\n3\n5\n"
    (tmp_path / "items" / "0.txt").unlink()
    (tmp_path / "items" / "1.txt").write_text("kept")
    write_items(items, str(tmp_path / "items"), wanted, only_missing=True)
    assert [Path(path).read_text() for path, _ in wanted] == ["0\n2\n4\n", "kept"]
    (tmp_path / "items" / "0.txt.tmp77").touch()  # of a start that was killed
    write_items(items, str(tmp_path / "items"), wanted, only_missing=True)
    assert sorted(os.listdir(tmp_path / "items")) == ["0.txt", "1.txt"]


def test_the_plan_is_for_this_user_alone_and_no_link_is_followed(tmp_path: Path) -> None:
    queue = str(tmp_path)
    assert read_plan(queue) is None
    plan = make_plan(5, SplitOptions(), 2, 2)
    write_plan(queue, plan)
    assert read_plan(queue) == replace(plan, inputs={})
    path = tmp_path / "shard_plan.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("{")
    with pytest.raises(GpuschedError, match="cannot be read"):
        read_plan(queue)
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(GpuschedError, match="cannot be read"):
        read_plan(queue)


def test_what_the_run_writes_is_no_item(tmp_path: Path) -> None:
    outputs = ["x_gpu_0.jsonl", "x_shard_00003.jsonl", "x_merged.jsonl", "x_merged_metadata.json", "all.jsonl"]
    for name in ("a.jsonl", "x_gpu.jsonl", "b_gpu_0.jsonl", *outputs, "all_merged_metadata.json", "o/y_0_5.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    patterns = ["x_{suffix}.jsonl", "{output_dir}/y_{start}_*.jsonl"]
    is_output = output_matcher(patterns, f"{tmp_path}/o", f"{tmp_path}/all.jsonl", str(tmp_path))
    items = open_items(f"{tmp_path}/**/*.json*", is_output)
    left = items.open()(range(items.count)).decode().split()
    assert [Path(path).name for path in left] == ["a.jsonl", "b_gpu_0.jsonl", "x_gpu.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "outputs"),
    [
        ("a/x_{suffix}.jsonl", ["in/x_merged.jsonl", "in/x_merged_metadata.json", "in/x_merged.jsonl.incomplete"]),
        ("a/{suffix}/x.jsonl", ["in/x_merged.jsonl", "in/x_merged_metadata.json"]),
        ("a/x_{start}_{end}.csv", ["in/x_merged.csv"]),
        ("a/{seed}_{suffix}.csv", ["in/merged.csv", "in/merged_metadata.json"]),
        ("a/*_{suffix}_b2.pt", ["in/gsm_merged_b2.pt", "in/gsm_merged_b2_merged_metadata.json"]),
    ],
)
@pytest.mark.parametrize("is_directory", [True, False])
def test_merged_files_are_no_items(tmp_path: Path, pattern: str, outputs: list[str], is_directory: bool) -> None:
    for name in ("in/a.jsonl", "in/old_merged.txt", "in/y_merged.jsonl", *outputs):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    output = f"{tmp_path}/in" if is_directory else None
    patterns = [pattern if is_directory else pattern.replace("a/", "in/")]
    items = open_items(f"{tmp_path}/in/**", output_matcher(patterns, "", output, str(tmp_path)))
    left = items.open()(range(items.count)).decode().split()
    assert [Path(path).name for path in left] == ["a.jsonl", "old_merged.txt", "y_merged.jsonl"]


def test_lines_of_standard_input_are_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n\nb c\nd")))
    items = open_items("-")
    assert items.count == 3 and items.open()([2, 0]) == b"d\na\n"


@pytest.mark.parametrize("pattern", ["DIR/", "DIR", "DIR/{suffix}", "DIR/{suffix}/"])
def test_a_pattern_that_names_no_file_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(GpuschedError, match=r"directory|names no format"):
        check_formats([pattern.replace("DIR", str(tmp_path))], None)
    check_formats([f"{tmp_path}/*_{{suffix}}*", f"{tmp_path}/{{suffix}}.jsonl"], None)
