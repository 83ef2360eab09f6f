"""Random small parts of each format, merged and joined by the format's own library: equal, or refused with a reason."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.merging import Said, merge

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
torch = pytest.importorskip("torch")
st_torch = pytest.importorskip("safetensors.torch")
pd: Any = importlib.import_module("pandas") if importlib.util.find_spec("pandas") else None

Capture = pytest.CaptureFixture[str]

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)  # which JSON does not have
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)
LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)
DTYPES = st.sampled_from(["int8", "int64", "uint8", "float32", "float64", "bool"])


def merged(capsys: Capture, form: str, write: Callable[[Path, Any], object], parts: list[Any]) -> tuple[Said, Any]:
    """Merge these values, each a part, and return the bytes of the output; None if it is refused, with a reason."""
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / f"p{number}.{form}" for number in range(len(parts))]
        for path, part in zip(paths, parts, strict=True):
            write(path, part)
        out = Path(name) / f"all.{form}"
        said = merge(capsys, "-o", out, *paths)
        if said.code == 0:
            return said, READERS[form](out)
        assert said.code == 1 and "error: " in said.err and "Traceback" not in said.err, said
        assert not out.exists() or "INCOMPLETE" in said.out, said
        return said, None


def equal(one: Any, other: Any) -> bool:
    """Compare values, types and dtypes; NaN is equal to itself."""
    if isinstance(one, torch.Tensor):
        one, other = one.numpy(), other.numpy() if isinstance(other, torch.Tensor) else other
    if isinstance(one, np.ndarray):
        is_array = isinstance(other, np.ndarray) and one.dtype == other.dtype and one.shape == other.shape
        return is_array and one.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


# ---- text ------------------------------------------------------------------------------------------


def write_lines(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=len(records) % 2 > 0) + "\n" for record in records))


def check_json(capsys: Capture, data: st.DataObject, form: str) -> None:
    parts = data.draw(st.lists(st.lists(VALUES, max_size=4), min_size=1, max_size=4))
    write = write_lines if form == "jsonl" else lambda path, part: path.write_text(json.dumps(part, indent=1))
    said, found = merged(capsys, form, write, parts)
    assert said.code == 0 and equal(found, [record for part in parts for record in part]), said


def write_table(path: Path, table: tuple[list[str], list[list[str]]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([table[0], *table[1]])


def check_table(capsys: Capture, data: st.DataObject, form: str) -> None:
    parts = []
    for _ in range(data.draw(st.integers(1, 4))):
        columns = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
        row = st.lists(WORDS, min_size=len(columns), max_size=len(columns)).filter(any)  # a blank line is no row
        parts.append((columns, data.draw(st.lists(row, max_size=3))))
    said, found = merged(capsys, form, write_table, parts)
    filled = [part for part in parts if part[1]] or parts
    union = list(dict.fromkeys(name for columns, _ in filled for name in columns))
    rows = [
        dict.fromkeys(union, "") | dict(zip(columns, row, strict=True)) for columns, lines in parts for row in lines
    ]
    if said.code:
        assert "has no column in common" in said.err, said
        return
    assert found == [union, *(list(row.values()) for row in rows)], said
    if pd is not None:
        frames = [pd.DataFrame(lines, columns=columns, dtype=str) for columns, lines in filled]
        assert pd.concat(frames, ignore_index=True).fillna("").values.tolist() == found[1:]


# ---- arrays ----------------------------------------------------------------------------------------


def draw_array(data: st.DataObject, dtype: str, width: int, rows: int | None) -> Any:
    shape = () if rows is None else (rows, width) if width else (rows,)
    values = data.draw(st.lists(st.integers(0, 100), min_size=math.prod(shape), max_size=math.prod(shape)))
    array = np.array(values, dtype=dtype).reshape(shape)
    return np.asfortranarray(array) if data.draw(st.booleans()) else array


def draw_arrays(data: st.DataObject, *, scalars: bool) -> list[Any]:
    """Arrays that mostly go together."""
    dtype, width = data.draw(DTYPES), data.draw(st.integers(0, 2))
    is_odd = st.integers(0, 19).map(lambda number: number == 0)
    arrays = []
    for rows in data.draw(LENGTHS):
        own = data.draw(DTYPES) if data.draw(is_odd) else dtype
        columns = width + 1 if data.draw(is_odd) else width
        arrays.append(draw_array(data, own, columns, None if scalars else rows))
    return arrays


def joined(arrays: list[Any]) -> Any:
    """Return the arrays as NumPy joins them; None where it would change a type, or cannot."""
    filled = [array for array in arrays if array.shape[:1] != (0,)] or arrays[:1]
    if len({(array.dtype, array.shape[1:], array.ndim) for array in filled}) > 1:
        return None
    if filled[0].ndim:
        return np.concatenate(filled)
    return filled[0] if len({array.tobytes() for array in filled}) == 1 else np.stack(filled)


def check_npy(capsys: Capture, data: st.DataObject, form: str) -> None:
    arrays = draw_arrays(data, scalars=False)
    said, found = merged(capsys, form, np.save, arrays)
    expected = joined(arrays)
    assert (found is None) == (expected is None), said
    assert expected is None or equal(found, expected), said


def check_archive(capsys: Capture, data: st.DataObject, form: str) -> None:
    """Archives of arrays, and dicts of tensors, lists and plain values."""
    names = data.draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=3, unique=True))
    columns = {name: draw_arrays(data, scalars=data.draw(st.booleans())) for name in names}
    count = min(map(len, columns.values()))
    parts: list[dict[str, Any]] = [{name: column[n] for name, column in columns.items()} for n in range(count)]
    if form == "pt":
        lists = data.draw(st.lists(st.lists(WORDS, max_size=3), min_size=count, max_size=count))
        plain = data.draw(st.lists(st.integers(0, 1) | st.none() | WORDS, min_size=count, max_size=count))
        parts = [{**part, "names": lists[n], "in": {"value": plain[n]}} for n, part in enumerate(parts)]
    said, found = merged(capsys, form, WRITERS[form], parts)
    expected = {name: joined(column[:count]) for name, column in columns.items()}
    if any(value is None for value in expected.values()):
        assert found is None and "p" in said.err, said
        return
    assert said.code == 0, said
    if form == "pt":
        is_one = all(type(one) is type(plain[0]) and one == plain[0] for one in plain)
        names_in_order = [name for part in lists for name in part]
        assert found.pop("names") == names_in_order and found.pop("in") == {"value": plain[0] if is_one else plain}
    assert equal({name: as_numpy(found[name]) for name in sorted(found)}, {n: expected[n] for n in sorted(expected)}), (
        said
    )


def as_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def as_tensors(part: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v.copy("C")) if isinstance(v, np.ndarray) else v for k, v in part.items()}


# ---- Parquet ---------------------------------------------------------------------------------------

COLUMNS = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): WORDS,
    pa.large_string(): WORDS,
    pa.bool_(): st.booleans(),
    pa.timestamp("ms"): st.integers(-(2**45), 2**45),
    pa.timestamp("ns"): st.integers(-(2**62), 2**62),
    pa.list_(pa.int32()): st.lists(st.integers(0, 9), max_size=2),
    pa.list_(pa.float64()): st.lists(st.floats(), max_size=2),
    pa.null(): st.none(),
}


def draw_table(data: st.DataObject, kinds: dict[str, Any]) -> Any:
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True))
    rows, columns = data.draw(st.integers(0, 3)), {}
    for name in names:
        kind = data.draw(st.sampled_from([*COLUMNS])) if data.draw(st.integers(0, 5)) == 0 else kinds[name]
        values = data.draw(st.lists(st.none() | COLUMNS[kind], min_size=rows, max_size=rows))
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


def exact(column: Any) -> list[str]:
    """Return the values as text that is the same in each type that holds them exactly."""
    if pa.types.is_timestamp(column.type):
        scale = {"ms": 10**6, "ns": 1}[column.type.unit]
        return [str(None if value is None else value * scale) for value in column.cast(pa.int64()).to_pylist()]
    return [repr(float(value)) if isinstance(value, float) else repr(value) for value in column.to_pylist()]


def check_parquet(capsys: Capture, data: st.DataObject, form: str) -> None:
    kinds = {name: data.draw(st.sampled_from([*COLUMNS])) for name in "abc"}
    tables = [draw_table(data, kinds) for _ in range(data.draw(st.integers(1, 4)))]
    said, found = merged(capsys, form, lambda path, table: pq.write_table(table, path), tables)
    tables = [table for table in tables if table.num_rows] or tables[:1]
    try:
        expected = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        expected = None
    if found is None:
        assert any(name in said.err for name in ("column", "Unable to merge", "does not fit")), said
        assert expected is None or len({table.schema for table in tables}) > 1, said
        return
    assert expected is not None and found.schema.equals(expected.schema) and found.num_rows == expected.num_rows, said
    for name in found.column_names:
        lacking = [[repr(None)] * table.num_rows if name not in table.column_names else None for table in tables]
        kind = found[name].type
        texts = [
            exact(table[name].cast(kind) if pa.types.is_list(kind) else table[name]) if lack is None else lack
            for table, lack in zip(tables, lacking, strict=True)
        ]
        is_float = pa.types.is_floating(kind)
        words = [text for part in texts for text in part]
        wanted = [repr(float(word)) if is_float and word != "None" else word for word in words]
        assert exact(found[name]) == wanted, (name, said)


# ---- all -------------------------------------------------------------------------------------------


def read_table(path: Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


READERS: dict[str, Callable[[Path], Any]] = {
    "jsonl": lambda path: [json.loads(line) for line in path.read_bytes().splitlines()],
    "json": lambda path: json.loads(path.read_bytes()),
    "csv": read_table,
    "tsv": read_table,
    "npy": np.load,
    "npz": lambda path: dict(np.load(path)),
    "safetensors": st_torch.load_file,
    "pt": torch.load,
    "parquet": pq.read_table,
}
WRITERS: dict[str, Callable[[Path, Any], object]] = {
    "npz": lambda path, part: np.savez(path, **part),
    "safetensors": lambda path, part: st_torch.save_file(as_tensors(part), path),
    "pt": lambda path, part: torch.save(as_tensors(part), path),
}
CHECKS = {
    **dict.fromkeys(("jsonl", "json"), check_json),
    **dict.fromkeys(("csv", "tsv"), check_table),
    "npy": check_npy,
    **dict.fromkeys(("npz", "safetensors", "pt"), check_archive),
    "parquet": check_parquet,
}
FIXED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize("form", CHECKS)
@settings(max_examples=80, deadline=None, derandomize=True, database=None, suppress_health_check=FIXED)
@given(data=st.data())
def test_a_merge_is_that_of_the_library_or_refused(form: str, capsys: Capture, data: st.DataObject) -> None:
    CHECKS[form](capsys, data, form)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("form", CHECKS)
@settings(max_examples=600, deadline=None, suppress_health_check=FIXED)
@given(data=st.data())
def test_many_merges_are_those_of_the_library_or_refused(form: str, capsys: Capture, data: st.DataObject) -> None:
    CHECKS[form](capsys, data, form)
