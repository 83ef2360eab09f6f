"""One open database of a queue: made, opened, its transactions, its errors in words. Knows no job."""

from __future__ import annotations

import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from importlib import resources
from inspect import isgeneratorfunction
from types import FunctionType
from typing import Any, TypeVar

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError

T = TypeVar("T")

SCHEMA_VERSION = 3
BUSY_TIMEOUT_MS = 10_000
CACHE_KIB, AMPLE_CACHE_KIB, MANY_ROWS = 2000, 32_000, 10_000


class StoreError(GpuschedError):
    """The database cannot be used: damaged, full, locked for long, of another version."""


class DiskFull(StoreError):
    """There is no room for a change; nothing was changed."""


def _in_words(cls: type[T]) -> type[T]:
    """Let every verb of a store raise StoreError in the place of SQLite's own errors."""
    for name, verb in list(vars(cls).items()):
        if isinstance(verb, FunctionType) and not name.startswith("_") and name not in ("transaction", "close"):
            setattr(cls, name, _translated(verb))
    return cls


def _translated(verb: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(verb):

        @wraps(verb)
        def stream(self: Connection, *args: Any, **named: Any) -> Iterator[Any]:
            with self._words():
                yield from verb(self, *args, **named)

        return stream

    @wraps(verb)
    def call(self: Connection, *args: Any, **named: Any) -> Any:
        with self._words():
            return verb(self, *args, **named)

    return call


@_in_words
class Connection:
    """One open connection to a queue's database. Every public verb of a class below raises StoreError for SQLite's."""

    def __init_subclass__(cls) -> None:
        _in_words(cls)

    def __init__(self, path: str, *, create: bool = False, read_only: bool = False) -> None:
        """Open `path`. Raises StoreError if it is missing (without `create`), damaged or of another version.

        With `read_only`, one that cannot be written is read too: as it lies if others work on it, else in a copy.
        """
        self.path = path
        self._depth = 0
        if not create and not os.path.exists(path):
            raise StoreError(
                "there is no queue here",
                where=os.path.dirname(path),
                hint="`gpusched status` lists the queues",
            )
        with self._words():
            if create and not os.path.exists(path):
                self._make()
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None)
            try:
                self._db.execute("PRAGMA foreign_keys = ON")
                if read_only:
                    self._or_copy()
                else:
                    self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.execute("PRAGMA synchronous = FULL")
                self._check_version()
            except BaseException:
                self._db.close()
                raise

    def _make(self) -> None:
        """Make the database under a private name and link it in: nobody ever opens half of one."""
        private = f"{self.path}.new{os.getpid()}"
        schema = resources.files("gpusched.host.store").joinpath("schema.sql").read_text(encoding="utf-8")
        try:
            # ours alone from the first byte on; SQLite gives its -wal and -shm the same mode
            os.close(os.open(private, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._db = sqlite3.connect(private, isolation_level=None)
            try:
                with self.transaction():
                    for statement in _statements(schema):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            finally:
                self._db.close()
            os.link(private, self.path, follow_symlinks=False)
        except FileExistsError:
            pass  # somebody else has just made it
        finally:
            if os.path.exists(private):
                os.unlink(private)

    def _or_copy(self) -> None:
        """Where SQLite would have to make files beside the database to read it, and may not: a copy of it."""
        try:
            self._db.execute("PRAGMA user_version").fetchone()
        except sqlite3.OperationalError as error:
            copy = _copy_at_rest(self.path) if _is_for_want_of_rights(error, self.path) else None
            if copy is None:
                raise
            self._db.close()
            self._db = copy

    def _check_version(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"was written by another version of gpusched (schema {version}, this one knows {SCHEMA_VERSION})",
                where=self.path,
                hint="use that version, or another --log-dir",
            )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing for the verbs inside; nested ones join the outer one."""
        if self._depth:
            yield
            return
        with self._words():
            self._db.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                self._depth = 0
                if self._db.in_transaction:  # a full disk has rolled back by itself
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _ample_cache(self, rows: int) -> Iterator[None]:
        """Room for the indexes that many new rows go into, each at a random place; given back at the end."""
        if rows < MANY_ROWS:
            yield
            return
        self._db.execute(f"PRAGMA cache_size = -{AMPLE_CACHE_KIB}")
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self._db.execute("PRAGMA shrink_memory")

    @contextmanager
    def _words(self) -> Iterator[None]:
        """SQLite's errors in words for people."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "full" in text or "disk I/O error" in text:
                raise DiskFull(
                    f"cannot be written: {text}",
                    where=self.path,
                    hint="make room on that disk; running jobs go on, nothing new starts until then",
                    exit_code=EXIT_CANNOT_WORK,
                ) from error
            if _is_for_want_of_rights(error, self.path):
                raise StoreError(
                    f"cannot be used by you: {text}",
                    where=self.path,
                    hint="its files and their directory are not writable for you; to look at what is there: "
                    f"cp -r {shlex.quote(os.path.dirname(self.path))} COPY, then -q ./COPY",
                    exit_code=EXIT_CANNOT_WORK,
                ) from error
            raise StoreError(f"cannot be used: {text}", where=self.path, exit_code=EXIT_CANNOT_WORK) from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError)):
                raise
            raise StoreError(
                f"is damaged ({error})",
                where=self.path,
                hint="it is left as it is: restore it, or move its directory away to begin afresh (jobs run again)",
                exit_code=EXIT_CANNOT_WORK,
            ) from error

    def data_version(self) -> int:
        """A number that changes when another connection has changed the database."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str | bytes) -> None:
        with self.transaction():
            self._db.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", (key, value))


def _is_for_want_of_rights(error: sqlite3.OperationalError, path: str) -> bool:
    if "readonly" not in str(error) and "unable to open" not in str(error):
        return False
    return not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK))


def _copy_at_rest(path: str) -> sqlite3.Connection | None:
    """A copy in memory of a database that nobody uses; None if somebody may.

    Whoever uses it has a -wal beside it, and changes the file itself only while that is there. So the copy is whole if
    there was none before and after, and the file is the same.
    """
    from urllib.parse import quote

    before = _at_rest(path)
    if before is None:
        return None
    copy = sqlite3.connect(":memory:", isolation_level=None)
    with closing(sqlite3.connect(f"file:{quote(path)}?immutable=1", uri=True)) as lying:
        lying.backup(copy)
    if _at_rest(path) == before:
        return copy
    copy.close()
    return None


def _at_rest(path: str) -> tuple[int, ...] | None:
    """What tells one content of the file from another; None while somebody may change it."""
    about = os.stat(path)
    if os.path.lexists(f"{path}-wal"):
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _statements(script: str) -> Iterator[str]:
    """The statements of a schema (triggers hold semicolons, so SQLite says where one ends)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
