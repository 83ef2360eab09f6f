"""The queue's database: the only SQL, small verbs in short transactions. Decides nothing.

Every change of a job's state goes through `_move`, which applies the table in core/lifecycle. Several processes may
use one database at once (the dispatcher, `gpusched cancel`, a second `gpusched run`); each verb is one transaction
of its own unless it runs inside `transaction()`.
"""

from __future__ import annotations

import difflib
import json
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import wraps
from importlib import resources
from inspect import isgeneratorfunction
from types import FunctionType
from typing import Any, TypeVar

from gpusched.core.lifecycle import JobEvent, Verdict, next_state
from gpusched.core.model import (
    ENDED_STATES,
    NOTHING_USED,
    AttemptRow,
    DependencyKind,
    DeviceUse,
    JobRow,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Requirements,
    Usage,
    shape_text,
)
from gpusched.core.readiness import (
    CAUSE_DEPENDENCY,
    CAUSE_NOT_NEEDED,
    Directory,
    Known,
    Readiness,
    UnknownReference,
    find_cycle,
    is_unneeded,
    readiness,
)
from gpusched.core.reconcile import CAUSE_REMOVED, Change, Held, identity, reconcile
from gpusched.errors import EXIT_CANNOT_WORK, GpuschedError

T = TypeVar("T")

SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 10_000
PAGE_MIN, PAGE_SUM = 4, 1000  # waiting jobs looked at: of each shape at least, and of all shapes about
SHAPES_MAX = 500
_STOPPED = (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED)  # causes of jobs that are freed by themselves

_JOB = (
    "id, command, line, cwd, state, cause, gpus, time_limit_s, retries, tries, losses, attempts, not_before, "
    "submitted_at, first_started_at, ended_at, cancel_requested_at, avoid, above_bytes, mem_bytes, stated_mem_bytes, "
    "prio, name, tags, gpu_model, env, blocked, position, shape, git"
)
_ATTEMPT = (
    "job_id, number, started_at, ended_at, outcome, exit_code, signal, cause, note, log, error_log, devices, samples, "
    "peak_memory_bytes, mean_memory_bytes, mean_utilisation, energy_j, peak_device_bytes, max_rss_bytes, cpu_s, "
    "progress"
)


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
        def stream(self: Store, *args: Any, **named: Any) -> Iterator[Any]:
            with self._words():
                yield from verb(self, *args, **named)

        return stream

    @wraps(verb)
    def call(self: Store, *args: Any, **named: Any) -> Any:
        with self._words():
            return verb(self, *args, **named)

    return call


@_in_words
class Store:
    """One open connection to a queue's database."""

    def __init__(self, path: str, *, create: bool = False, read_only: bool = False) -> None:
        """Open `path`. Raises StoreError if it is missing (without `create`), damaged or of another version."""
        self.path = path
        self._depth = 0
        self._rippled: list[tuple[int, JobState, str]] = []  # jobs that others have stopped, not told yet
        self._freed = False
        self._changed: deque[int] = deque()  # jobs whose dependants are still to be weighed
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
                if not read_only:
                    self._db.execute("PRAGMA journal_mode = WAL")
                    self._db.execute("PRAGMA synchronous = FULL")
                self._check_version()
            except BaseException:
                self._db.close()
                raise

    def _make(self) -> None:
        """Make the database under a private name and link it in: nobody ever opens half of one."""
        private = f"{self.path}.new{os.getpid()}"
        schema = resources.files("gpusched.host").joinpath("schema.sql").read_text(encoding="utf-8")
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

    # ---- transactions and errors ----

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

    # ---- about the queue ----

    def meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def source(self) -> bytes | None:
        """The file that this queue belongs to, as an absolute path; b"-" for a stream; None: not said yet."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'source'").fetchone()
        return None if row is None else bytes(row[0])

    def set_meta(self, key: str, value: str | bytes) -> None:
        with self.transaction():
            self._db.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", (key, value))

    def counts(self) -> dict[JobState, int]:
        return {JobState(state): n for state, n in self._db.execute("SELECT state, n FROM counts")}

    def has_work(self) -> bool:
        """Whether a dispatcher that looks now would find something to do."""
        return bool(self.has_startable() or self.counts()[JobState.RUNNING] or self.open_requests())

    def has_startable(self) -> bool:
        """Whether a job waits that waits for no other job."""
        query = "SELECT 1 FROM jobs WHERE state = 'queued' AND blocked = 0 LIMIT 1"
        return self._db.execute(query).fetchone() is not None

    def count_removed(self) -> int:
        """Jobs that count nowhere: their line is gone, or they were to start after a failure that did not come."""
        query = "SELECT count(*) FROM jobs WHERE state = 'cancelled' AND cause IN (?, ?)"
        return int(self._db.execute(query, (CAUSE_REMOVED, CAUSE_NOT_NEEDED)).fetchone()[0])

    # ---- submitting ----

    def submit(
        self,
        specs: Sequence[JobSpec],
        needs: Callable[[JobSpec], Requirements],
        now: float,
        *,
        complete: bool = True,
        retry_failed: bool = False,
        append: bool = False,
    ) -> Change:
        """Make the queue hold `specs`; what was not ended yet gets the new order, lines and requirements.

        Raises GpuschedError, and changes nothing, when a job depends on one that is not there, or on itself.
        """
        with self.transaction():
            held: list[Held] = []
            first = 0
            if append:
                first = self._db.execute("SELECT coalesce(max(position) + 1, 0) FROM jobs").fetchone()[0]
                for spec in specs:
                    held.extend(self._held("WHERE identity = ? AND occurrence = ?", (identity(spec), spec.occurrence)))
            else:
                held = self.held()
            change = reconcile(specs, held, complete=complete, retry_failed=retry_failed, first_position=first)
            newest = self._db.execute("SELECT coalesce(max(id), 0) FROM jobs").fetchone()[0]
            self._insert(change.add, needs, now)
            for job_id in change.requeue:
                self._requeue(job_id)
            self._update(change.keep, needs)
            self._connect(change, newest if complete and not append else None)
            for job_id in change.cancel:
                self._move(job_id, JobEvent.CANCELLED, cause=CAUSE_REMOVED, ended_at=now)
        return change

    def _insert(self, add: Sequence[tuple[JobSpec, int]], needs: Callable[[JobSpec], Requirements], now: float) -> None:
        state = next_state(None, JobEvent.SUBMITTED).value
        self._db.executemany(
            "INSERT INTO jobs (command, line, position, identity, occurrence, state, submitted_at, cwd, gpus, "
            "time_limit_s, retries, mem_bytes, stated_mem_bytes, prio, name, tags, gpu_model, env, git, shape) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (spec.command, spec.line, position, identity(spec), spec.occurrence, state, now, *_columns(needs(spec)))
                for spec, position in add
            ),
        )

    def _update(self, keep: Sequence[tuple[int, JobSpec, int]], needs: Callable[[JobSpec], Requirements]) -> None:
        self._db.executemany(
            "UPDATE jobs SET line = ?2, position = ?3, name = ?4, tags = ?5 "
            "WHERE id = ?1 AND (line <> ?2 OR position <> ?3 OR name <> ?4 OR tags <> ?5)",
            (
                (job_id, spec.line, position, spec.attributes.name, ",".join(spec.attributes.tags))
                for job_id, spec, position in keep
            ),
        )
        # a budget that has grown after an out-of-memory stays, unless another one is stated now
        self._db.executemany(
            "UPDATE jobs SET command = ?1, cwd = ?2, gpus = ?3, time_limit_s = ?4, retries = ?5, "
            "mem_bytes = CASE WHEN stated_mem_bytes = ?7 THEN mem_bytes ELSE ?6 END, stated_mem_bytes = ?7, prio = ?8, "
            "name = ?9, tags = ?10, gpu_model = ?11, env = ?12, git = ?13, "
            "shape = CASE WHEN stated_mem_bytes = ?7 AND mem_bytes <> ?6 THEN shape ELSE ?14 END "
            "WHERE id = ?15 AND (state IN ('queued', 'held') "
            "OR (state = 'cancelled' AND cause IN ('dependency', 'not_needed')))",
            ((spec.command, *_columns(needs(spec)), job_id) for job_id, spec, _ in keep),
        )

    def _connect(self, change: Change, newest: int | None) -> None:
        """Turn the references of new and waiting jobs into rows, and weigh these jobs.

        `newest` is the last job before this submission, if that is the whole list: then its own jobs count first.
        """
        ids = self._ids_of(spec for spec, _ in change.add if spec.attributes.after)
        wanting = [(ids[id(spec)], spec) for spec, _ in change.add if spec.attributes.after]
        kept = {job_id: spec for job_id, spec, _ in change.keep}
        had = [job_id for (job_id,) in self._db.execute("SELECT DISTINCT job_id FROM dependencies") if job_id in kept]
        for job_id in {*had, *(job_id for job_id, spec in kept.items() if spec.attributes.after)}:
            job = self.job(job_id)
            if job.state is JobState.RUNNING or (job.state in ENDED_STATES and job.cause not in _STOPPED):
                continue
            self._db.execute("DELETE FROM dependencies WHERE job_id = ?", (job_id,))
            wanting.append((job_id, kept[job_id]))
        if not wanting:
            return
        directory = self._directory(set(change.cancel), kept, newest)
        for job_id, spec in wanting:
            try:
                groups = directory.resolve(job_id, spec.attributes.after)
            except UnknownReference as error:
                raise _unknown_reference(spec, error.ref, directory.names()) from None
            self._db.executemany(
                "INSERT INTO dependencies VALUES (?, ?, ?, ?)",
                ((job_id, n, kind.value, up) for n, (kind, ups) in enumerate(groups) for up in ups),
            )
        self._refuse_cycles()
        for job_id, _ in wanting:
            self._weigh(job_id)

    def _directory(self, leaving: Set[int], kept: Container[int], newest: int | None) -> Directory:
        listed: list[Known] = []
        earlier: list[Known] = []
        query = "SELECT id, name, tags FROM jobs WHERE cause <> ?"
        for job_id, name, tags in self._db.execute(query, (CAUSE_REMOVED,)):
            if job_id not in leaving:
                known = Known(job_id, name, tuple(tags.split(",")) if tags else ())
                (listed if newest is None or job_id > newest or job_id in kept else earlier).append(known)
        return Directory(listed, earlier)

    def _ids_of(self, specs: Iterable[JobSpec]) -> dict[int, int]:
        query = "SELECT id FROM jobs WHERE identity = ? AND occurrence = ?"
        return {id(s): self._db.execute(query, (identity(s), s.occurrence)).fetchone()[0] for s in specs}

    def _refuse_cycles(self) -> None:
        upstream: dict[int, list[int]] = {}
        # a job that has ended waits for nobody any more
        query = (
            "SELECT d.job_id, d.upstream_id FROM dependencies d JOIN jobs j ON j.id = d.job_id "
            "WHERE j.state NOT IN ('succeeded', 'failed')"
        )
        for job_id, up in self._db.execute(query):
            upstream.setdefault(job_id, []).append(up)
        circle = find_cycle(upstream)
        if circle:
            lines = [str(self.job(job_id).line) for job_id in circle]
            raise GpuschedError(
                "jobs wait for each other in a circle: line " + " waits for line ".join([*lines, lines[0]]),
                hint="take one after= out; nothing of this list was taken",
            )

    # ---- dependencies ----

    def _weigh(self, job_id: int) -> None:
        """Say of a job whether those that it waits for let it start; cancel, hold or free it accordingly."""
        row = self._db.execute("SELECT state, cause, blocked FROM jobs WHERE id = ?", (job_id,)).fetchone()
        state, cause = JobState(row[0]), row[1]
        stopped = cause in _STOPPED and state in (JobState.CANCELLED, JobState.HELD)
        if state is not JobState.QUEUED and not stopped:
            return
        groups = self._upstream(job_id)
        found = readiness(groups)
        if found is Readiness.IMPOSSIBLE:
            if state is JobState.QUEUED:
                cause = CAUSE_NOT_NEEDED if is_unneeded(groups) else CAUSE_DEPENDENCY
                holds = cause == CAUSE_DEPENDENCY and self.meta("on_dep_fail") == "hold"
                event, ended_at = (JobEvent.HELD, None) if holds else (JobEvent.CANCELLED, time.time())
                self._rippled.append((job_id, self._move(job_id, event, cause=cause, ended_at=ended_at), cause))
            return
        self._freed |= found is Readiness.READY
        if stopped and state is JobState.HELD:
            self._move(job_id, JobEvent.RELEASED, cause="")
        elif stopped:
            self._requeue(job_id)
        blocked = found is Readiness.WAITING
        if blocked != bool(row[2]):
            self._db.execute("UPDATE jobs SET blocked = ? WHERE id = ?", (blocked, job_id))

    def take_rippled(self) -> list[tuple[int, JobState, str]]:
        """Jobs that were cancelled or held, since the last call, for those that they depend on: state and cause."""
        found, self._rippled = self._rippled, []
        return found

    def take_freed(self) -> bool:
        """Whether a job may have become free to start, since the last call, by those that it depends on."""
        found, self._freed = self._freed, False
        return found

    def _upstream(self, job_id: int) -> list[tuple[DependencyKind, list[JobState]]]:
        groups: dict[int, tuple[DependencyKind, list[JobState]]] = {}
        query = (
            "SELECT d.grp, d.kind, j.state FROM dependencies d JOIN jobs j ON j.id = d.upstream_id WHERE d.job_id = ?"
        )
        for number, kind, state in self._db.execute(query, (job_id,)):
            groups.setdefault(number, (DependencyKind(kind), []))[1].append(JobState(state))
        return list(groups.values())

    def names(self) -> set[str]:
        """Names and tags of the jobs whose line is not gone."""
        rows = self._db.execute("SELECT DISTINCT name, tags FROM jobs WHERE cause <> ?", (CAUSE_REMOVED,))
        return {word for name, tags in rows for word in (name, *tags.split(",")) if word}

    def upstream(self, job_id: int) -> list[tuple[str, JobRow]]:
        """What a job waits for: kind and job, in the order in which it names them."""
        query = (
            f"SELECT kind, {_JOB} FROM dependencies JOIN jobs ON id = upstream_id WHERE job_id = ? "
            "ORDER BY grp, upstream_id"
        )
        return [(kind, _job(tuple(columns))) for kind, *columns in self._db.execute(query, (job_id,))]

    def _ripple(self, job_id: int) -> None:
        """Weigh every job that waits for this one, and those that wait for them, without recursion."""
        self._changed.append(job_id)
        if len(self._changed) > 1:
            return  # whoever is at it comes to it
        query = "SELECT DISTINCT job_id FROM dependencies WHERE upstream_id = ?"
        try:
            while self._changed:
                for (dependant,) in self._db.execute(query, (self._changed[0],)).fetchall():
                    self._weigh(dependant)
                self._changed.popleft()
        finally:
            self._changed.clear()

    def held(self) -> list[Held]:
        """What the queue holds, for comparing with a list."""
        return list(self._held("", ()))

    def _held(self, where: str, values: tuple[object, ...]) -> Iterator[Held]:
        query = f"SELECT id, identity, occurrence, state, cause FROM jobs {where}"
        for job_id, name, occurrence, state, cause in self._db.execute(query, values):
            yield Held(job_id, name, occurrence, JobState(state), cause)

    # ---- the one way to change a state ----

    def _move(self, job_id: int, event: JobEvent, expected: JobState | None = None, **columns: object) -> JobState:
        """`expected` spares a question where the state is known; a job that is in another one is not changed by it."""
        more = "".join(f", {name} = ?" for name in columns)
        change = f"UPDATE jobs SET state = ?{more} WHERE id = ? AND state = ?"
        if expected is not None:
            state = next_state(expected, event, f"job {job_id}")
            if self._db.execute(change, (state.value, *columns.values(), job_id, expected.value)).rowcount:
                if state in ENDED_STATES:
                    self._ripple(job_id)
                return state
        row = self._db.execute("SELECT state, line FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise GpuschedError(f"there is no job {job_id}", hint="`gpusched status -v` lists the jobs")
        before = JobState(row[0])
        state = next_state(before, event, f"job {job_id}, line {row[1]}")
        self._db.execute(change, (state.value, *columns.values(), job_id, before.value))
        if (state in ENDED_STATES) != (before in ENDED_STATES):
            self._ripple(job_id)
        return state

    def _requeue(self, job_id: int) -> None:
        job = self.job(job_id)
        self._move(
            job_id,
            JobEvent.REQUEUED,
            cause="",
            ended_at=None,
            cancel_requested_at=None,
            tries=0,
            losses=0,
            not_before=0.0,
            avoid="",
            above_bytes=0,
            shape=shape_text(job.gpus, job.mem_bytes, job.gpu_model, 0, job.tags),
        )
        self._weigh(job_id)

    # ---- what a dispatcher does ----

    def head(self, now: float, limit: int) -> list[JobRow]:
        """The first waiting jobs of each shape that may start by their own time, in the order in which they start.

        `limit` is for each shape; where there are many shapes, fewer of each come.
        """
        shapes = self._shapes()
        page = min(limit, max(PAGE_MIN, PAGE_SUM // max(1, len(shapes))))
        query = (
            f"SELECT {_JOB} FROM jobs WHERE state = 'queued' AND blocked = 0 AND shape = ? AND not_before <= ? "
            "ORDER BY prio DESC, position LIMIT ?"
        )
        rows = [_job(row) for shape in shapes for row in self._db.execute(query, (shape, now, page))]
        return sorted(rows, key=lambda row: (-row.prio, row.position)) if len(shapes) > 1 else rows

    def _shapes(self) -> list[str]:
        """The shapes of waiting jobs, found by leaps over the index."""
        query = (
            "WITH RECURSIVE leap (shape) AS ("
            "SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 UNION ALL "
            "SELECT (SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 AND shape > leap.shape) "
            f"FROM leap WHERE leap.shape IS NOT NULL LIMIT {SHAPES_MAX + 1}) "
            "SELECT shape FROM leap WHERE shape IS NOT NULL"
        )
        return [shape for (shape,) in self._db.execute(query)]

    def next_not_before(self, now: float) -> float | None:
        """When the next job that backs off may start."""
        query = "SELECT min(not_before) FROM jobs WHERE state = 'queued' AND not_before > 0 AND not_before > ?"
        value = self._db.execute(query, (now,)).fetchone()[0]
        return None if value is None else float(value)

    def shorten_back_offs(self, until: float) -> None:
        """Let no waiting job back off beyond this moment: only a clock that was wrong makes it do so."""
        if self._db.execute("SELECT 1 FROM jobs WHERE state = 'queued' AND not_before > ?", (until,)).fetchone():
            with self.transaction():
                self._db.execute("UPDATE jobs SET not_before = ?1 WHERE state = 'queued' AND not_before > ?1", (until,))

    def start(
        self, job_id: int, started_at: float, log: str, error_log: str, devices: Sequence[DeviceUse]
    ) -> int | None:
        """Book attempt n+1 and the job as running, if it is still queued; the attempt's number, or None."""
        with self.transaction():
            query = "SELECT state, attempts, first_started_at FROM jobs WHERE id = ?"
            row = self._db.execute(query, (job_id,)).fetchone()
            if row is None or row[0] != JobState.QUEUED.value:
                return None
            number = int(row[1]) + 1
            first = started_at if row[2] is None else row[2]
            self._move(job_id, JobEvent.STARTED, JobState.QUEUED, attempts=number, first_started_at=first)
            self._db.execute(
                "INSERT INTO attempts (job_id, number, started_at, log, error_log, devices) VALUES (?, ?, ?, ?, ?, ?)",
                (job_id, number, started_at, log, error_log, _devices_text(devices)),
            )
            return number

    def close_attempt(
        self,
        job_id: int,
        number: int,
        outcome: Outcome,
        verdict: Verdict,
        ended_at: float,
        *,
        usage: Usage = NOTHING_USED,
        max_rss_bytes: int | None = None,
        cpu_s: float | None = None,
        progress: str = "",
        avoid: frozenset[str] = frozenset(),
        above_bytes: int = 0,
        mem_bytes: int | None = None,
        now: float,
    ) -> JobState:
        """Close an open attempt with its outcome, and move its job as the verdict says.

        `mem_bytes` is the budget of the next attempt, if it is another one.
        """
        with self.transaction():
            self._db.execute(
                "UPDATE attempts SET ended_at = ?, outcome = ?, exit_code = ?, signal = ?, cause = ?, note = ?, "
                "samples = ?, peak_memory_bytes = ?, mean_memory_bytes = ?, mean_utilisation = ?, energy_j = ?, "
                "peak_device_bytes = ?, max_rss_bytes = ?, cpu_s = ?, progress = ? "
                "WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                (
                    ended_at,
                    outcome.kind.value,
                    outcome.exit_code,
                    outcome.signal,
                    outcome.cause,
                    verdict.note or outcome.note,
                    usage.samples,
                    usage.peak_memory_bytes,
                    usage.mean_memory_bytes,
                    usage.mean_utilisation,
                    usage.energy_j,
                    usage.peak_device_bytes,
                    max_rss_bytes,
                    cpu_s,
                    progress,
                    job_id,
                    number,
                ),
            )
            if verdict.event is JobEvent.SUCCEEDED:
                running, tries = JobState.RUNNING, verdict.tries
                return self._move(job_id, verdict.event, running, cause="", ended_at=ended_at, tries=tries)
            job = self.job(job_id)
            budget = job.mem_bytes if mem_bytes is None else mem_bytes
            ends = verdict.event in (JobEvent.FAILED, JobEvent.CANCELLED)
            return self._move(
                job_id,
                verdict.event,
                cause=outcome.cause,
                ended_at=ended_at if ends else None,
                tries=verdict.tries,
                losses=verdict.losses,
                not_before=now + verdict.delay_s if verdict.delay_s else 0.0,
                avoid=",".join(sorted(avoid)),
                above_bytes=above_bytes,
                mem_bytes=budget,
                shape=shape_text(job.gpus, budget, job.gpu_model, above_bytes, job.tags),
            )

    def blame_shutdown(self, since: float) -> list[int]:
        """Jobs that failed since `since` failed because everything was being ended: interrupted, and queued again."""
        with self.transaction():
            rows = self._db.execute(
                "SELECT j.id, a.number FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = j.attempts "
                "WHERE j.state = 'failed' AND j.ended_at >= ? AND a.outcome IN ('exited', 'signalled')",
                (since,),
            ).fetchall()
            for job_id, number in rows:
                self._db.execute(
                    "UPDATE attempts SET outcome = 'interrupted', note = 'ended with the shutdown' "
                    "WHERE job_id = ? AND number = ?",
                    (job_id, number),
                )
                self._requeue(job_id)
        return [job_id for job_id, _ in rows]

    def save_usage(self, job_id: int, number: int, usage: Usage, progress: str) -> None:
        """Keep what an open attempt has used so far, for a dispatcher that comes after this one."""
        with self.transaction():
            self._db.execute(
                "UPDATE attempts SET samples = ?, peak_memory_bytes = ?, mean_memory_bytes = ?, mean_utilisation = ?, "
                "energy_j = ?, peak_device_bytes = ?, progress = ? "
                "WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                (
                    usage.samples,
                    usage.peak_memory_bytes,
                    usage.mean_memory_bytes,
                    usage.mean_utilisation,
                    usage.energy_j,
                    usage.peak_device_bytes,
                    progress,
                    job_id,
                    number,
                ),
            )

    def begin_dispatch(self, now: float) -> int:
        with self.transaction():
            cursor = self._db.execute("INSERT INTO dispatches (started_at, last_seen_at) VALUES (?, ?)", (now, now))
            return int(cursor.lastrowid or 0)

    def touch_dispatch(self, dispatch: int, now: float) -> None:
        with self.transaction():
            self._db.execute("UPDATE dispatches SET last_seen_at = ? WHERE id = ?", (now, dispatch))

    # ---- what people ask for ----

    def cancel(self, job_id: int, now: float) -> JobState:
        """Cancel a waiting job, or note the wish for a running one; the state that it has now."""
        with self.transaction():
            job = self.job(job_id)
            if job.state in ENDED_STATES:
                if job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED:
                    self._db.execute("UPDATE jobs SET cause = '' WHERE id = ?", (job_id,))
                return job.state
            self._db.execute("UPDATE jobs SET cancel_requested_at = ? WHERE id = ?", (now, job_id))
            if job.state is JobState.RUNNING:
                return job.state
            return self._move(job_id, JobEvent.CANCELLED, cause="", ended_at=now)

    def hold(self, job_id: int, cause: str = "") -> JobState:
        """Keep a waiting job from starting. Raises InvalidTransition for any other."""
        with self.transaction():
            return self._move(job_id, JobEvent.HELD, cause=cause)

    def hold_tag(self, tag: str, cause: str) -> int:
        """Hold every waiting job that bears the tag; how many there were."""
        with self.transaction():
            query = "SELECT id FROM jobs WHERE state = 'queued' AND instr(',' || tags || ',', ',' || ? || ',')"
            jobs = [job_id for (job_id,) in self._db.execute(query, (tag,))]
            for job_id in jobs:
                self._move(job_id, JobEvent.HELD, JobState.QUEUED, cause=cause)
        return len(jobs)

    def release(self, job_id: int) -> JobState:
        """Let a held job start again; its state, since what it waits for can stop it at once.

        Raises InvalidTransition for any other.
        """
        with self.transaction():
            self._move(job_id, JobEvent.RELEASED, cause="")
            self._weigh(job_id)
            return self.job(job_id).state

    def requeue(self, job_id: int) -> JobState:
        """Queue a failed or cancelled job again; its state, since what it waits for can stop it at once.

        Raises InvalidTransition for any other.
        """
        with self.transaction():
            self._requeue(job_id)
            return self.job(job_id).state

    def request(self, kind: str, now: float) -> int:
        with self.transaction():
            cursor = self._db.execute("INSERT INTO requests (kind, created_at) VALUES (?, ?)", (kind, now))
            return int(cursor.lastrowid or 0)

    def open_requests(self) -> list[tuple[int, str, float]]:
        return self._db.execute("SELECT id, kind, created_at FROM requests WHERE acked_at IS NULL").fetchall()

    def acknowledge(self, request: int, now: float) -> None:
        with self.transaction():
            self._db.execute("UPDATE requests SET acked_at = ? WHERE id = ? AND acked_at IS NULL", (now, request))

    def is_acknowledged(self, request: int) -> bool:
        row = self._db.execute("SELECT acked_at FROM requests WHERE id = ?", (request,)).fetchone()
        return row is not None and row[0] is not None

    # ---- reading ----

    def job(self, job_id: int) -> JobRow:
        row = self._db.execute(f"SELECT {_JOB} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise GpuschedError(f"there is no job {job_id} in this queue", hint="`gpusched status -v` lists the jobs")
        return _job(row)

    def jobs(
        self, states: Sequence[JobState] = (), *, newest: int | None = None, by_start: bool = False
    ) -> Iterator[JobRow]:
        """Jobs in the order of the file, streamed; with `newest` the most recently touched ones only, by
        their start with `by_start`."""
        where = f"WHERE state IN ({','.join('?' * len(states))})" if states else ""
        order = "ORDER BY prio DESC, position" if by_start else "ORDER BY position, id"
        if newest is not None:
            touched = "state = 'running' DESC, coalesce(ended_at, first_started_at, 0) DESC"
            order = f"ORDER BY {touched}, position LIMIT {newest:d}"
        query = f"SELECT {_JOB} FROM jobs {where} {order}"
        for row in self._db.execute(query, [state.value for state in states]):
            yield _job(row)

    def running(self) -> list[tuple[JobRow, AttemptRow]]:
        """Every running job with its open attempt."""
        jobs = [_job(row) for row in self._db.execute(f"SELECT {_JOB} FROM jobs WHERE state = 'running' ORDER BY id")]
        found = []
        for job in jobs:
            query = f"SELECT {_ATTEMPT} FROM attempts WHERE job_id = ? AND ended_at IS NULL"
            row = self._db.execute(query, (job.id,)).fetchone()
            if row is not None:
                found.append((job, _attempt(row)))
        return found

    def attempts(self, job_id: int) -> list[AttemptRow]:
        query = f"SELECT {_ATTEMPT} FROM attempts WHERE job_id = ? ORDER BY number"
        return [_attempt(row) for row in self._db.execute(query, (job_id,))]

    def totals(self) -> dict[str, float]:
        """Sums over the queue: waits of started jobs, time in attempts, dispatch time, first dispatch."""
        wait, started = self._db.execute(
            "SELECT coalesce(sum(first_started_at - submitted_at), 0), count(*) FROM jobs "
            "WHERE first_started_at IS NOT NULL"
        ).fetchone()
        (job_time,) = self._db.execute(
            "SELECT coalesce(sum(ended_at - started_at), 0) FROM attempts WHERE ended_at IS NOT NULL"
        ).fetchone()
        runtime, start = self._db.execute(
            "SELECT coalesce(sum(last_seen_at - started_at), 0), coalesce(min(started_at), 0) FROM dispatches"
        ).fetchone()
        return {
            "total_wait_time": wait,
            "started_jobs": started,
            "total_job_time": job_time,
            "total_runtime": runtime,
            "start_time": start,
        }


def _statements(script: str) -> Iterator[str]:
    """The statements of a schema (triggers hold semicolons, so SQLite says where one ends)."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _columns(needs: Requirements) -> tuple[object, ...]:
    """The columns of a job that its requirements fill, in the order of the statements above."""
    env = json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in needs.env])
    return (
        needs.cwd,
        needs.gpus,
        needs.time_limit_s,
        needs.retries,
        needs.mem_bytes,
        needs.stated_mem_bytes or needs.mem_bytes,
        needs.prio,
        needs.name,
        ",".join(needs.tags),
        needs.gpu_model,
        env,
        needs.git,
        needs.shape,
    )


def _unknown_reference(spec: JobSpec, ref: str, names: Sequence[str]) -> GpuschedError:
    nearest = difflib.get_close_matches(ref, names, n=1, cutoff=0.5)
    hint = (
        f"did you mean {nearest[0]}?"
        if nearest
        else "a job bears name=…, or several bear tag=…; ids are those of `status`"
    )
    return GpuschedError(f"there is no job or tag {ref!r} to wait for", where=f"line {spec.line}", hint=hint)


def _job(row: tuple) -> JobRow:  # type: ignore[type-arg]
    fields = list(row)
    fields[4] = JobState(row[4])
    fields[17] = frozenset(row[17].split(",")) if row[17] else frozenset()
    fields[23] = tuple(row[23].split(",")) if row[23] else ()
    if row[25] != "[]":
        fields[25] = tuple((a.encode("latin-1"), b.encode("latin-1")) for a, b in json.loads(row[25]))
    else:
        fields[25] = ()
    fields[26] = bool(row[26])
    return JobRow(*fields)


def _attempt(row: tuple) -> AttemptRow:  # type: ignore[type-arg]
    outcome = None
    if row[4] is not None:
        outcome = Outcome(OutcomeKind(row[4]), exit_code=row[5], signal=row[6], cause=row[7], note=row[8])
    return AttemptRow(
        job_id=row[0],
        number=row[1],
        started_at=row[2],
        ended_at=row[3],
        outcome=outcome,
        log=row[9],
        error_log=row[10],
        devices=tuple(DeviceUse(*item) for item in json.loads(row[11])),
        usage=Usage(*row[12:18]),
        max_rss_bytes=row[18],
        cpu_s=row[19],
        progress=row[20],
    )


def _devices_text(devices: Sequence[DeviceUse]) -> str:
    return json.dumps([[d.uuid, d.index, d.name, d.free_bytes] for d in devices])
