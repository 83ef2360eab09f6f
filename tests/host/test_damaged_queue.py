"""queue.db with damaged pages: every verb works with what can be read, or says that it is damaged and ends with 3."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.cli import main as front
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, EXIT_USAGE
from gpusched.host.store import Store, StoreError
from tests.support.box import Box
from tests.support.sample import Sample9

PIECES = 6  # of the pages, of which one each is damaged in the fast suite
VERBS = (["status"], ["status", "-v"], ["status", "--json"], ["explain", "3"], ["explain", "5"], ["cancel", "5"])
PAGE_BYTES = 4096
WHOLE_PAGES = (bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES, b"gpusched" * (PAGE_BYTES // 8))


@st.composite
def damages(draw: st.DrawFn) -> tuple[int, dict[int, int] | bytes]:
    """Return the number of a page and its damage: what it holds instead, or some bytes by their place in it."""
    some_bytes = st.dictionaries(st.integers(0, PAGE_BYTES - 1), st.integers(0, 255), min_size=1, max_size=30)
    text = st.dictionaries(st.integers(0, PAGE_BYTES - 1), st.integers(32, 126), min_size=1, max_size=200)
    whole = st.sampled_from(WHOLE_PAGES)
    return draw(st.integers(0, 200)), draw(some_bytes | text | whole)


def damage(data: bytes, number: int, changes: dict[int, int] | bytes) -> bytes:
    start = number % (len(data) // PAGE_BYTES) * PAGE_BYTES
    page = bytearray(data[start : start + PAGE_BYTES])
    if isinstance(changes, bytes):
        page[:] = changes
    else:
        for place, value in changes.items():
            page[place] = value
    return data[:start] + bytes(page) + data[start + PAGE_BYTES :]


def _whole(database: str) -> bytes:
    """Return the database as one file."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(database).read_bytes()


def _write(database: str, data: bytes) -> None:
    for ending in ("-wal", "-shm"):
        Path(database + ending).unlink(missing_ok=True)
    Path(database).write_bytes(data)


def test_verbs_on_damaged_pages(sample: Sample9, capsys: pytest.CaptureFixture[str]) -> None:
    sample.close()
    whole = _whole(sample.place.database)

    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=150)
    @given(damages(), st.sampled_from(VERBS))
    def check(change: tuple[int, dict[int, int] | bytes], words: list[str]) -> None:
        _write(sample.place.database, damage(whole, *change))
        code = front.run(words)
        err = capsys.readouterr().err
        assert code in (EXIT_OK, EXIT_USAGE) or (code == EXIT_CANNOT_WORK and "queue.db" in err), err
        assert "Traceback" not in err

    check()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE jobs SET state = 'quened'",
        "UPDATE counts SET state = 'quened' WHERE state = 'queued'",
        "UPDATE attempts SET devices = '[['",
        "UPDATE attempts SET outcome = 'exites' WHERE outcome IS NOT NULL",
        "UPDATE jobs SET env = '[7]'",
        "UPDATE meta SET value = '{' WHERE key = 'settings'",
        "UPDATE meta SET value = '7' WHERE key = 'settings'",
    ],
)
def test_a_value_that_cannot_be_is_damage(sample: Sample9, capsys: pytest.CaptureFixture[str], change: str) -> None:
    with closing(sqlite3.connect(sample.place.database)) as db:
        db.executescript(f"PRAGMA ignore_check_constraints = ON; {change}")
    assert front.run(["status", "-v"]) == EXIT_CANNOT_WORK
    assert "queue.db: is damaged (" in capsys.readouterr().err


def test_a_broken_rule_is_damage_where_the_database_breaks_it_already(sample: Sample9) -> None:
    with pytest.raises(sqlite3.IntegrityError):  # a fault of ours: the database is sound
        sample.store.execute("UPDATE jobs SET identity = x'00'")
    with closing(sqlite3.connect(sample.place.database)) as db:
        db.executescript(
            "PRAGMA writable_schema = ON; "
            "UPDATE sqlite_schema SET sql = replace(sql, 'time_limit_s        REAL', 'time_limit_s REAL NOT NULL')"
        )
    with Store(sample.place.database) as store, pytest.raises(StoreError, match="is damaged"):
        store.execute("UPDATE jobs SET identity = x'00'")


def _check_run(root: Path, number: int, changes: bytes) -> None:
    """Run a list, damage a page, and run a longer one."""
    with Box(root, "2") as box:
        lines = [f"test {n} -lt 9" for n in range(10)]
        assert box.run(*lines[:6]).code == EXIT_OK
        database = str(box.queue() / "queue.db")
        _write(database, damage(_whole(database), number, changes))
        ended = box.run(*lines)
        assert ended.code in (EXIT_OK, EXIT_SOME_FAILED, EXIT_CANNOT_WORK) and "Traceback" not in ended.text, ended
        assert ended.code != EXIT_CANNOT_WORK or "queue.db" in ended.err, ended


def _pages(root: Path) -> int:
    with Box(root, "2") as box:
        assert box.run("true").code == EXIT_OK
        return len(_whole(str(box.queue() / "queue.db"))) // PAGE_BYTES


@pytest.mark.slow
def test_a_run_on_some_damaged_pages(tmp_path: Path) -> None:
    pages = _pages(tmp_path / "count")
    for n in range(PIECES):
        _check_run(tmp_path / str(n), n * pages // PIECES, WHOLE_PAGES[n % len(WHOLE_PAGES)])


@pytest.mark.soak
@pytest.mark.parametrize("changes", WHOLE_PAGES, ids=["zeros", "ones", "text"])
def test_a_run_on_each_damaged_page(tmp_path: Path, changes: bytes) -> None:
    for number in range(_pages(tmp_path / "count")):
        _check_run(tmp_path / str(number), number, changes)
