"""The stage that publishes the parts of a pool: their formats, and their copies at a URL that fails in many ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec")
pq = pytest.importorskip("pyarrow.parquet")

from gpusched.commands.publish import parts as parts_module  # noqa: E402
from gpusched.commands.publish.formats import convert  # noqa: E402
from gpusched.commands.publish.parts import RECORD, PartsPublisher  # noqa: E402
from gpusched.commands.publish.upload import Destination, UploadDamaged  # noqa: E402

from gpusched.pool.publication import Publication, check_files  # noqa: E402


def write_rows(path: Path, *results: Any) -> str:
    path.write_text("".join(json.dumps({"item": f"i{n}", "result": each}) + "\n" for n, each in enumerate(results)))
    return str(path)


# ---- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "results",
    [
        [{"text": "a", "score": 1.5}, {"text": "b"}],
        [1, 2.5, None],
        [[1, 2], [], [3]],
        ["x"] * 1001 + [None],  # more than a batch
        [None] * 1001 + ["x"],
    ],
)
def test_parquet_has_the_values(tmp_path: Path, results: list[Any]) -> None:
    convert(write_rows(tmp_path / "p.jsonl", *results), str(tmp_path / "p.parquet"))
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["item"] for row in rows] == [f"i{n}" for n in range(len(results))]
    names = {name for each in results if isinstance(each, dict) for name in each}
    full = [{name: each.get(name) for name in names} if isinstance(each, dict) else each for each in results]
    assert [row["result"] for row in rows] == full


@pytest.mark.parametrize("results", [[1, "one"], [{}, {}], [{"a": {}}], [{"a": 1}, [2]], [2**70]])
def test_results_of_no_common_type_become_text(tmp_path: Path, results: list[Any]) -> None:
    convert(write_rows(tmp_path / "p.jsonl", *results), str(tmp_path / "p.parquet"))
    assert [json.loads(row["result"]) for row in pq.read_table(tmp_path / "p.parquet").to_pylist()] == results


def test_joined_results_are_columns(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text('{"A": [1, 2], "B": ["x", null]}')
    convert(str(tmp_path / "d.json"), str(tmp_path / "d.parquet"))
    assert pq.read_table(tmp_path / "d.parquet").to_pydict() == {"A": [1, 2], "B": ["x", None]}


def test_no_results_are_a_file_too(tmp_path: Path) -> None:
    convert(write_rows(tmp_path / "p.jsonl"), str(tmp_path / "p.parquet"))
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 0


@pytest.mark.slow
def test_pt_stacks_what_has_one_shape_and_loses_no_bit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def converted(*results: Any) -> Any:
        convert(write_rows(tmp_path / "p.jsonl", *results), str(tmp_path / "p.pt"))
        loaded = torch.load(tmp_path / "p.pt", weights_only=True)
        assert loaded["items"] == [f"i{n}" for n in range(len(results))]
        return loaded["results"]

    assert converted([0.5, 1.0], [2.0, 3.0]).dtype == torch.float32
    assert converted(0.1, 0.2).tolist() == [0.1, 0.2]  # float64, since float32 would round
    assert converted([1], [1, 2]) == [[1], [1, 2]]
    assert converted(1, None) == [1, None]
    both = converted({"n": 1, "t": "a"}, {"n": 2, "t": "b"})
    assert both["n"].tolist() == [1, 2]
    assert both["t"] == ["a", "b"]
    (tmp_path / "d.json").write_text('{"A": [1, 2], "B": ["x"]}')
    convert(str(tmp_path / "d.json"), str(tmp_path / "d.pt"))
    joined = torch.load(tmp_path / "d.pt", weights_only=True)
    assert (joined["A"].tolist(), joined["B"]) == ([1, 2], ["x"])


def test_a_file_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_text("old")
    (tmp_path / "p.jsonl").write_text('{"item": 1, "res')
    with pytest.raises(ValueError, match="Unterminated"):
        convert(str(tmp_path / "p.jsonl"), str(tmp_path / "p.parquet"))
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".jsonl"] == ["p.parquet"]
    assert (tmp_path / "p.parquet").read_text() == "old"


# ---- copies ----------------------------------------------------------------------------------------


class FlakyPlace(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
    """A place in memory. `faults`: what the next copies of a name meet: an exception, or the bytes that arrive."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    faults: dict[str, list[Any]] = {}  # noqa: RUF012

    def put_file(self, lpath: str, rpath: str, **more: Any) -> None:
        faults = self.faults.get(rpath.rpartition("/")[2], [])
        fault = faults.pop(0) if faults else None
        if isinstance(fault, Exception):
            raise fault
        self.pipe_file(rpath, Path(lpath).read_bytes() if fault is None else fault)

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        import hashlib

        return {**super().info(path), "ETag": f'"{hashlib.md5(self.cat_file(path)).hexdigest()}"'}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FlakyPlace]]:
    fsspec.register_implementation("flaky", FlakyPlace, clobber=True)
    monkeypatch.setattr(parts_module, "STEP_S", 0.01)
    monkeypatch.setattr(parts_module, "FIRST_DELAY_S", 0.01)
    FlakyPlace.store.clear()
    FlakyPlace.faults.clear()
    yield FlakyPlace
    FlakyPlace.store.clear()


def publish(publication: Publication) -> dict[str, Any]:
    publisher = PartsPublisher(publication)
    publisher.finish()
    publisher.run()
    status: dict[str, Any] = publisher.status
    return status


@pytest.mark.parametrize("url", ["memory://there/deep", "file://{tmp}/there/deep"])
def test_parts_arrive_and_are_not_sent_twice(tmp_path: Path, place: object, url: str) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    for number in (1, 2):
        write_rows(parts / f"part-0000{number}.jsonl", number)
    order = Publication(str(parts), "jsonl", str(tmp_path), url.format(tmp=tmp_path))
    status = publish(order)
    assert (status["uploaded"], status["parts"], status["failed"]) == (2, 2, 0)
    files, root = fsspec.core.url_to_fs(order.url)
    for name in ("part-00001.jsonl", "part-00002.jsonl"):
        assert files.cat_file(f"{root}/{name}") == (parts / name).read_bytes()
    files.rm_file(f"{root}/part-00001.jsonl")  # the record is believed, and it tells one file from a later one
    write_rows(parts / "part-00002.jsonl", 7)  # of the same size
    again = publish(order)
    assert again["uploaded"] == 2
    assert again["bytes"] == (parts / "part-00002.jsonl").stat().st_size
    assert files.cat_file(f"{root}/part-00002.jsonl") == (parts / "part-00002.jsonl").read_bytes()
    assert not files.exists(f"{root}/part-00001.jsonl")


def test_one_failing_part_holds_up_no_other_and_is_tried_again(tmp_path: Path, place: type[FlakyPlace]) -> None:
    for number in (1, 2, 3):
        write_rows(tmp_path / f"part-0000{number}.jsonl", "x" * number)
    whole = (tmp_path / "part-00002.jsonl").read_bytes()
    other = b"y" * len(whole)
    place.faults["part-00002.jsonl"] = [ConnectionError("token=hf_abcdefghijklmnopqrstuvwxyz123456"), b"half", other]
    publisher = PartsPublisher(Publication(str(tmp_path), "jsonl", str(tmp_path), "flaky://there"))
    work = threading.Thread(target=publisher.run)
    work.start()
    try:
        for _ in range(1000):
            if publisher.status["uploaded"] == 3:
                break
            work.join(0.01)
        assert (publisher.status["uploaded"], publisher.status["failed"]) == (3, 0)
        assert "other bytes" in publisher.status["error"]
        assert place.store["flaky://there/part-00002.jsonl"].getvalue() == whole
    finally:
        publisher.finish()
        work.join(10)
    assert not work.is_alive()


def test_a_part_that_keeps_failing_is_given_up_at_the_end_only(
    tmp_path: Path, place: type[FlakyPlace], capfd: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        write_rows(tmp_path / f"part-0000{number}.jsonl", number)
    place.faults["part-00001.jsonl"] = [ConnectionError("key=AKIA0123456789ABCDEF is refused")] * 99
    order = Publication(str(tmp_path), "jsonl", str(tmp_path), "flaky://there")
    status = publish(order)
    assert (status["uploaded"], status["parts"], status["failed"]) == (1, 2, 1)
    assert "ConnectionError" in status["error"]
    assert "AKIA" not in status["error"] + capfd.readouterr().err
    assert len(place.faults["part-00001.jsonl"]) == 99 - parts_module.LAST_TRIES
    place.faults.clear()
    assert publish(order)["uploaded"] == 2
    assert len((tmp_path / RECORD).read_text().splitlines()) == 2


def test_the_end_waits_for_no_late_try(
    tmp_path: Path, place: type[FlakyPlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_module, "FIRST_DELAY_S", 60.0)
    write_rows(tmp_path / "part-00001.jsonl", 1)
    place.faults["part-00001.jsonl"] = [ConnectionError()]
    publisher = PartsPublisher(Publication(str(tmp_path), "jsonl", str(tmp_path), "flaky://there"))
    work = threading.Thread(target=publisher.run, daemon=True)
    work.start()
    while publisher.status["failed"] != 1:
        work.join(0.01)
    publisher.finish()
    work.join(20)
    assert not work.is_alive()
    assert publisher.status["uploaded"] == 1


def test_what_is_too_short_is_refused(tmp_path: Path, place: type[FlakyPlace]) -> None:
    path = write_rows(tmp_path / "p.jsonl", 1)
    place.faults["p.jsonl"] = [b"h"]
    there = Destination("flaky://there", str(tmp_path / RECORD))
    with pytest.raises(UploadDamaged, match="1 bytes"):
        there.put(path, "p.jsonl")
    (tmp_path / RECORD).write_bytes(b'["half of a li')
    there = Destination("flaky://there", str(tmp_path / RECORD))
    there.put(path, "p.jsonl")
    assert there.uploaded_bytes == len(Path(path).read_bytes())


def test_files_go_before_the_part_that_names_them(tmp_path: Path, place: type[FlakyPlace]) -> None:
    (tmp_path / "results").mkdir()
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_text(name)
    write_rows(tmp_path / "results/part-00001.jsonl", "a.png", {"image": str(tmp_path / "b.png")})
    place.faults["b.png"] = [ConnectionError()] * 99
    order = Publication(str(tmp_path / "results"), "files", str(tmp_path), "flaky://there")
    assert publish(order)["uploaded"] == 0
    assert sorted(place.store) == ["flaky://there/a.png"]
    place.faults.clear()
    assert publish(order)["uploaded"] == 1
    assert sorted(place.store) == ["flaky://there/a.png", "flaky://there/b.png", "flaky://there/part-00001.jsonl"]


def test_paths_must_be_files_of_the_output_directory(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_text("")
    (tmp_path / "secret").write_text("")
    (tmp_path / "out/link").symlink_to(tmp_path / "secret")
    check_files(["a", {"x": str(tmp_path / "out/a")}], str(tmp_path / "out"))
    for wrong in ("../secret", str(tmp_path / "secret"), "link"):
        with pytest.raises(ValueError, match="outside"):
            check_files(wrong, str(tmp_path / "out"))
    with pytest.raises(FileNotFoundError, match="no such file"):
        check_files("b", str(tmp_path / "out"))
    nothing: tuple[Any, ...] = (None, [], {}, 3)
    for empty in nothing:
        with pytest.raises(ValueError, match="must be returned"):
            check_files(empty, str(tmp_path / "out"))
