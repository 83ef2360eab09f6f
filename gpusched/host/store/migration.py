"""Databases of older versions: brought up to date by whoever may write, shown so to whoever only reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite3 import Connection

OLDEST_VERSION = 3  # of the schema: that of gpusched 0.1
CURRENT_VERSION = 5
VERSIONS = range(OLDEST_VERSION, CURRENT_VERSION + 1)
_GROWN = ("sets", "jobs", "attempts", "dispatches")  # tables with further columns
_NEW = ("environments", "finished", "leases", "leased")

COUNT_SETS = """
    UPDATE sets SET (succeeded, failed, cancelled, unneeded) = (
        SELECT total(end = 'succeeded'), total(end = 'failed'), total(end = 'cancelled'), total(end = 'not_needed')
        FROM (
            SELECT CASE WHEN state <> 'cancelled' THEN state WHEN cause = 'dependency' THEN 'failed'
                WHEN cause = 'not_needed' THEN cause ELSE state END AS end
            FROM members JOIN jobs ON jobs.id = upstream_id WHERE set_id = sets.id
        )
    )
"""  # as `core.jobs.readiness.end_of` counts


def schema() -> str:
    """Return the statements that make an empty database."""
    from importlib import resources

    text = resources.files("gpusched.host.store").joinpath("schema.sql").read_text(encoding="utf-8")
    return f"{text} PRAGMA user_version = {CURRENT_VERSION};"


def upgrade(db: Connection) -> None:
    """Bring an older database up to date, whole or not at all."""
    if _version(db) == CURRENT_VERSION:
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        version = _version(db)  # somebody else may have been faster
        statements = _statements()
        for table in _GROWN:
            for column, definition in _missing(db, table, statements):
                db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {definition}")
        if version == OLDEST_VERSION:
            db.execute(COUNT_SETS)
            db.execute("ALTER TABLE requests RENAME TO old_requests")
            db.execute("DROP INDEX requests_open")
        there = _names(db)
        for name, statement in statements.items():
            if name not in there:
                db.execute(statement)
        if version == OLDEST_VERSION:
            db.execute("INSERT INTO requests SELECT * FROM old_requests")
            db.execute("DROP TABLE old_requests")
        db.execute(f"PRAGMA user_version = {CURRENT_VERSION}")


def show_as_current(db: Connection) -> None:
    """Have this connection see an older database as one of today, by temporary views. Writes nothing."""
    if _version(db) == CURRENT_VERSION:
        return
    statements, there = _statements(), _names(db)
    for table in _GROWN:
        more = "".join(
            f", {_default_of(definition)} AS {column}" for column, definition in _missing(db, table, statements)
        )
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT *{more} FROM main.{table}")
    for table in _NEW:
        if table not in there:
            db.execute(statements[table].replace("CREATE TABLE", "CREATE TEMP TABLE"))


def _default_of(definition: str) -> str:
    found = re.search(r"DEFAULT (\S+)", definition)
    return found[1] if found else "NULL"


def _version(db: Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _names(db: Connection) -> set[str]:
    """Return the names of all tables, indexes and triggers."""
    return {name for (name,) in db.execute("SELECT name FROM main.sqlite_master")}


def _statements() -> dict[str, str]:
    """Return the statement of each table, index and trigger of today's schema, by its name."""
    parts = re.split(r"^(?=CREATE (?:UNIQUE )?\w+ (\w+))", schema(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _missing(db: Connection, table: str, statements: dict[str, str]) -> list[tuple[str, str]]:
    """Return name and definition of the columns that an older table lacks."""
    there = {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))}
    columns = re.findall(r"^\s+(\w+)\s+((?:INTEGER|REAL|TEXT|BLOB)[^,\n]*)", statements[table], re.MULTILINE)
    return [(name, definition.split("--")[0].strip()) for name, definition in columns if name not in there]
