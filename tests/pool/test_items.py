"""The items of a pool as they are read, and the store that keeps them."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.host.store.pool.items import ItemOutcome, ItemStore, NewItem
from gpusched.pool.coordinator.backlog import Backlog
from gpusched.pool.coordinator.verdicts import NextTry
from gpusched.pool.items import read_items
from gpusched.pool.options import PoolOptions

FIRST = (float("-inf"), 0)


def read(path: Path | str, **options: Any) -> list[Any]:
    return [json.loads(item.value) for item in read_items(PoolOptions(items=str(path), **options))]


def test_items_of_each_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo words\n\n  \nthr\xc3\xa9e")
    assert read(tmp_path / "a.txt") == ["one", "two words", "thrée"]
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n[2]\n"x"\n')
    assert read(tmp_path / "a.jsonl") == [{"a": 1}, [2], "x"]
    (tmp_path / "a.csv").write_text('id,text\n1,"a, b"\n2,"line\nbreak"\n')
    assert read(tmp_path / "a.csv") == [{"id": "1", "text": "a, b"}, {"id": "2", "text": "line\nbreak"}]
    for name in ("v10.mp4", "v2.mp4"):
        (tmp_path / name).touch()
    assert read(tmp_path / "*.mp4") == [f"{tmp_path}/v2.mp4", f"{tmp_path}/v10.mp4"]


def test_items_of_a_parquet_file(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table({"id": [1, 2], "text": ["a", None]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [{"id": 1, "text": "a"}, {"id": 2, "text": None}]


@pytest.mark.parametrize(
    ("name", "text", "options", "problem"),
    [
        ("a.jsonl", "{", {}, "line 1 is no JSON"),
        ("a.txt", "a\n", {"key": "id"}, "no fields"),
        ("a.jsonl", '{"a": 1}\n', {"size_key": "b"}, "no field 'b'"),
        ("a.jsonl", '\n{"a": NaN}\n', {}, "line 2 is no JSON"),
        ("a.json", "[1]", {}, "items cannot be read from .json"),
        ("none.txt", None, {}, "there is no such file"),
        ("*.none", None, {}, "no file matches"),
        ("a.txt", "a\0b", {}, "NUL"),
        ("a.txt", b"b\ncaf\xe9\n", {}, "item 2: it is no text in UTF-8"),
    ],
)
def test_wrong_items_are_refused(
    tmp_path: Path, name: str, text: str | bytes | None, options: dict[str, Any], problem: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GpuschedError, match=problem):
        read(tmp_path / name, **options)


# ---- the store -------------------------------------------------------------------------------------


def new(*names: str) -> Iterator[NewItem]:
    return (NewItem(name.encode(), float(n), json.dumps(name).encode()) for n, name in enumerate(names))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ItemStore]:
    with ItemStore(str(tmp_path / "items.db")) as store:
        yield store


def test_an_item_is_its_content_and_its_occurrence(store: ItemStore) -> None:
    assert store.replace_list(new("a", "b", "b")) == 3
    store.record([ItemOutcome(item.id, "result", b"1") for item in store.open_items(FIRST, 2)])
    assert store.counts() == (3, 2, 0)
    assert store.replace_list(new("b", "c", "a", "b")) == 1
    assert [row.kind for row in store.listed()] == ["result", None, "result", None]
    store.replace_list(new("c"))
    assert store.counts() == (1, 0, 0)


def test_an_item_has_one_outcome_whatever_comes_later(store: ItemStore) -> None:
    store.replace_list(new("a"))
    (item,) = store.open_items(FIRST, 9)
    store.record([ItemOutcome(item.id, "result", b"1")])
    store.record([ItemOutcome(item.id, "error", b"2"), ItemOutcome(item.id, "result", b"3")])
    assert [row.document for row in store.listed()] == [b"1"]
    assert store.open_item(item.id) is None


def test_pages_are_in_the_order_of_the_ranks_and_leave_out_what_is_done(store: ItemStore) -> None:
    store.replace_list(NewItem(b"%d" % n, -float(n % 7), b"%d" % n) for n in range(50))
    backlog = Backlog(lambda after, limit: store.open_items(after, min(limit, 8)))
    first = backlog.take()
    assert first is not None
    assert first.rank == -6
    backlog.exclude(store.open_items(FIRST, 30)[-1].id)
    ranks = [first.rank]
    while (item := backlog.take()) is not None:
        ranks.append(item.rank)
    assert ranks == sorted(ranks)
    assert len(ranks) == 49
    assert backlog.is_empty


def test_an_item_whose_worker_died_is_tried_alone_also_by_the_next_coordinator(store: ItemStore) -> None:
    store.replace_list(new("a", "b"))
    store.record([], [(0, 1, 1)])
    backlog = Backlog(store.open_items)
    taken = backlog.take()
    assert taken is not None
    assert taken.id == 2
    assert backlog.has(NextTry.ALONE)
    alone = backlog.take(NextTry.ALONE)
    assert alone is not None
    assert (alone.id, alone.deaths) == (1, 1)


@pytest.mark.slow
def test_memory_is_flat_for_a_long_list(store: ItemStore) -> None:
    store.replace_list(NewItem(b"%d" % n, float(n), b"1") for n in range(10_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store.replace_list(NewItem(b"%d" % n, float(n), b"1") for n in range(300_000))
    backlog = Backlog(store.open_items)
    while (item := backlog.take()) is not None:
        store.record([ItemOutcome(item.id, "result", b"1")]) if item.id % 1000 == 0 else None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 12_000  # KiB
