"""Merging text: JSON Lines, JSON, CSV, TSV, TXT, with the defects that their writers leave."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.merging import merge
from tests.support.paths import TESTS

Capture = pytest.CaptureFixture[str]
CASES = TESTS / "cases" / "files"


def written(place: Path, **files: str | bytes) -> list[Path]:
    """Files by name, with `__` for the dot; in the order given."""
    paths = []
    for name, content in files.items():
        path = place / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    return paths


# ---- the cases -------------------------------------------------------------------------------------


def test_case_44_order_newlines_and_a_cut_record(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(CASES / "44-shards", tmp_path / "shards")
    expected = json.loads((CASES / "44-expect.json").read_text())
    parts = sorted((tmp_path / "shards").iterdir())
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1
    broken = expected["broken"]
    assert f"{broken['file']}, line {broken['line']}: is cut" in said.err and "INCOMPLETE" in said.out
    records = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(records) == expected["records"] == 35
    assert [found["idx"] for found in records] == list(range(35))
    assert [found["rank"] for found in records] == sorted(found["rank"] for found in records)
    assert sorted((tmp_path / "shards").iterdir()) == parts
    told = json.loads((tmp_path / "all_merged_metadata.json").read_text())
    assert told["complete"] is False and told["records"] == 35
    assert told["left_out"][0]["part"] == "shards/out_rank_11.jsonl" and told["left_out"][0]["line"] == 3
    assert "out_rank_11.jsonl, line 3" in (tmp_path / "all.jsonl.incomplete").read_text()


def test_case_46_csv(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "-o", tmp_path / "a.csv", *sorted((CASES / "46-merge").glob("*.csv")))
    assert said.code == 0
    assert "a_gpu_3.csv is empty" in said.err and "column 'extra' is not in 2 parts" in said.err
    data = (tmp_path / "a.csv").read_bytes()
    assert data.startswith(b"full_name,alpha,note,extra\n") and data.count(b"full_name") == 1
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"full_name": "org/a", "alpha": "2.5", "note": "one, two", "extra": ""},
        {"full_name": "org/b", "alpha": "2.75", "note": "", "extra": ""},
        {"full_name": "org/c", "alpha": "", "note": "two\r\nlines", "extra": "x"},
    ]


def test_case_46_json(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "-o", tmp_path / "m.json", *sorted((CASES / "46-merge").glob("*.json")))
    assert said.code == 0
    assert "m_gpu_0.json, line 1: NaN or Infinity is written as null" in said.err
    assert "m_gpu_1.json, line 1: NaN or Infinity is written as null" in said.err
    text = (tmp_path / "m.json").read_text()
    assert json.loads(text) == [{"alpha": None, "n": 3}, {"alpha": 2.5, "n": 4, "inf": None}]
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads((tmp_path / "m_merged_metadata.json").read_text())["totals"] == {}


# ---- JSON Lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"a": 1', "is no JSON"),
        ('{"a": 1}}', "is no JSON"),
        ('{"a": 01}', "is no JSON"),
        ('{"a": "\x01"}', "is no JSON"),
        ("x,y", "is no JSON"),
        ("1 2", "is no JSON: 2 values on one line"),
        ("\0\0\0", "is no JSON"),
        (b'{"a": "\xff"}', "is no JSON: 'utf-8' codec can't decode byte 0xff in position 7"),
        ("[" * 5000, "is no JSON: maximum recursion depth"),
    ],
)
def test_a_line_that_is_no_record_is_left_out_by_name(
    tmp_path: Path, capsys: Capture, line: str | bytes, why: str
) -> None:
    bad = line if isinstance(line, bytes) else line.encode()
    parts = written(tmp_path, p1__jsonl='{"id": 0}\n', p2__jsonl=b'{"id": 1}\n' + bad + b'\n{"id": 2}\n')
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1 and f"p2.jsonl, line 2: {why}" in said.err
    assert (tmp_path / "all.jsonl").read_text() == '{"id": 0}\n{"id": 1}\n{"id": 2}\n'


def test_lines_that_are_records_only_together_are_left_out(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, p__jsonl='{"a":\n1}\n{"b":1}{"b":2}\n[3\n,4]\n{"c":5}\n')
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1
    assert [f"line {n}: is no JSON" in said.err for n in range(1, 7)] == [True, True, False, True, True, False]
    assert (tmp_path / "all.jsonl").read_text() == '{"b":1}\n{"b":2}\n{"c":5}\n'


def test_two_records_on_a_line_get_one_each_and_it_is_told(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, p__jsonl='{"a": 1}{"a": 2}\n{"a": 3}')
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 0 and "p.jsonl, line 1: 2 records on one line: each gets its own" in said.err
    assert (tmp_path / "all.jsonl").read_text() == '{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def test_records_are_kept_byte_for_byte(tmp_path: Path, capsys: Capture) -> None:
    text = '{ "a":1.0,"b" : "\\u00e9é" ,"a":2}\n[1, 2]\n"x"\n{"big":123456789012345678901234567890,"e":1e999}\n'
    parts = written(tmp_path, p__jsonl="\ufeff" + text, q__jsonl="", r__jsonl='\n\n{"s": "\\ud800"}\r\n \n7')
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 0, said
    assert (tmp_path / "all.jsonl").read_bytes().decode() == text + '{"s": "\\ud800"}\r\n7\n'


def test_nan(tmp_path: Path, capsys: Capture) -> None:
    text = '{"l": NaN, "s": "NaN \\"NaN"}\n{"l": -Infinity}\n{"l": 1}\n'
    parts, out = written(tmp_path, p__jsonl=text), tmp_path / "all.jsonl"
    said = merge(capsys, "-o", out, *parts)
    assert said.code == 0 and "p.jsonl, line 1: NaN or Infinity is written as null (--nan), and on 1 li" in said.err
    assert out.read_text() == '{"l": null, "s": "NaN \\"NaN"}\n{"l": null}\n{"l": 1}\n'
    said = merge(capsys, "-o", out, *parts, "--nan", "refuse", "--overwrite")
    assert said.code == 1 and "p.jsonl, line 1: holds NaN" in said.err and "line 2: holds NaN" in said.err
    assert out.read_text() == '{"l": 1}\n'
    object_ = written(tmp_path, o__json='{"l": NaN, "n": 1}')
    said = merge(capsys, "-o", tmp_path / "all.json", *object_, "--sum", "n", "--nan", "refuse")
    assert said.code == 1 and "would hold NaN" in said.err and not (tmp_path / "all.json").exists()


RECORDS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.lists(RECORDS, max_size=8), min_size=1, max_size=4), ascii_=st.booleans(), cut=st.booleans())
def test_every_record_that_python_writes_comes_back(
    tmp_path: Path, capsys: Capture, parts: list[list[object]], ascii_: bool, cut: bool
) -> None:
    paths = []
    for number, records in enumerate(parts):
        text = "".join(json.dumps(found, ensure_ascii=ascii_) + "\n" for found in records)
        paths.append(tmp_path / f"p{number}.jsonl")
        paths[-1].write_bytes((text.removesuffix("\n") if cut else text).encode("utf-8", "surrogatepass"))
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *paths, "--overwrite")
    found = [json.loads(line) for line in (tmp_path / "all.jsonl").read_bytes().splitlines()]
    assert said.code == 0 and found == [json.loads(json.dumps(record)) for records in parts for record in records]


def test_a_line_longer_than_a_block(tmp_path: Path, capsys: Capture) -> None:
    long = json.dumps({"a": "x" * 3_000_000})
    parts = written(tmp_path, p__jsonl=f'{{"b": 1}}\n{long}\n{{"c": 1}}\n{long}', q__jsonl=f"\ufeff{long}")
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 0
    assert (tmp_path / "all.jsonl").read_text() == f'{{"b": 1}}\n{long}\n{{"c": 1}}\n{long}\n{long}\n'


def test_many_blocks_come_back_and_their_sums_are_right(tmp_path: Path, capsys: Capture) -> None:
    import hashlib

    lines = [json.dumps({"id": i, "text": "é" * (i % 700)}, ensure_ascii=False) for i in range(4000)]
    parts = written(tmp_path, a__jsonl="\n".join(lines[:2500]), b__jsonl="\n".join([*lines[2500:], ""]))
    assert merge(capsys, "-o", tmp_path / "all.jsonl", *parts).code == 0
    data = (tmp_path / "all.jsonl").read_bytes()
    assert data.decode() == "\n".join([*lines, ""])
    told = json.loads((tmp_path / "all_merged_metadata.json").read_text())
    assert told["output"] == {"name": "all.jsonl", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert [p["sha256"] for p in told["parts"]] == [hashlib.sha256(p.read_bytes()).hexdigest() for p in parts]


def test_text_in_another_encoding_without_a_mark_is_no_record(tmp_path: Path, capsys: Capture) -> None:
    line = '{"a": 1}'.encode("utf-16-le")
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *written(tmp_path, p__jsonl=b'{"a": 2}\n' * 9 + line))
    assert said.code == 1 and "p.jsonl, line 10: is cut, or no JSON" in said.err, said
    assert (tmp_path / "all.jsonl").read_text() == '{"a": 2}\n' * 9


@pytest.mark.parametrize("form", ["jsonl", "json", "txt"])
def test_utf_16_without_a_mark_and_other_ends_of_lines_are_named(tmp_path: Path, capsys: Capture, form: str) -> None:
    text = '[1,\n"한국어", 2]' if form == "json" else '"한국어"\n1\n2\n'
    for wrong, why in ((text.encode("utf-16-be"), "is UTF-16"), (text.replace("\n", "\r"), "end in \\r alone")):
        said = merge(capsys, "-o", tmp_path / f"all.{form}", *written(tmp_path, **{f"p__{form}": wrong}))
        assert said.code == 1 and f"p.{form}, line 1: is " in said.err and why in said.err, said


def test_a_line_of_text_with_a_nul_is_left_out_by_name(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "-o", tmp_path / "all.txt", *written(tmp_path, p__txt=b"one\ntw\0o\nthree"))
    assert said.code == 1 and "p.txt, line 2: holds NUL bytes" in said.err, said
    assert (tmp_path / "all.txt").read_text() == "one\nthree\n"


# ---- repeated records, counts ----------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "values"), [("keep-first", ["a", "b", "c"]), ("keep-last", ["c", "d", "b2"])])
@pytest.mark.parametrize("form", ["jsonl", "json", "csv"])
def test_repeated_records(tmp_path: Path, capsys: Capture, policy: str, values: list[str], form: str) -> None:
    rows = [[(1, "a"), (2, "b"), (3, "c")], [(1, "d"), (2, "b2")]]
    for number, held in enumerate(rows):
        path = tmp_path / f"p{number}.{form}"
        if form == "csv":
            path.write_text("id,v\n" + "".join(f"{i},{v}\n" for i, v in held))
        elif form == "json":
            path.write_text(json.dumps([{"id": i, "v": v} for i, v in held]))
        else:
            path.write_text("".join(json.dumps({"v": v, "id": i}) + "\n" for i, v in held))
    parts = [tmp_path / f"p{number}.{form}" for number in range(2)]
    out = tmp_path / f"all.{form}"
    said = merge(capsys, "-o", out, *parts, "--key", "id")
    assert said.code == 1 and "2 repeated records by id" in said.err and "--on-duplicate" in said.err
    assert f"p1.{form}, line {2 if form == 'csv' else 1}: 1 is there before" in said.err and not out.exists()
    said = merge(capsys, "-o", out, *parts, "--key", "id", "--on-duplicate", policy)
    assert said.code == 0 and f"2 repeated records by id dropped ({policy})" in said.err
    text = out.read_text()
    if form == "csv":
        assert [row["v"] for row in csv.DictReader(text.splitlines())] == values
    else:
        found = json.loads(text) if form == "json" else [json.loads(line) for line in text.splitlines()]
        assert [record["v"] for record in found] == values


def test_a_record_without_the_key_is_named(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, p__jsonl='{"id": "1"}\n{"x": 1}\n{"id": 1}\n[5]\n')
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts, "--key", "id")
    assert said.code == 1 and "line 2: has no field" in said.err and "line 4: has no field" in said.err
    assert (tmp_path / "all.jsonl").read_text() == '{"id": "1"}\n{"id": 1}\n'


@pytest.mark.parametrize("policy", ["error", "keep-first", "keep-last"])
@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl", "json"])
def test_records_without_the_key_are_left_out_by_name(tmp_path: Path, capsys: Capture, form: str, policy: str) -> None:
    rows: list[list[dict[str, object]]] = [
        [{"id": 1, "a": "x"}],
        [{"a": "y"}, {"a": "z"}, {"a": "z"}],
        [{"id": 2, "a": "w"}],
    ]
    parts = [keyed(tmp_path / f"p{number}.{form}", held) for number, held in enumerate(rows)]
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *parts, "--key", "id", "--on-duplicate", policy)
    where = "p1.json, line 1" if form == "json" else "p1.jsonl, line 3" if form == "jsonl" else f"p1.{form}"
    assert said.code == 1 and f"error: {where}: has no field of the name that --key gives" in said.err, said
    assert "repeated" not in said.err and "INCOMPLETE" in said.out
    assert read_keyed(tmp_path / f"all.{form}") == [("1", "x"), ("2", "w")]


def keyed(path: Path, rows: list[dict[str, object]]) -> Path:
    """A part of these rows, under the columns of the first."""
    if path.suffix == ".parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def read_keyed(path: Path) -> list[tuple[str, str]]:
    if path.suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    elif path.suffix == ".csv":
        rows = list(csv.DictReader(path.read_text().splitlines()))
    else:
        text = path.read_text()
        rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    return [(str(row["id"]), row["a"]) for row in rows]


@pytest.mark.parametrize("key", ['say "id"', "a\\b", "two\nlines", "é", " "])
def test_a_key_of_any_name_is_found(tmp_path: Path, capsys: Capture, key: str) -> None:
    lines = "".join(json.dumps({key: n % 2}) + "\n" for n in range(4))
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *written(tmp_path, p__jsonl=lines), "--key", key)
    assert said.code == 1 and "2 repeated records" in said.err, said


def test_one_element_that_is_left_out_takes_no_other_with_it(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, p__json='[{"id": 1},\n{"x": 1},\n{"id": 3}]')
    said = merge(capsys, "-o", tmp_path / "all.json", *parts, "--key", "id")
    assert said.code == 1 and "p.json, line 2: has" in said.err and "1 part, INCOMPLETE" in said.out, said
    assert json.loads((tmp_path / "all.json").read_text()) == [{"id": 1}, {"id": 3}]


def test_a_part_of_which_nothing_is_read_is_not_counted(tmp_path: Path, capsys: Capture) -> None:
    utf16 = '{"a": 1}\n'.encode("utf-16")
    parts = written(tmp_path, p__jsonl='{"a": 1}\n', q__jsonl=utf16)
    said = merge(capsys, "-o", tmp_path / "all.jsonl", *parts)
    assert said.code == 1 and "1 record of 1 part, INCOMPLETE" in said.out and "q.jsonl, line 1: is UTF-16" in said.err
    said = merge(capsys, "-o", tmp_path / "none.jsonl", tmp_path / "q.jsonl")
    assert said.code == 1 and "nothing of any part can be merged" in said.err and "is UTF-16" in said.err
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(
    ("form", "content", "why", "words"),
    [
        ("json", "7", "is neither a JSON array nor an object", ()),
        ("json", "[x" + " " * 30 + "]", "line 1: is no JSON", ("--key", "id")),
        ("json", "x", "is no JSON", ("--sum", "n")),
        ("jsonl", '{"id": 1}\n'.encode("utf-16"), "line 1: is UTF-16", ("--key", "id")),
        ("jsonl", "x\ny\n", "line 2: is no JSON", ()),
        ("json", '[{"a": 1}]', "line 1: has no field", ("--key", "id")),
        ("csv", "id,v\n1\n", "line 2: has 1 field", ()),
        ("txt", "a\n".encode("utf-16"), "line 1: is UTF-16", ()),
        ("csv", b"id,v\n1,\xff\n", "line 2: all from here on is left out: 'utf-8' codec", ()),
        ("tsv", b"id\tid\n1\t2\n", "line 1: names the column 'id' twice", ()),
        ("npy", "x", "is no .npy file", ()),
        ("npz", "x", "is no .npz file", ()),
        ("safetensors", "x", "is no safetensors file", ()),
        ("parquet", "x", "is no Parquet file", ()),
        ("pt", "x", "is no file of torch.save", ()),
    ],
)
def test_where_no_part_can_be_read_nothing_is_written(
    tmp_path: Path, capsys: Capture, form: str, content: str | bytes, why: str, words: tuple[str, ...]
) -> None:
    parts = written(tmp_path, **{f"p__{form}": content})
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *parts, *words)
    assert said.code == 1 and "nothing of any part can be merged" in said.err and why in said.err, said
    assert list(tmp_path.iterdir()) == parts


@pytest.mark.parametrize("policy", ["keep-first", "keep-last"])
def test_a_part_that_stops_at_its_first_record_is_told_however_often_it_is_read(
    tmp_path: Path, capsys: Capture, policy: str
) -> None:
    for form, good, bad in [("csv", b"id\n1\n", b"id\n\xff\n"), ("json", b'[{"id": 1}]', b"[x]")]:
        parts = written(tmp_path, **{f"p__{form}": good, f"q__{form}": bad})
        said = merge(capsys, "-o", tmp_path / f"all.{form}", *parts, "--key", "id", "--on-duplicate", policy)
        assert said.code == 1 and f"q.{form}, line" in said.err and "1 record of 1 part, INCOMPLETE" in said.out, said


def test_expect(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, p__txt="a\nb")
    assert merge(capsys, "-o", tmp_path / "all.txt", *parts, "--expect", "2").code == 0
    said = merge(capsys, "-o", tmp_path / "more.txt", *parts, "--expect", "3")
    assert said.code == 1 and "2 records, and --expect 3" in said.err and "INCOMPLETE" in said.out


def test_order_of_parts(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, x10__txt="10", x9__txt="9", x09__txt="09", x1__txt="1\r\n")
    merge(capsys, "-o", tmp_path / "n.txt", *parts)
    assert (tmp_path / "n.txt").read_bytes() == b"1\r\n09\n9\n10\n"
    merge(capsys, "-o", tmp_path / "g.txt", *parts, "--by", "given")
    assert (tmp_path / "g.txt").read_bytes() == b"10\n9\n09\n1\r\n"


# ---- JSON ------------------------------------------------------------------------------------------


def test_arrays_are_joined_in_their_own_text(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, a__json='\ufeff [1.0, {"b":\n [2]}, "é"]\n', b__json="[]", c__json="", d__json="[-0]")
    said = merge(capsys, "-o", tmp_path / "all.json", *parts)
    assert said.code == 0 and "c.json is empty" in said.err
    assert (tmp_path / "all.json").read_text() == '[\n1.0,\n{"b":\n [2]},\n"é",\n-0\n]\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[1,\n {"a": 2', "line 2: is no JSON, or is cut"),
        ("[1, 2", "line 1: is no JSON, or is cut"),
        ("[1, 2,]", "line 1: is no JSON"),
        ("[1,\n2 x]", "line 2: is no JSON"),
        ("[1]\n[2]", "is it JSON Lines?"),
        ("7", "is neither a JSON array nor an object"),
        (b'[1, "\xff"]', "line 1: is no JSON, or is cut: 'utf-8' codec"),
    ],
)
def test_a_wrong_array_is_named_and_the_others_are_merged(
    tmp_path: Path, capsys: Capture, text: str | bytes, why: str
) -> None:
    said = merge(capsys, "-o", tmp_path / "all.json", *written(tmp_path, a__json="[0]", b__json=text))
    assert said.code == 1 and "b.json" in said.err and why in said.err and "INCOMPLETE" in said.out, said
    assert json.loads((tmp_path / "all.json").read_text()) == [0]


def test_elements_that_only_python_reads_keep_their_text(tmp_path: Path, capsys: Capture) -> None:
    parts = written(
        tmp_path, a__json=r'[ {"s": "\ud800 NaN"} , 1.0, "\u00e9", [], 1e999 ]', b__json=" [NaN ,\n-Infinity, 2]"
    )
    said = merge(capsys, "-o", tmp_path / "all.json", *parts)
    assert said.code == 0 and "b.json, line 1: NaN or Infinity is written as null (--nan), and on 1 li" in said.err, (
        said
    )
    expected = '[\n{"s": "\\ud800 NaN"},\n1.0,\n"\\u00e9",\n[],\n1e999,\nnull,\nnull,\n2\n]\n'
    assert (tmp_path / "all.json").read_text() == expected


def test_json_that_is_json_lines_or_mixed(tmp_path: Path, capsys: Capture) -> None:
    said = merge(capsys, "-o", tmp_path / "x.json", *written(tmp_path, a__json='{"a": 1}\n{"a": 2}\n'))
    assert said.code == 1 and "is it JSON Lines? then its name should end in .jsonl" in said.err
    said = merge(capsys, "-o", tmp_path / "y.json", *written(tmp_path, b__json="[1]", c__json='{"a": 1}'))
    assert said.code == 1 and "b.json is an array" in said.err and "c.json is an object" in said.err
    assert not (tmp_path / "y.json").exists()


@pytest.mark.slow
def test_an_array_larger_than_what_is_held(tmp_path: Path, capsys: Capture) -> None:
    items = [{"id": i, "t": 'é\\n"[{' * (i % 400)} for i in range(1500)]
    parts = written(tmp_path, a__json=json.dumps(items), b__json=json.dumps([*range(100_000)], indent=1))
    assert merge(capsys, "-o", tmp_path / "all.json", *parts).code == 0
    assert json.loads((tmp_path / "all.json").read_text()) == [*items, *range(100_000)]


def test_objects_are_added_up_where_sum_asks_for_it(tmp_path: Path, capsys: Capture) -> None:
    one = {"n": 3, "model": "m", "scores": [1, 2], "by": {"n": 1, "only": True}, "seed": 1}
    two = {"n": 4, "model": "m", "scores": [3], "by": {"n": 5}, "seed": 2}
    parts = written(tmp_path, a__json=json.dumps(one), b__json=json.dumps(two))
    said = merge(capsys, "-o", tmp_path / "all.json", *parts, "--sum", "n", "--sum", "none")
    assert said.code == 0 and "'seed' differs from part to part" in said.err and "--sum none: no part" in said.err
    assert json.loads((tmp_path / "all.json").read_text()) == {
        "n": 7,
        "model": "m",
        "scores": [1, 2, 3],
        "by": {"n": 6, "only": True},
        "seed": [1, 2],
    }


# ---- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why", "rows"),
    [
        ("id,v\n2,b\n3\n4,d\n", "line 3: has 1 field, and the header has 2", "2,b\n4,d\n"),
        ('id,v\n2,b\n3,"cut', "line 3: is no CSV: unexpected end of data; all from here on is left out", "2,b\n"),
        ('id,v\n2,b\n3,"c"d\n4,d\n', "line 3: is no CSV: ',' expected", "2,b\n"),
        (b"id,v\n2,b\n3,\xff\n4,d\n", "line 3: all from here on is left out: 'utf-8' codec", "2,b\n"),
        (b"id,v\n2,\0\n", "line 2: holds NUL bytes", ""),
        ("id|v\n2|b\n", "line 1: has one column, 'id|v': it is separated by something else", ""),
        ("id,id\n2,b\n", "line 1: names the column 'id' twice", ""),
        (b"\xff\xfei\0d\0", "line 1: is UTF-16", ""),
        (
            "id,v\n2,b\n".encode("utf-16-le"),
            "line 1: is UTF-16, not UTF-8; save it as UTF-8, by: iconv -f UTF-16LE",
            "",
        ),
        (b"id,v\r2,b\r", "line 1: is text whose lines end in \\r alone", ""),
    ],
)
def test_a_wrong_table_is_named_and_the_rest_kept(
    tmp_path: Path, capsys: Capture, text: str | bytes, why: str, rows: str
) -> None:
    said = merge(capsys, "-o", tmp_path / "all.csv", *written(tmp_path, a__csv="id,v\n1,a\n", b__csv=text))
    assert said.code == 1 and f"b.csv, {why}" in said.err, said
    assert (tmp_path / "all.csv").read_text() == "id,v\n1,a\n" + rows


def test_what_a_spreadsheet_and_cat_add_to_a_table_is_no_record(tmp_path: Path, capsys: Capture) -> None:
    first = "sep=;\r\na;b\r\n1;x,y\r\na;b\r\n# a, note\r\n2;\r\n3;z;;\r\n"
    parts = written(tmp_path, p__csv=first, q__csv="b\ta\nw\t4\n")
    said = merge(capsys, "-o", tmp_path / "all.csv", *parts)
    assert said.code == 0 and "p.csv: line 4 repeats the names of the columns and is left out" in said.err, said
    assert (tmp_path / "all.csv").read_text() == 'a,b\n1,"x,y"\n2,\n3,z\n4,w\n'
    written(tmp_path, p__csv='a\n""\n\n \nx\n', q__csv="a\ny\n")
    assert merge(capsys, "-o", tmp_path / "all.csv", *parts).code == 0
    assert (tmp_path / "all.csv").read_text() == 'a\n""\n \nx\ny\n', "only a line without any cell is blank"


def test_tables_without_a_common_column_are_refused(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, a__csv="id,v\n1,a\n", b__csv="2,b\n3,c\n")
    said = merge(capsys, "-o", tmp_path / "all.csv", *parts)
    assert said.code == 1 and "b.csv: has no column in common with a.csv" in said.err and "header missing" in said.err
    assert not (tmp_path / "all.csv").exists()


@pytest.mark.parametrize("typed", ["x.csv", "{here}/x.csv", "./out/../x.csv"])
def test_parts_of_one_name_in_two_directories_keep_their_columns(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    written(tmp_path, x__csv="id,a\n1,one\n")
    written(tmp_path / "out", x__csv="id,b\n2,two\n")
    said = merge(capsys, "-o", "out/o.csv", typed.format(here=tmp_path), "out/x.csv", "--by", "given")
    assert said.code == 0, said
    assert (tmp_path / "out" / "o.csv").read_text() == "id,a,b\n1,one,\n2,,two\n"
    named = [part["name"] for part in json.loads((tmp_path / "out" / "o_merged_metadata.json").read_text())["parts"]]
    assert named == [str(tmp_path / "x.csv") if typed[0] == "{" else "../x.csv", "x.csv"]


def test_a_part_behind_a_link_and_two_dots_has_a_name_of_its_own(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/below")
    written(tmp_path, x__txt="one\n")
    written(tmp_path / "real", x__txt="two\n")
    said = merge(capsys, "-o", "o.txt", "x.txt", "link/../x.txt", "--by", "given")
    assert said.code == 0, said
    named = [part["name"] for part in json.loads((tmp_path / "o_merged_metadata.json").read_text())["parts"]]
    assert named == ["x.txt", "real/x.txt"] and (tmp_path / "o.txt").read_text() == "one\ntwo\n"


def test_what_is_lost_of_parts_of_one_name_is_told_of_each(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for place in (tmp_path, tmp_path / "out"):
        written(place, x__jsonl='{"a": 1}\n' + "wrong\n" * 4)
    said = merge(capsys, "-o", "out/o.jsonl", "x.jsonl", "out/x.jsonl")
    assert said.code == 1 and "more of them" not in said.err
    assert [f"{name}, line {n}: is no JSON" in said.err for name in (" ../x.jsonl", " x.jsonl") for n in (2, 5)] == [
        True
    ] * 4


def test_tsv_and_blank_lines(tmp_path: Path, capsys: Capture) -> None:
    parts = written(tmp_path, a__tsv='id\tv\n\n1\t"x\ty"\n', b__tsv="v\tid\nz,w\t2")
    assert merge(capsys, "-o", tmp_path / "all.tsv", *parts).code == 0
    assert (tmp_path / "all.tsv").read_text() == 'id\tv\n1\t"x\ty"\n2\tz,w\n'


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ['"', ",", "\n", "\r\n", "\r", ' "', "\ufeff", ""]
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.lists(st.tuples(CELLS, CELLS), max_size=5), min_size=1, max_size=3), turned=st.booleans())
def test_every_cell_that_python_writes_comes_back(
    tmp_path: Path, capsys: Capture, parts: list[list[tuple[str, str]]], turned: bool
) -> None:
    paths = []
    for number, rows in enumerate(parts):
        paths.append(tmp_path / f"p{number}.csv")
        names = ["a", "b"] if not (turned and number) else ["b", "a"]
        with open(paths[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [names, *([dict(zip("ab", row, strict=True))[n] for n in names] for row in rows)]
            )
    said = merge(capsys, "-o", tmp_path / "all.csv", *paths, "--overwrite")
    with open(tmp_path / "all.csv", newline="", encoding="utf-8") as file:
        found = [(row["a"], row["b"]) for row in csv.DictReader(file)]
    assert said.code == 0 and found == [row for rows in parts for row in rows], said
