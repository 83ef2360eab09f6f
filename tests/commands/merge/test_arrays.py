"""Merging arrays and tables of types: npy, npz, safetensors, Parquet and .pt, and what of them is refused."""

from __future__ import annotations

import datetime
import io
import json
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.merging import FORMATS, dealt, merge, write_plan
from tests.support.paths import TESTS

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
torch = pytest.importorskip("torch")
pq = pytest.importorskip("pyarrow.parquet")
st_torch = pytest.importorskip("safetensors.torch")
columns = pytest.importorskip("gpusched.commands.merge.formats.parquet")

Capture = pytest.CaptureFixture[str]
CASES = TESTS / "cases" / "files"


def parts(place: Path, form: str, *values: object) -> list[Path]:
    """One part of each value, in a format that has a function for it."""
    paths = [place / f"p{number}.{form}" for number in range(len(values))]
    for path, value in zip(paths, values, strict=True):
        if form == "npy":
            np.save(path, value)
        elif form == "npz":
            np.savez(path, **value)  # type: ignore[arg-type]
        elif form == "parquet":
            pq.write_table(pa.table(value), path)
        elif form == "safetensors":
            st_torch.save_file(value, path)
        else:
            torch.save(value, path)
    return paths


# ---- what goes for all -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "parquet", "pt"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.97])
def test_a_cut_part_is_named_and_the_others_are_merged(
    tmp_path: Path, capsys: Capture, form: str, share: float
) -> None:
    write, read = FORMATS[form]
    paths = [tmp_path / f"p{number}.{form}" for number in range(3)]
    for number, path in enumerate(paths):
        write(path, list(range(number * 40, number * 40 + 40)))
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[: int(len(data) * share)])
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *paths)
    assert said.code == 1 and f"p1.{form}: is" in said.err and "INCOMPLETE" in said.out, said
    assert read(tmp_path / f"all.{form}") == [*range(40), *range(80, 120)]
    told = json.loads((tmp_path / "all_merged_metadata.json").read_text())
    assert told["complete"] is False and told["parts"][1]["left_out"]


def test_a_parquet_part_that_is_damaged_from_its_first_row_on_is_not_counted(tmp_path: Path, capsys: Capture) -> None:
    paths = parts(tmp_path, "parquet", {"x": list(range(1000))}, {"x": list(range(1000, 2000))})
    data = bytearray(paths[1].read_bytes())
    data[4:2000] = b"\xff" * 1996
    paths[1].write_bytes(data)
    said = merge(capsys, "-o", tmp_path / "all.parquet", *paths)
    assert said.code == 1 and "p1.parquet: is no Parquet file, or is cut or damaged" in said.err, said
    assert "1,000 records of 1 part, INCOMPLETE" in said.out
    said = merge(capsys, "-o", tmp_path / "none.parquet", paths[1])
    assert said.code == 1 and "nothing of any part can be merged" in said.err, said
    assert not (tmp_path / "none.parquet").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_parts_make_the_same_bytes(tmp_path: Path, capsys: Capture, form: str) -> None:
    write, _ = FORMATS[form]
    paths = [tmp_path / f"p{number}.{form}" for number in range(3)]
    for number, path in enumerate(paths):
        write(path, list(range(number * 5, number * 5 + 5)))
    made = []
    for name in ("a", "b"):
        assert merge(capsys, "-o", tmp_path / f"{name}.{form}", *paths).code == 0
        made.append((tmp_path / f"{name}.{form}").read_bytes())
    assert made[0] == made[1]


# ---- NumPy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            np.zeros((2, 3), np.float64),
            "its content is float64, rows of (3,), and float32, rows of (3,) in p0.npy",
        ),
        (
            np.zeros((2, 4), np.float32),
            "its content is float32, rows of (4,), and float32, rows of (3,) in p0.npy",
        ),
    ],
)
def test_npy_of_other_dtype_or_shape_is_refused(tmp_path: Path, capsys: Capture, other: object, why: str) -> None:
    said = merge(capsys, "-o", tmp_path / "a.npy", *parts(tmp_path, "npy", np.zeros((2, 3), np.float32), other))
    assert said.code == 1 and f"p1.npy: {why}" in said.err and not (tmp_path / "a.npy").exists()


def test_npy_stored_by_columns_structured_or_empty(tmp_path: Path, capsys: Capture) -> None:
    by_rows = np.arange(6.0).reshape(2, 3)
    said = merge(capsys, "-o", tmp_path / "a.npy", *parts(tmp_path, "npy", by_rows, by_rows.T.copy().T, np.array([])))
    assert said.code == 0 and "p2.npy: its content is empty" in said.err
    assert np.load(tmp_path / "a.npy").tolist() == [*by_rows.tolist(), *by_rows.tolist()]
    records = np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
    (tmp_path / "s").mkdir()
    assert merge(capsys, "-o", tmp_path / "s.npy", *parts(tmp_path / "s", "npy", records, records)).code == 0
    assert np.load(tmp_path / "s.npy").tolist() == [(1, 2.5), (1, 2.5)]


def test_npy_of_objects_or_a_scalar_is_left_out(tmp_path: Path, capsys: Capture) -> None:
    values = [np.zeros(2), np.array([{}], dtype=object), np.array(1.0)]
    said = merge(capsys, "-o", tmp_path / "a.npy", *parts(tmp_path, "npy", *values))
    assert (
        said.code == 1
        and "p1.npy: is no .npy file, or is cut or damaged" in said.err
        and "Python objects" in said.err
        and "p2.npy: is a scalar" in said.err
    )


def test_npz_by_name(tmp_path: Path, capsys: Capture) -> None:
    one = {"x": np.arange(3), "n": np.array(3), "lr": np.array(0.1), "name": np.array("m"), "acc": np.array(0.5)}
    two = {"x": np.arange(2), "n": np.array(2), "lr": np.array(0.1), "name": np.array("m"), "acc": np.array(1.0)}
    said = merge(capsys, "-o", tmp_path / "a.npz", *parts(tmp_path, "npz", one, two), "--sum", "n")
    assert said.code == 0 and "'acc' differs from part to part" in said.err, said
    with np.load(tmp_path / "a.npz") as found:
        assert {name: found[name].tolist() for name in found} == {
            "x": [0, 1, 2, 0, 1],
            "n": 5,
            "lr": 0.1,
            "name": "m",
            "acc": [0.5, 1.0],
        }
    told = json.loads((tmp_path / "a_merged_metadata.json").read_text())
    assert told["totals"] == {}, "none is guessed by another name"


@pytest.mark.parametrize("form", ["npz", "pt"])
def test_a_sum_that_its_dtype_cannot_hold_is_refused(tmp_path: Path, capsys: Capture, form: str) -> None:
    make = np.array if form == "npz" else torch.tensor
    small = [{"n": make([100, 27], dtype=np.int8 if form == "npz" else torch.int8)}, {"n": make([28, 100])}]
    small[1]["n"] = small[1]["n"].astype(np.int8) if form == "npz" else small[1]["n"].to(torch.int8)
    said = merge(capsys, "-o", tmp_path / f"all.{form}", *parts(tmp_path, form, *small), "--sum", "n")
    assert said.code == 1 and "--sum n: the sum is no" in said.err and not (tmp_path / f"all.{form}").exists()
    fits = [{"n": one["n"][1:] * 0 + 60} for one in small]
    assert merge(capsys, "-o", tmp_path / f"all.{form}", *parts(tmp_path, form, *fits), "--sum", "n").code == 0


@pytest.mark.parametrize("form", ["npz", "pt"])
@pytest.mark.parametrize("kind", ["int64", "uint64", "int32"])
def test_sums_of_whole_numbers_are_exact_or_refused(tmp_path: Path, capsys: Capture, form: str, kind: str) -> None:
    last, least = int(np.iinfo(kind).max), int(np.iinfo(kind).min)
    half = last // 2 + 1  # twice this is one too many
    for name, columns, whole in [
        ("exact", ([half, -1 if least else 0, last], [half - 1, least // 2, 0], [0, 0, 0]), True),
        ("over and back", ([half, 1, 2], [half, 1, 2], [-1 if least else 0, 1, 2]), bool(least)),
        ("too much", ([half, 1, 2], [half, 1, 2], [0, 0, 0]), False),
        ("twice round", ([last, 1, 2], [last, 1, 2], [2, 1, 2]), False),
    ]:
        (tmp_path / name).mkdir()
        arrays = [np.array(column, dtype=kind) for column in columns]
        values = [{"n": one if form == "npz" else torch.from_numpy(one)} for one in arrays]
        out = tmp_path / name / f"all.{form}"
        said = merge(capsys, "-o", out, *parts(tmp_path / name, form, *values), "--sum", "n")
        if not whole:
            assert said.code == 1 and f"--sum n: the sum is no {kind}" in said.err, name
            assert not out.exists()
            continue
        assert said.code == 0, (name, said)
        read = {"npz": np.load, "pt": torch.load}[form]
        assert read(out)["n"].tolist() == [sum(numbers) for numbers in zip(*columns, strict=True)], name


def test_npz_text_is_not_added_up(tmp_path: Path, capsys: Capture) -> None:
    said = merge(
        capsys, "-o", tmp_path / "all.npz", *parts(tmp_path, "npz", *[{"t": np.array(["a"])}] * 2), "--sum", "t"
    )
    assert said.code == 1 and "--sum t: the sum is no text" in said.err


def test_npz_text_of_any_width_is_joined(tmp_path: Path, capsys: Capture) -> None:
    values = ({"t": np.array(["a", "bb"]), "s": np.array([b"x"])}, {"t": np.array(["cccc"]), "s": np.array([b"yyy"])})
    assert merge(capsys, "-o", tmp_path / "all.npz", *parts(tmp_path, "npz", *values)).code == 0
    with np.load(tmp_path / "all.npz") as found:
        assert found["t"].tolist() == ["a", "bb", "cccc"] and found["s"].tolist() == [b"x", b"yyy"]


def test_parquet_repeated_nanoseconds_are_found(tmp_path: Path, capsys: Capture) -> None:
    values = [{"t": pa.array(stamps, pa.timestamp("ns"))} for stamps in ([1, 2], [2, 3, None])]
    words = ("--key", "t", "--on-duplicate", "keep-first")
    assert merge(capsys, "-o", tmp_path / "all.parquet", *parts(tmp_path, "parquet", *values), *words).code == 0
    assert pq.read_table(tmp_path / "all.parquet")["t"].cast(pa.int64()).to_pylist() == [1, 2, 3, None]


@pytest.mark.parametrize("form", ["npz", "pt", "safetensors"])
def test_an_array_that_some_lack_is_refused_or_told(tmp_path: Path, capsys: Capture, form: str) -> None:
    make, out = np.zeros if form == "npz" else torch.zeros, tmp_path / f"a.{form}"
    values = [{"x": make(2), "y": make(2)}, {"x": make(2)}, {"x": make(2), "y": make(2)}]
    said = merge(capsys, "-o", out, *parts(tmp_path, form, *values))
    assert said.code == 1 and f"'y' is in 2 of 3 parts, and not in p1.{form}" in said.err, said
    assert not out.exists()
    del values[2]["y"]
    said = merge(capsys, "-o", out, *parts(tmp_path, form, *values), "--sum", "y", "--sum", "z")
    assert said.code == 0 and f"p0.{form}: 'y': only one part has it; taken as it is" in said.err, said
    if form != "safetensors":
        assert "--sum z: no part has a number under this key" in said.err and "--sum y" not in said.err


# ---- safetensors -----------------------------------------------------------------------------------


def test_safetensors_of_any_dtype_with_metadata(tmp_path: Path, capsys: Capture) -> None:
    paths = []
    for number in range(2):
        values = {
            "b": torch.full((2, 2), number, dtype=torch.bfloat16),
            "f8": torch.zeros(1, 3).to(torch.float8_e4m3fn),
            "ok": torch.tensor([True]),
            "step": torch.tensor(7),
            "loss": torch.tensor(number / 2),
            "n": torch.tensor(10 + number),
        }
        paths.append(tmp_path / f"p{number}.safetensors")
        st_torch.save_file(values, paths[-1], {"format": "pt", "shard": str(number)})
    said = merge(capsys, "-o", tmp_path / "a.safetensors", *paths, "--sum", "n")
    assert (
        said.code == 0
        and "'loss' differs" in said.err
        and "shard: the texts differ from part to part" in said.err
        and "--sum adds nothing up in .safetensors" in said.err
    ), said
    found = st_torch.load_file(tmp_path / "a.safetensors")
    assert found["b"].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert found["f8"].shape == (2, 3) and found["ok"].tolist() == [True, True]
    assert found["step"].tolist() == 7 and found["loss"].tolist() == [0.0, 0.5] and found["n"].tolist() == [10, 11]
    from safetensors import safe_open

    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def safetensors(path: Path, dtype: str, shape: list[int], data: bytes) -> Path:
    header = json.dumps({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"__metadata__": "abc"}, "is damaged: its metadata is not a JSON object"),
        ({"__metadata__": [1]}, "is damaged: its metadata is not a JSON object"),
        ({"__metadata__": [["a", "b"]]}, "is damaged: its metadata is not a JSON object"),
        (
            {"y": {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]}},
            "gives the tensor y a negative size",
        ),
        ({"__metadata__": None}, ""),
        ({"__metadata__": {"a": 1}}, ""),
    ],
)
def test_safetensors_of_an_odd_header_are_left_out(tmp_path: Path, capsys: Capture, more: object, why: str) -> None:
    good = safetensors(tmp_path / "p0.safetensors", "F32", [1], b"abcd")
    odd = tmp_path / "p1.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, **more}).encode()  # type: ignore[dict-item]
    odd.write_bytes(len(header).to_bytes(8, "little") + header + b"efgh")
    said = merge(capsys, "-o", tmp_path / "all.safetensors", good, odd)
    assert said.code == bool(why) and why in said.err, said
    assert (tmp_path / "all.safetensors").read_bytes().endswith(b"abcd" if why else b"abcdefgh")


def test_safetensors_whose_rows_are_no_whole_bytes_keep_the_order_of_the_parts(tmp_path: Path, capsys: Capture) -> None:
    for n in range(2):
        safetensors(tmp_path / f"x_gpu_{n}.safetensors", "F4", [4, 1], bytes([n, n + 2]))
    paths = [tmp_path / f"x_gpu_{n}.safetensors" for n in range(2)]
    assert merge(capsys, "-o", tmp_path / "all.safetensors", *paths).code == 0
    assert (tmp_path / "all.safetensors").read_bytes().endswith(bytes([0, 2, 1, 3]))
    plan = write_plan(tmp_path / "p.json", 8, 2, f"{tmp_path}/*_{{suffix}}.safetensors", strategy="strided")
    said = merge(capsys, "--plan", plan)
    assert said.code == 1 and "rows of F4 are no whole bytes: their order cannot be restored" in said.err, said


def test_negative_sizes_are_no_array(tmp_path: Path, capsys: Capture) -> None:
    good = [safetensors(tmp_path / "q.safetensors", "F32", [1, 1], b"abcd"), tmp_path / "q.npy"]
    np.save(good[1], np.zeros(3))
    bad = [safetensors(tmp_path / "p.safetensors", "F32", [-1, -1], b"abcd"), tmp_path / "p.npy"]
    with open(bad[1], "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (-3,)})
        file.write(bytes(24))
    for one, other in zip(bad, good, strict=True):
        said = merge(capsys, "-o", tmp_path / f"all{one.suffix}", one, other)
        assert said.code == 1 and "negative" in said.err and "INCOMPLETE" in said.out, said


def with_header(path: Path, damage: Callable[[bytearray], None]) -> Path:
    """A .npy part, or .npz with sound checksums, whose array has this done to its file."""
    made = io.BytesIO()
    np.save(made, np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    data = bytearray(made.getvalue())
    damage(data)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", bytes(data))
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", ["npy", "npz"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"}", b"\0"),
        (b"'<f8'", b"'<,8'"),
        (b" 'fort", b"b'fort"),
        (b"(4, 3)", b"(4L,3}"),
        (b"(4, 3), } ", b"(4, 9**9)}"),
        (b"(4, 3), }" + b" " * 20, b"(0, 9999999999999999999)}    "),
        (b"(4, 3), }", b"(4, 33),}"),
        (b"(4, 3)", b"(('a))"),
    ],
)
def test_a_damaged_header_of_numpy_is_named_and_the_others_are_merged(
    tmp_path: Path, capsys: Capture, form: str, old: bytes, new: bytes
) -> None:
    def damage(data: bytearray) -> None:
        assert data.count(old) == 1 and len(new) == len(old)
        data[:] = data.replace(old, new)

    good = [with_header(tmp_path / f"p{n}.{form}", lambda data: None) for n in (0, 2)]
    said = merge(capsys, "-o", tmp_path / f"all.{form}", good[0], with_header(tmp_path / f"p1.{form}", damage), good[1])
    assert said.code == 1 and f"p1.{form}: " in said.err and "2 parts, INCOMPLETE" in said.out, said
    found = np.load(tmp_path / f"all.{form}")
    rows = (found["x"] if form == "npz" else found).tolist()
    assert rows == np.arange(12.0).reshape(4, 3).tolist() * 2


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_no_byte_of_a_header_of_numpy_does_more_than_lose_its_part(tmp_path: Path, capsys: Capture, form: str) -> None:
    chance = random.Random(7)
    likely = b"\0{}[]()',:\"0123456789LTFNeU<>|= \n\\#xO-+.*b"

    def damage(data: bytearray) -> None:
        for _ in range(chance.choice((1, 1, 2, 4, 12))):
            data[chance.randrange(128)] = chance.choice(likely) if chance.random() < 0.8 else chance.randrange(256)

    good = with_header(tmp_path / f"p0.{form}", lambda data: None)
    lost = 0
    for _ in range(400):
        bad = with_header(tmp_path / f"p1.{form}", damage)
        said = merge(capsys, "-o", tmp_path / f"all.{form}", good, bad, "--overwrite")
        assert said.code in (0, 1) and "Warning" not in said.err
        lost += f"p1.{form}: " in said.err and "1 part, INCOMPLETE" in said.out
    assert lost > 200


def test_safetensors_that_do_not_go_together(tmp_path: Path, capsys: Capture) -> None:
    values = [{"w": torch.zeros(2, 3)}, {"w": torch.zeros(2, 3).half()}]
    said = merge(capsys, "-o", tmp_path / "a.safetensors", *parts(tmp_path, "safetensors", *values))
    assert (
        said.code == 1
        and "p1.safetensors: 'w' is F16, rows of (3,), and F32, rows of (3,) in p0.safetensors" in said.err
    )


# ---- Parquet ---------------------------------------------------------------------------------------


def test_parquet_columns_by_name_and_types_widened_exactly(tmp_path: Path, capsys: Capture) -> None:
    one = {"id": pa.array([1], pa.int32()), "f": pa.array([1.5], pa.float32()), "s": ["a"], "e": pa.array([None])}
    two = {"s": pa.array(["b"], pa.large_string()), "f": [2.5], "id": [2**40], "e": [[1]], "new": [True]}
    said = merge(capsys, "-o", tmp_path / "a.parquet", *parts(tmp_path, "parquet", one, two))
    assert said.code == 0, said
    assert "column 'id' is widened to int64" in said.err and "column 'new' is not in p0.parquet: null there" in said.err
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [
        {"id": 1, "f": 1.5, "s": "a", "e": None, "new": None},
        {"id": 2**40, "f": 2.5, "s": "b", "e": [1], "new": True},
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.float32()),
        (pa.string(), pa.int64()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.bool_(), pa.int8()),
    ],
)
def test_types_that_nothing_holds_exactly_are_refused(
    tmp_path: Path, capsys: Capture, one: object, other: object
) -> None:
    values = [{"c": pa.array([None], kind)} for kind in (one, other)]
    said = merge(capsys, "-o", tmp_path / "a.parquet", *parts(tmp_path, "parquet", *values))
    assert said.code == 1 and "p1.parquet: " in said.err and str(one) in said.err and str(other) in said.err, said
    assert not (tmp_path / "a.parquet").exists()


def test_types_that_are_widened() -> None:
    for one, other, found in [
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float16(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.list_(pa.int64()), pa.list_(pa.float64()), None),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.float64())]), None),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.float64()), None),
        (pa.decimal128(9, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(9, 2), pa.float64(), None),
        (pa.binary(), pa.string(), None),
    ]:
        for pair in ((one, other), (other, one)):
            schemas = [pa.schema([("c", kind)]) for kind in pair]
            if found is not None:
                assert columns.widened(*schemas).field("c").type == found, pair
                continue
            with pytest.raises((ValueError, pa.ArrowException)):
                columns.widened(*schemas)


def test_parquet_value_that_does_not_fit_a_finer_unit(tmp_path: Path, capsys: Capture) -> None:
    early = [datetime.datetime(1, 1, 1)]
    values = [{"t": pa.array(early, pa.timestamp("ms"))}, {"t": pa.array([0], pa.timestamp("ns"))}]
    said = merge(capsys, "-o", tmp_path / "a.parquet", *parts(tmp_path, "parquet", *values))
    assert said.code == 1 and "p0.parquet: does not fit into the types of all parts" in said.err


@pytest.mark.parametrize(("policy", "names"), [("keep-first", ["a", "b"]), ("keep-last", ["b", "c"])])
def test_parquet_repeated_rows(tmp_path: Path, capsys: Capture, policy: str, names: list[str]) -> None:
    paths = parts(tmp_path, "parquet", {"id": [1, 2], "n": ["a", "b"]}, {"id": [1], "n": ["c"]})
    said = merge(capsys, "-o", tmp_path / "a.parquet", *paths, "--key", "id")
    assert said.code == 1 and "p1.parquet, row 1: 1 is there before" in said.err
    assert merge(capsys, "-o", tmp_path / "a.parquet", *paths, "--key", "id", "--on-duplicate", policy).code == 0
    assert pq.read_table(tmp_path / "a.parquet").column("n").to_pylist() == names


def test_parquet_without_columns(tmp_path: Path, capsys: Capture) -> None:
    paths = parts(tmp_path, "parquet", {}, {})
    for path in paths:  # rows all the same
        pq.write_table(pa.table({"x": [1, 2]}).select([]), path)
    said = merge(capsys, "-o", tmp_path / "a.parquet", *paths)
    assert said.code == 0, said
    assert merge(capsys, "-o", tmp_path / "b.parquet", *paths, "--key", "x").code == 0, "no row lacks it"


def test_parquet_repeated_times_of_any_unit_are_found(tmp_path: Path, capsys: Capture) -> None:
    for name in ("ns", "us"):
        times = pa.array([0, 1000], pa.timestamp(name)), pa.array([1000, 1], pa.timestamp(name))
        paths = parts(tmp_path, "parquet", *({"t": held, "n": [0, 1]} for held in times))
        said = merge(capsys, "-o", tmp_path / "a.parquet", *paths, "--key", "t")
        assert said.code == 1 and "1 repeated record by t:\n  " in said.err and "p1.parquet, row 1: " in said.err, said


def test_parquet_repeated_rows_of_a_type_that_cannot_be_compared(tmp_path: Path, capsys: Capture) -> None:
    times = pa.array([[1], [1]], pa.list_(pa.timestamp("ns")))
    said = merge(capsys, "-o", tmp_path / "a.parquet", *parts(tmp_path, "parquet", {"t": times}), "--key", "t")
    assert said.code == 1 and "no repeated rows can be found by a column of list<" in said.err, said


@pytest.mark.parametrize(("strategy", "seed"), [("contiguous", None), ("strided", None), ("strided", 4)])
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_parquet_part_takes_no_other_with_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, strategy: str, seed: int | None, first: bool
) -> None:
    """The first or the last row group of one part is damaged: what stands before it is kept, and all of the others."""
    monkeypatch.setattr(columns, "BATCH_ROWS", 4)
    items = dealt(30, 3, strategy, seed)
    for i in range(3):
        table = pa.table({"id": pa.array(items[i], pa.int64()), "name": [f"name {item}" for item in items[i]]})
        pq.write_table(table, tmp_path / f"x_gpu_{i}.parquet", row_group_size=4, compression="none")
    damaged = tmp_path / "x_gpu_1.parquet"
    group = pq.read_metadata(damaged).row_group(0 if first else 2).column(1)
    data = bytearray(damaged.read_bytes())
    begin = group.dictionary_page_offset
    data[begin : begin + group.total_compressed_size] = bytes(group.total_compressed_size)
    damaged.write_bytes(data)
    plan = write_plan(tmp_path / "p.json", 30, 3, f"{tmp_path}/*_{{suffix}}.parquet", strategy=strategy, seed=seed)
    said = merge(capsys, "--plan", plan)
    kept = [] if first else items[1][:8]
    begin = "" if first else "from record 9 on it "
    assert said.code == 1 and f"x_gpu_1.parquet: {begin}is no Parquet file, or is cut or damaged" in said.err, said
    found = pq.read_table(tmp_path / "x_merged.parquet")
    if strategy == "strided" and first:  # what is there has its order
        assert found.column("id").to_pylist() == sorted([*items[0], *items[2]])
    else:
        assert found.column("id").to_pylist() == [*items[0], *kept, *items[2]]
    if strategy == "strided" and not first:
        assert "x_merged.parquet: 8 rows for 10 items in x_gpu_1.parquet, so the parts stand one after" in said.err
    assert found.column("name").to_pylist() == [f"name {item}" for item in found.column("id").to_pylist()]
    told = json.loads((tmp_path / "x_merged_metadata.json").read_text())
    assert [part["records"] for part in told["parts"]] == [10, len(kept), 10] and not told["complete"]
    assert f"{20 + len(kept)} records of {2 if first else 3} parts" in said.out


# ---- PyTorch ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_case_46_pt(tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(CASES / "46-merge" / "make_pt.py", tmp_path)
    subprocess.run([sys.executable, "make_pt.py"], cwd=tmp_path, check=True)
    paths = [tmp_path / f"p_gpu_{number}.pt" for number in range(4)]
    said = merge(capsys, "-o", tmp_path / "p.pt", *paths)
    assert said.code == 1
    assert "p_gpu_1.pt: holds" not in said.err, "a scalar of NumPy needs no trust"
    assert "p_gpu_2.pt: is no file of torch.save, or is cut" in said.err
    found = torch.load(tmp_path / "p.pt", weights_only=False)
    assert found["rows"] == [1, 2, 3, 5] and found["w"].shape == (4, 3) and found["score"] == 0.5


def test_pt_dicts_by_the_rules(tmp_path: Path, capsys: Capture) -> None:
    one = {
        "emb": torch.zeros(2, 3),
        "texts": ["a", "b"],
        "model": "m",
        "count": 2,
        "start_idx": 0,
        "loss": torch.tensor(0.5),
        "hist": torch.tensor([1, 2]),
        "pair": (1,),
        "meta": {"steps": [1], "n": 2, "nan": float("nan")},
        "only": torch.zeros(1),
        "grad": torch.nn.Parameter(torch.ones(1)),
    }
    two = {**one, "emb": torch.ones(1, 3), "texts": ["c"], "count": 1, "start_idx": 2, "loss": torch.tensor(0.25)}
    two |= {"hist": torch.tensor([10, 20]), "meta": {"steps": [2], "n": 3, "nan": float("nan")}}
    del two["only"]
    paths = parts(tmp_path, "pt", one, two)
    said = merge(capsys, "-o", tmp_path / "a.pt", *paths, "--sum", "count", "--sum", "meta.n", "--sum", "hist")
    assert said.code == 0, said
    assert "'start_idx' differs from part to part: a list" in said.err
    assert "'loss' differs from part to part: one value for each part" in said.err
    assert "p0.pt: 'only': only one part has it" in said.err
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["emb"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3] and found["texts"] == ["a", "b", "c"]
    assert (found["model"], found["count"], found["start_idx"], found["pair"]) == ("m", 3, [0, 2], (1,))
    assert found["loss"].tolist() == [0.5, 0.25] and found["hist"].tolist() == [11, 22]
    assert found["meta"]["steps"] == [1, 2] and found["meta"]["n"] == 5 and found["meta"]["nan"] != found["meta"]["nan"]
    assert found["grad"].tolist() == [1.0, 1.0] and list(found) == list(one)


def test_pt_tuples_that_are_equal_are_kept_and_others_joined(tmp_path: Path, capsys: Capture) -> None:
    same = {"betas": (0.9, 0.999), "size": torch.Size([2, 3]), "none": (float("nan"), (1, None)), "row": ("a",) * 3}
    one = {"x": torch.zeros(3, 1), **same, "ids": (1, 2, 3), "kind": (1, 0), "t": (torch.ones(2),)}
    two = {"x": torch.ones(3, 1), **same, "ids": (4, 5, 6), "kind": (True, 0), "t": (torch.ones(2),)}
    said = merge(capsys, "-o", tmp_path / "a.pt", *parts(tmp_path, "pt", one, two))
    assert said.code == 0 and "a.pt: 6 records of 2 parts" in said.out, said
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["betas"] == (0.9, 0.999) and found["size"] == torch.Size([2, 3]) and found["row"] == ("a",) * 3
    assert found["none"][1] == (1, None) and len(found["none"]) == 2 and len(found["t"]) == 2
    assert found["ids"] == (1, 2, 3, 4, 5, 6) and found["kind"] == (1, 0, True, 0) and found["x"].shape == (6, 1)
    assert merge(capsys, "-o", tmp_path / "b.pt", *parts(tmp_path, "pt", (1, 2), (1, 2))).code == 0
    assert torch.load(tmp_path / "b.pt", weights_only=True) == (1, 2, 1, 2)  # a part that is a tuple is its records


@pytest.mark.parametrize("form", ["pt", "npz"])
def test_what_is_added_up_has_no_records(tmp_path: Path, capsys: Capture, form: str) -> None:
    made = np.ones if form == "npz" else torch.ones
    for i, (name, others, count) in enumerate([("h", {}, None), ("a.h", {"x": made((5, 2))}, 10)]):
        value = {name: made(2), **others}
        out = tmp_path / f"all{i}.{form}"
        said = merge(capsys, "-o", out, *parts(tmp_path, form, value, value), "--sum", "h")
        assert said.code == 0 and f"{out}: {'10 records of ' if count else ''}2 parts" in said.out, said
        assert json.loads((tmp_path / f"all{i}_merged_metadata.json").read_text())["records"] == count


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (
            {"w": torch.zeros(1, 2)},
            {"w": torch.zeros(1, 3)},
            "p1.pt: 'w' is float32, rows of (3,), and float32, rows of (2,)",
        ),
        (
            {"w": torch.zeros(1)},
            {"w": torch.zeros(1).double()},
            "p1.pt: 'w' is float64, rows of (), and float32, rows of () in p0.pt",
        ),
        ({"w": torch.zeros(1)}, {"w": [0.0]}, "p1.pt: 'w' is list, and array in p0.pt"),
        ({"n": 1}, {"n": "x"}, "--sum n: it is no number in all parts"),
        (3, 4, "p0.pt: is one int: nothing that can be joined"),
    ],
)
def test_pt_that_do_not_go_together(tmp_path: Path, capsys: Capture, one: object, two: object, why: str) -> None:
    said = merge(capsys, "-o", tmp_path / "a.pt", *parts(tmp_path, "pt", one, two), "--sum", "n")
    assert said.code == 1 and why in said.err, said
    assert not (tmp_path / "a.pt").exists()


@pytest.mark.filterwarnings("ignore")  # of torch, about the odd tensors that are made here
def test_pt_that_torch_cannot_join_or_would_round_is_refused(tmp_path: Path, capsys: Capture) -> None:
    nested = [torch.nested.nested_tensor([torch.zeros(n)]) for n in (2, 3)]
    said = merge(capsys, "-o", tmp_path / "all.pt", *parts(tmp_path, "pt", *({"x": one} for one in nested)))
    assert said.code == 1 and "torch cannot join these" in said.err, said
    rounded = [torch.quantize_per_tensor(torch.ones(2), scale, 0, torch.qint8) for scale in (0.01, 0.5)]
    said = merge(capsys, "-o", tmp_path / "all.pt", *parts(tmp_path, "pt", *({"x": one} for one in rounded)))
    assert said.code == 1 and "torch cannot join these: they are quantized" in said.err, said
    assert not (tmp_path / "all.pt").exists()


def test_pt_tensors_lists_and_items_by_key(tmp_path: Path, capsys: Capture) -> None:
    for name, one, two, whole in [
        ("t", torch.zeros(1), torch.ones(2), [0.0, 1.0, 1.0]),
        ("l", [{"a": 1}], [{"a": 2}], [{"a": 1}, {"a": 2}]),
        ("d", {"item_0": [1]}, {"item_1": [2]}, {"item_0": [1], "item_1": [2]}),
        ("e", torch.zeros(2, 2), torch.tensor([]), [[0.0, 0.0], [0.0, 0.0]]),
    ]:
        (tmp_path / name).mkdir()
        assert merge(capsys, "-o", tmp_path / f"{name}.pt", *parts(tmp_path / name, "pt", one, two)).code == 0
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert (found.tolist() if hasattr(found, "tolist") else found) == whole


def test_pt_that_names_code_is_not_loaded(tmp_path: Path, capsys: Capture) -> None:
    torch.save({"f": subprocess.Popen, "g": eval}, tmp_path / "a.pt")
    said = merge(capsys, "-o", tmp_path / "m.pt", tmp_path / "a.pt")
    assert said.code == 1 and "subprocess.Popen" in said.err and "--allow-pickle" in said.err
    (tmp_path / "b.pt").write_bytes(b"not a file of torch")
    said = merge(capsys, "-o", tmp_path / "m.pt", tmp_path / "b.pt")
    assert said.code == 1 and "b.pt: is" in said.err and not (tmp_path / "m.pt").exists()
