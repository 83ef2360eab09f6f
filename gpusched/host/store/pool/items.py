"""The items of a pool and their outcomes: a database of its own, with one writer. Decides nothing.

An item is in the newest list if it has a position there. It is done when it has an outcome, and it can have only one.
Its identity is its content, or the key that it has of its own, and the number of its occurrence in the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpusched.host.store.connection import Database, open_database

VERSION = 0x6770_0001  # of the schema; no other program's
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    identity BLOB NOT NULL,
    occurrence INTEGER NOT NULL,
    position INTEGER,            -- in the newest list, from 0; NULL: no longer in it
    rank REAL NOT NULL,          -- items of a lower rank are given out first
    value BLOB NOT NULL,         -- JSON
    failures INTEGER NOT NULL DEFAULT 0,  -- tries that ended in an error
    deaths INTEGER NOT NULL DEFAULT 0,    -- workers that died while they worked on it
    UNIQUE (identity, occurrence)
);
CREATE INDEX items_rank ON items (rank) WHERE position IS NOT NULL;
CREATE INDEX items_position ON items (position) WHERE position IS NOT NULL;
CREATE TABLE outcomes (
    item INTEGER PRIMARY KEY REFERENCES items (id),
    kind TEXT NOT NULL CHECK (kind IN ('result', 'error')),
    document BLOB NOT NULL,      -- JSON: the result, or what went wrong
    part INTEGER                 -- of the results, in which it is written; NULL: in none
);
CREATE INDEX outcomes_unwritten ON outcomes (item) WHERE part IS NULL AND kind = 'result';
CREATE INDEX outcomes_part ON outcomes (part) WHERE part IS NOT NULL;
CREATE TABLE incoming (position INTEGER PRIMARY KEY, identity BLOB NOT NULL, rank REAL NOT NULL, value BLOB NOT NULL);
"""
_ITEM = "id, rank, value, failures, deaths"  # the fields of OpenItem
_OPEN = "items LEFT JOIN outcomes ON item = id WHERE position IS NOT NULL AND item IS NULL"

_UNWRITTEN = "part IS NULL AND kind = 'result'"


class NewItem(NamedTuple):
    """An item of a list, as it is read: its identity, its rank, and its value as JSON."""

    identity: bytes
    rank: float
    value: bytes


class OpenItem(NamedTuple):
    """An item without an outcome."""

    id: int
    rank: float
    value: bytes
    failures: int
    deaths: int


class ItemOutcome(NamedTuple):
    """The outcome of an item: `result` or `error`, and its JSON document."""

    item: int
    kind: str
    document: bytes


class ListedOutcome(NamedTuple):
    """An item of the newest list with its outcome; `kind` is None while it has none."""

    position: int
    value: bytes
    kind: str | None
    document: bytes | None


class ItemCounts(NamedTuple):
    """The items of the newest list, by their outcome."""

    total: int = 0
    results: int = 0
    errors: int = 0

    @property
    def open(self) -> int:
        return self.total - self.results - self.errors


class ItemStore(Database):
    """One open connection to the items of a pool. It is made if it is missing."""

    def __init__(self, path: str) -> None:
        super().__init__(path, open_database(path, _SCHEMA, VERSION))

    def __enter__(self) -> ItemStore:
        return self

    # ---- the list ----

    def replace_list(self, items: Iterable[NewItem]) -> int:
        """Make these the items of the list, in their order; known ones keep their outcomes. Return how many are new."""
        with self.transaction():
            self.execute("DELETE FROM incoming")
            rows = ((n, *item) for n, item in enumerate(items))
            self.execute_many("INSERT INTO incoming (position, identity, rank, value) VALUES (?, ?, ?, ?)", rows)
            before = self.scalar("SELECT count(*) FROM items")
            self.execute("UPDATE items SET position = NULL WHERE position IS NOT NULL")
            self.execute(
                "INSERT INTO items (identity, occurrence, position, rank, value) "
                "SELECT identity, row_number() OVER (PARTITION BY identity ORDER BY position), position, rank, value "
                "FROM incoming WHERE true ORDER BY position ON CONFLICT DO UPDATE "
                "SET position = excluded.position, rank = excluded.rank, value = excluded.value"
            )
            self.execute("DELETE FROM incoming")
            return int(self.scalar("SELECT count(*) FROM items")) - int(before)

    def clear(self) -> None:
        """Forget all items with their outcomes."""
        with self.transaction():
            for table in ("outcomes", "items", "meta"):
                self.execute(f"DELETE FROM {table}")

    def forget_errors(self) -> None:
        """Have the items that ended in an error tried again, as if they had never been."""
        with self.transaction():
            self.execute("UPDATE items SET failures = 0, deaths = 0 WHERE failures OR deaths")
            self.execute("DELETE FROM outcomes WHERE kind = 'error'")

    # ---- what is left to do ----

    def open_items(self, after: tuple[float, int], limit: int) -> list[OpenItem]:
        """Return the first items without an outcome, by rank and id, behind the one of this rank and id."""
        query = f"SELECT {_ITEM} FROM {_OPEN} AND (rank, id) > (?, ?) ORDER BY rank, id LIMIT ?"
        return [OpenItem(*row) for row in self.rows(query, (*after, limit))]

    def open_item(self, item: int) -> OpenItem | None:
        """Return an item; None if it has an outcome, or is not known."""
        row = self.row(
            f"SELECT {_ITEM} FROM items LEFT JOIN outcomes ON item = id WHERE id = ? AND item IS NULL", (item,)
        )
        return None if row is None else OpenItem(*row)

    def record(self, outcomes: Sequence[ItemOutcome], trials: Iterable[tuple[int, int, int]] = ()) -> None:
        """Store outcomes, and the failures and deaths of items that are tried again (each behind them: its id).

        An item that has an outcome keeps it.
        """
        with self.transaction():
            self.execute_many("INSERT OR IGNORE INTO outcomes (item, kind, document) VALUES (?, ?, ?)", outcomes)
            self.execute_many("UPDATE items SET failures = ?, deaths = ? WHERE id = ?", trials)

    # ---- what there is ----

    def counts(self) -> ItemCounts:
        """Count the items of the newest list."""
        query = (
            "SELECT count(*), coalesce(sum(kind = 'result'), 0), coalesce(sum(kind = 'error'), 0) "
            "FROM items LEFT JOIN outcomes ON item = id WHERE position IS NOT NULL"
        )
        return ItemCounts(*self.row(query))

    def has_outcomes(self) -> bool:
        """Return True if any item has an outcome, be it in the newest list or not."""
        return bool(self.scalar("SELECT EXISTS (SELECT 1 FROM outcomes)"))

    def error_texts(self) -> list[tuple[str, int]]:
        """Return the texts of the errors in which items of the newest list have ended, and how many have each."""
        query = (
            "SELECT json_extract(CAST(document AS TEXT), '$.error') AS text, count(*) FROM outcomes JOIN items "
            "ON item = id WHERE kind = 'error' AND position IS NOT NULL GROUP BY text ORDER BY 2 DESC, text"
        )
        return [(str(text), int(number)) for text, number in self.rows(query)]

    def listed(self, kind: str | None = None) -> Iterator[ListedOutcome]:
        """Yield the items of the newest list in its order, each with its outcome; of one kind, if that is stated."""
        where = "" if kind is None else f"AND kind = '{kind}'"
        query = (
            "SELECT position, value, kind, document FROM items LEFT JOIN outcomes ON item = id "
            f"WHERE position IS NOT NULL {where} ORDER BY position"
        )
        return (ListedOutcome(*row) for row in self.stream(query))

    # ---- the results in parts ----

    def newest_part(self) -> int:
        return int(self.scalar("SELECT coalesce(max(part), 0) FROM outcomes WHERE part IS NOT NULL"))

    def count_unwritten(self) -> int:
        """Count the results that are in no part."""
        return int(self.scalar(f"SELECT count(*) FROM outcomes WHERE {_UNWRITTEN}"))

    def assign_part(self, number: int, limit: int) -> None:
        """Put up to so many results that are in no part into this one."""
        chosen = f"SELECT item FROM outcomes WHERE {_UNWRITTEN} ORDER BY item LIMIT ?"
        self.execute(f"UPDATE outcomes SET part = ? WHERE item IN ({chosen})", (number, limit))

    def part(self, number: int) -> Iterator[ListedOutcome]:
        """Yield the results in a part."""
        query = (
            "SELECT position, value, kind, document FROM outcomes JOIN items ON item = id WHERE part = ? ORDER BY item"
        )
        return (ListedOutcome(*row) for row in self.stream(query, (number,)))

    # ---- facts about the pool ----

    def read(self, key: str) -> str | None:
        value = self.scalar("SELECT value FROM meta WHERE key = ?", (key,))
        return None if value is None else str(value)

    def write(self, key: str, value: str) -> None:
        self.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", (key, value))
