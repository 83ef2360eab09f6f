"""Databases of older schemas: brought up to date whole or not at all, and readable without a change."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gpusched.core.model import NOBODY_SEEN, JobState
from gpusched.host.store import Store, attempt_table, environment_table, job_table, migration, request_table
from tests.support.paths import CASES

OLD = (CASES / "queue-0.1").rglob("queue.sql")


@pytest.fixture(params=list(OLD), ids=lambda path: path.parent.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "queue.db"
    os.close(os.open(path, os.O_CREAT, 0o600))
    with closing(sqlite3.connect(path)) as db:
        db.executescript(request.param.read_text("utf-8"))
    return path


def shape_of(path: Path) -> dict[str, list[str]]:
    """Return the names of all tables with their columns, and of all indexes and triggers."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql NOT NULL")]
        return {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in names}


def test_an_old_database_gets_the_form_of_a_new_one_and_keeps_its_jobs(old: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(old)) as db:
        before = db.execute("SELECT id, state, command FROM jobs ORDER BY id").fetchall()
        requests = db.execute("SELECT count(*) FROM requests").fetchone()
    for _ in range(2):
        with Store(str(old)) as store:
            rows = [(row.id, row.state.value, row.command) for row in sorted(job_table.jobs(store), key=lambda r: r.id)]
            assert rows == before
            assert {row.origin for row in job_table.jobs(store)} == {"list"}
            assert store.row("SELECT count(*) FROM requests") == requests
    Store(str(tmp_path / "new.db"), create=True).close()
    new, upgraded = shape_of(tmp_path / "new.db"), shape_of(old)
    assert {name: set(columns) for name, columns in upgraded.items()} == {n: set(c) for n, c in new.items()}


def test_a_reader_sees_an_old_database_as_a_new_one_and_changes_nothing(old: Path) -> None:
    before = old.read_bytes()
    with Store(str(old), read_only=True) as store:
        row = next(job_table.jobs(store))
        assert (row.origin, row.environment_id, row.begin_at, row.cpus) == ("list", None, 0.0, 0)
        assert environment_table.read(store, 1) == b""
        assert not row.alone
        assert attempt_table.attempts(store, row.id)[0].usage.foreign_use == NOBODY_SEEN
        assert {row.usage.foreign_use for _, row in attempt_table.spent(store)} == {NOBODY_SEEN}
        assert job_table.last_id(store) >= row.id
    assert old.read_bytes() == before


def test_a_database_of_schema_4_is_brought_up_to_date_and_read(tmp_path: Path) -> None:
    path, new = tmp_path / "queue.db", tmp_path / "new.db"
    for each in (path, new):
        Store(str(each), create=True).close()
    with closing(sqlite3.connect(path)) as db:  # as it was before there were clusters
        db.executescript("""
            DROP TABLE leases; DROP TABLE leased;
            ALTER TABLE jobs DROP COLUMN node; ALTER TABLE jobs DROP COLUMN node_tag;
            ALTER TABLE jobs DROP COLUMN over_nodes; ALTER TABLE attempts DROP COLUMN idle_samples;
            INSERT INTO jobs
                (command, identity, occurrence, line, position, cwd, gpus, state, shape, submitted_at, items)
            VALUES (x'74', x'01', 1, 1, 1, x'2f', 0, 'queued', '0', 0, 3);
            PRAGMA user_version = 4;
        """)
    with Store(str(path), read_only=True) as store:
        assert [(row.node, row.over_nodes) for row in job_table.jobs(store)] == [("", "")]
    with Store(str(path)) as store:
        assert [(row.node, row.over_nodes) for row in job_table.jobs(store)] == [("", "")]
    upgraded = {name: set(columns) for name, columns in shape_of(path).items()}
    assert upgraded == {name: set(columns) for name, columns in shape_of(new).items()}


def test_an_upgrade_that_fails_leaves_the_old_database(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape_of(old)
    monkeypatch.setattr(migration, "COUNT_SETS", "UPDATE nowhere SET n = 1")
    with pytest.raises(Exception, match="nowhere"):
        Store(str(old))
    assert shape_of(old) == before
    monkeypatch.undo()
    with Store(str(old)) as store:
        request_table.add(store, "hand_back", 1.0)
        assert store.scalar("PRAGMA user_version") == migration.CURRENT_VERSION


def test_ids_of_removed_jobs_are_not_given_again(tmp_path: Path) -> None:
    with Store(str(tmp_path / "queue.db"), create=True) as store:
        for job_id in (1, 2):
            store.insert(
                "jobs",
                id=job_id,
                command=b"true",
                identity=b"%d" % job_id,
                occurrence=1,
                line=1,
                position=job_id,
                cwd=b"/",
                gpus=0,
                state="succeeded",
                shape="0",
                submitted_at=0.0,
                items=3,
            )
        store.execute("DELETE FROM jobs WHERE id = 2")
        assert job_table.last_id(store) == 2
        assert job_table.counts(store)[JobState.SUCCEEDED] == 1
        assert store.row("SELECT jobs, items FROM item_counts") == (1, 3)
