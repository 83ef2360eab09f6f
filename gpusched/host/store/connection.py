"""One open connection to a queue's database: opening, statements, transactions, errors in words. Knows no job."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from gpusched.common.errors import DAMAGED, EXIT_CANNOT_WORK, GpuschedError, disk_full
from gpusched.host.store import migration
from gpusched.host.store.effects import DependencyEffects

PATIENCE_S = 10.0  # while another command writes
HOLD_S, GAP_S = 0.25, 0.1  # of many changes: a transaction, and the pause in which others write
CACHE_KIB, LARGE_CACHE_KIB = 2000, 32_000
CLOSED = "this queue was removed"  # the error of a job that is added to a queue while `clean` removes it


class StoreError(GpuschedError):
    """The database cannot be used: damaged, full, locked for long, of another version."""


class TransientError(StoreError):
    """A change cannot be made now; nothing was changed, and later it can be."""


class DiskFull(TransientError):
    """There is no room for a change."""


class Busy(TransientError):
    """Another command has been writing for too long to wait for it."""


class Database:
    """One open connection to an SQLite file. As a context manager it closes itself.

    Every method raises StoreError in the place of SQLite's own errors.
    """

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._in_transaction = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # ---- statements ----

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run one statement that changes something."""
        with _errors_in_words(self.path):
            return self._db.execute(statement, values)

    def execute_many(self, statement: str, rows: Iterable[Sequence[object] | Mapping[str, object]]) -> None:
        """Run one statement for each row of values."""
        with _errors_in_words(self.path):
            self._db.executemany(statement, rows)

    def insert(self, table: str, **columns: object) -> int:
        """Add a row, and return its number."""
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        cursor = self.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))
        return int(cursor.lastrowid or 0)

    def update(self, table: str, where: str, key: Sequence[object], **columns: object) -> int:
        """Set columns of the rows that fulfil `where`, a condition on the values of `key`; return their number."""
        changes = ", ".join(f"{name} = ?" for name in columns)
        return self.execute(f"UPDATE {table} SET {changes} WHERE {where}", (*columns.values(), *key)).rowcount

    def row(self, query: str, values: Sequence[object] = ()) -> Any:
        """Return the first row of the answer, or None."""
        return next(self.stream(query, values), None)

    def scalar(self, query: str, values: Sequence[object] = ()) -> Any:
        """Return the first column of the first row, or None where there is no row."""
        row = self.row(query, values)
        return None if row is None else row[0]

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Return all rows of the answer."""
        return list(self.stream(query, values))

    def stream(self, query: str, values: Sequence[object] = ()) -> Iterator[Any]:
        """Yield the rows of an answer that may be long, one by one."""
        with _errors_in_words(self.path):
            for row in self._db.execute(query, values):  # noqa: UP028 (that may close the cursor after the database)
                yield row

    def data_version(self) -> int:
        """Return a number that changes when another connection has changed the database."""
        return int(self.scalar("PRAGMA data_version"))

    # ---- transactions ----

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside together, or none of them; nested transactions join the outer one."""
        if self._in_transaction:
            yield
            return
        self.execute("BEGIN IMMEDIATE")
        self._in_transaction = True
        try:
            yield
            self.execute("COMMIT")
        finally:
            self._in_transaction = False
            if self._db.in_transaction:  # a full disk has rolled back by itself
                self.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all reads inside see one state of the database, whatever others change meanwhile."""
        if self._db.in_transaction:
            yield
            return
        self.execute("BEGIN")
        try:
            yield
        finally:
            self.execute("COMMIT")


class Store(Database):
    """One open connection to the database of a queue. As a context manager it closes itself.

    The functions over it lie in the other modules of this folder.
    """

    def __init__(
        self, path: str, *, create: bool = False, read_only: bool = False, patience_s: float = PATIENCE_S
    ) -> None:
        """Open `path`. Raises StoreError if it is missing (without `create`), damaged or of another version.

        With `read_only`, a database that cannot be written can be read while others work on it. A change waits
        `patience_s` for another command that writes.
        """
        self.effects = DependencyEffects()
        if not os.path.exists(path) and not create:
            hint = "`gpusched status` lists the queues"
            raise StoreError("there is no queue here", where=os.path.dirname(path), hint=hint)
        with _errors_in_words(path):
            if not os.path.exists(path):
                make_database(path, migration.schema())
            super().__init__(path, _open(path, patience_s, read_only=read_only))

    def __enter__(self) -> Store:
        return self

    def change_each(self, keys: Sequence[int], change: Callable[[int], object]) -> None:
        """Call `change` with each key, in transactions so short that others can write in between."""
        done = 0
        while done < len(keys):
            time.sleep(GAP_S if done else 0)
            until_s = time.monotonic() + HOLD_S
            with self.transaction():
                while done < len(keys) and time.monotonic() < until_s:
                    change(keys[done])
                    done += 1

    @contextmanager
    def large_cache(self) -> Iterator[None]:
        """Keep the indexes that many new rows go into, each at a random place, in memory; free it at the end."""
        self.execute(f"PRAGMA cache_size = -{LARGE_CACHE_KIB}")
        try:
            yield
        finally:
            self.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            self.execute("PRAGMA shrink_memory")


# ---- opening ---------------------------------------------------------------------------------------


def make_database(path: str, schema: str) -> None:
    """Make a database under a private name and link it in: nobody ever opens half of one."""
    private = f"{path}.new{os.getpid()}"
    try:
        # readable by this user alone from the first byte on; SQLite gives its -wal and -shm the same mode
        os.close(os.open(private, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with closing(sqlite3.connect(private, isolation_level=None)) as db:
            # Its journal is set here, where nobody else is: later, one of many who open it at once would not wait. And
            # set last: what stands in a log only reaches the file when it is closed, and no error would tell otherwise.
            db.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT; PRAGMA journal_mode = WAL;")
        with suppress(FileExistsError):  # somebody else has just made it
            os.link(private, path, follow_symlinks=False)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(private)


def open_database(path: str, schema: str, version: int) -> sqlite3.Connection:
    """Open a database that is no queue's, made by `schema` if it is missing. Raises StoreError for one of another kind.

    A commit survives every kill of a process; a power cut may undo the newest ones.
    """
    with _errors_in_words(path):
        if not os.path.exists(path):
            make_database(path, schema)
        db = sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)
        try:
            if db.execute("PRAGMA user_version").fetchone() != (version,):
                hint = "it is left as it is: choose another directory"
                problem = "is a database of another program, or of another version of gpusched"
                raise StoreError(problem, where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)
            db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
        except (sqlite3.Error, StoreError):
            db.close()
            raise
        return db


def _open(path: str, patience_s: float, *, read_only: bool) -> sqlite3.Connection:
    """Open the database of a queue.

    Nothing else may open its file and close it meanwhile: by the rules of POSIX that lets go of the locks of all
    connections of this process, and others would remove the log under them.
    """
    db = sqlite3.connect(path, timeout=patience_s, isolation_level=None)
    try:
        _check_tables(db, path)
        if read_only:
            migration.show_as_current(db)
        else:
            db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
            migration.upgrade(db)
            db.execute("PRAGMA foreign_keys = ON")
    except (sqlite3.Error, StoreError):
        db.close()
        raise
    return db


def _check_tables(db: sqlite3.Connection, path: str) -> None:
    """Refuse a database of another program, or of another version of this one. Raises StoreError."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not names:
        raise StoreError("is empty", where=path, hint=DAMAGED, exit_code=EXIT_CANNOT_WORK)
    if not names >= {"meta", "jobs", "attempts", "dependencies"}:
        hint = "it is left as it is: choose another --log-dir"
        raise StoreError("is a database of another program", where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in migration.VERSIONS:
        raise StoreError(
            f"was written by another version of gpusched (schema {version}, not {migration.CURRENT_VERSION})",
            where=path,
            hint="use that version, or another --log-dir",
        )


# ---- errors ----------------------------------------------------------------------------------------


@contextmanager
def _errors_in_words(path: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # a message may quote what is damaged
        raise _translated(error, path) from error


def _translated(error: sqlite3.Error | UnicodeDecodeError, path: str) -> Exception:
    """Return SQLite's error in words for people; the error itself if it is a fault of this program."""
    text = str(error)
    if CLOSED in text:
        hint = "nothing was added: submit it again; if it stays so, `gpusched clean` finishes the removal"
        return StoreError(f"{CLOSED} just now, since it had no jobs", where=os.path.dirname(path), hint=hint)
    is_broken_rule = isinstance(error, sqlite3.IntegrityError)
    is_own_fault = isinstance(error, sqlite3.ProgrammingError) or (is_broken_rule and _is_sound(path))
    if is_own_fault or not isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError)):
        return error
    if not isinstance(error, sqlite3.OperationalError):
        problem = f"is damaged ({text})"
        hint = DAMAGED
    elif "full" in text:
        hint = "make room on it; running jobs go on, nothing new starts until then"
        return DiskFull(disk_full(path, text), hint=hint, exit_code=EXIT_CANNOT_WORK)
    elif "disk I/O error" in text:
        hint = (
            "the disk or its file system fails: `dmesg` may say more; running jobs go on, nothing new starts until then"
        )
        return TransientError("disk I/O error", where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)
    elif "is locked" in text:
        hint = "try again once it has ended; if it was stopped (Ctrl-Z), let it go on with `fg`, or end it"
        return Busy("another gpusched command is writing to it", where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)
    elif _lacks_rights(error, path):
        import shlex

        problem = f"you may not write to this database: {text}"
        hint = "its files and their directory are not writable for you; to look at what is there: "
        hint += f"cp -r {shlex.quote(os.path.dirname(path))} COPY, then -q ./COPY"
    else:
        problem, hint = f"cannot be used: {text}", ""
    return StoreError(problem, where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)


def _is_sound(path: str) -> bool:
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
        return bool(db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    return False


def _lacks_rights(error: sqlite3.OperationalError, path: str) -> bool:
    if "readonly" not in str(error) and "unable to open" not in str(error):
        return False
    return not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK))
