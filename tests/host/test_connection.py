"""Connections of one process to one database: none takes the locks of another."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from gpusched.host.store import Store, meta_table, migration
from gpusched.host.store.connection import make_database
from tests.support.paths import ROOT

WRITE = """
import sys
from gpusched.host.store import Store, meta_table
with Store(sys.argv[1]) as store:
    meta_table.write(store, "theirs", "1")
"""


def test_a_new_database_can_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """It has its journal from the beginning: to change it, who opens it would have to be alone, and would not wait."""
    path = str(tmp_path / "queue.db")
    make_database(path, migration.schema())
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
        with Store(path, patience_s=0.1) as store:
            meta_table.write(store, "ours", "1")


def test_a_second_connection_leaves_the_first_its_locks(tmp_path: Path) -> None:
    """Else another process takes itself for the last one, and removes the log under the first: that is damage."""
    path = str(tmp_path / "queue.db")
    with Store(path, create=True) as first:
        meta_table.write(first, "ours", "1")
        with Store(path, read_only=True) as second:
            assert meta_table.read(second, "ours") == "1"
        subprocess.run([sys.executable, "-c", WRITE, path], check=True, cwd=ROOT)
        assert os.path.exists(f"{path}-wal")
        with Store(path) as second:
            meta_table.write(second, "ours", "2")
        assert meta_table.read(first, "ours") == "2" and meta_table.read(first, "theirs") == "1"
    with Store(path, read_only=True) as after:
        assert after.scalar("PRAGMA integrity_check") == "ok" and meta_table.read(after, "ours") == "2"
