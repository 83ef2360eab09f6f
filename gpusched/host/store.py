"""The queue's database: the only SQL, small verbs in short transactions. Decides nothing.

Every change of a job's state goes through `_move`, which applies the table in core/lifecycle. Several processes may
use one database at once (the dispatcher, `gpusched cancel`, a second `gpusched run`); each verb is one transaction
of its own unless it runs inside `transaction()`.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
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
    DeviceUse,
    JobRow,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Requirements,
    Usage,
)
from gpusched.core.reconcile import CAUSE_REMOVED, Change, Held, identity, reconcile
from gpusched.errors import EXIT_CANNOT_WORK, GpuschedError

T = TypeVar("T")

SCHEMA_VERSION = 1
BUSY_TIMEOUT_MS = 10_000

_JOB = (
    "id, command, line, cwd, state, cause, gpus, time_limit_s, retries, tries, losses, attempts, not_before, "
    "submitted_at, first_started_at, ended_at, cancel_requested_at, avoid, above_bytes"
)
_ATTEMPT = (
    "job_id, number, started_at, ended_at, outcome, exit_code, signal, cause, note, log, error_log, devices, samples, "
    "peak_memory_bytes, mean_memory_bytes, mean_utilisation, energy_j, max_rss_bytes, cpu_s, progress"
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
            self._db.execute("PRAGMA foreign_keys = ON")
            if not read_only:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = FULL")
            self._check_version()

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
        counts = self.counts()
        return bool(counts[JobState.QUEUED] or counts[JobState.RUNNING] or self.open_requests())

    def count_removed(self) -> int:
        """Jobs that were cancelled because their line is gone: they count nowhere."""
        query = "SELECT count(*) FROM jobs WHERE state = 'cancelled' AND cause = ?"
        return int(self._db.execute(query, (CAUSE_REMOVED,)).fetchone()[0])

    # ---- submitting ----

    def submit(
        self,
        specs: Sequence[JobSpec],
        needs: Requirements,
        now: float,
        *,
        complete: bool = True,
        retry_failed: bool = False,
        append: bool = False,
    ) -> Change:
        """Make the queue hold `specs`; what was not ended yet gets the new order, lines and requirements."""
        with self.transaction():
            held: list[Held] = []
            first = 0
            if append:
                first = self._db.execute("SELECT coalesce(max(position) + 1, 0) FROM jobs").fetchone()[0]
                for spec in specs:
                    held.extend(
                        self._held("WHERE identity = ? AND occurrence = ?", (identity(spec.text), spec.occurrence))
                    )
            else:
                held = self.held()
            change = reconcile(specs, held, complete=complete, retry_failed=retry_failed, first_position=first)
            self._db.executemany(
                "INSERT INTO jobs (command, identity, occurrence, line, position, cwd, gpus, time_limit_s, retries, "
                "state, submitted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        spec.command,
                        identity(spec.text),
                        spec.occurrence,
                        spec.line,
                        position,
                        needs.cwd,
                        needs.gpus,
                        needs.time_limit_s,
                        needs.retries,
                        next_state(None, JobEvent.SUBMITTED).value,
                        now,
                    )
                    for spec, position in change.add
                ),
            )
            for job_id in change.requeue:
                self._requeue(job_id)
            self._db.executemany(
                "UPDATE jobs SET line = ?2, position = ?3 WHERE id = ?1 AND (line <> ?2 OR position <> ?3)",
                ((job_id, spec.line, position) for job_id, spec, position in change.keep),
            )
            self._db.executemany(
                "UPDATE jobs SET command = ?, cwd = ?, gpus = ?, time_limit_s = ?, retries = ? "
                "WHERE id = ? AND state IN ('queued', 'held')",
                (
                    (spec.command, needs.cwd, needs.gpus, needs.time_limit_s, needs.retries, job_id)
                    for job_id, spec, _ in change.keep
                ),
            )
            for job_id in change.cancel:
                self._move(job_id, JobEvent.CANCELLED, cause=CAUSE_REMOVED, ended_at=now)
        return change

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
                return state
        row = self._db.execute("SELECT state, line FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise GpuschedError(f"there is no job {job_id}", hint="`gpusched status -v` lists the jobs")
        state = next_state(JobState(row[0]), event, f"job {job_id}, line {row[1]}")
        self._db.execute(change, (state.value, *columns.values(), job_id, row[0]))
        return state

    def _requeue(self, job_id: int) -> None:
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
        )

    # ---- what a dispatcher does ----

    def head(self, now: float, limit: int) -> list[JobRow]:
        """The first waiting jobs that may start by their own time: `limit` GPU jobs and `limit` CPU jobs."""
        rows: list[JobRow] = []
        for cpu in (0, 1):
            query = (
                f"SELECT {_JOB} FROM jobs WHERE state = 'queued' AND (gpus = 0) = ? AND not_before <= ? "
                "ORDER BY position LIMIT ?"
            )
            rows += [_job(row) for row in self._db.execute(query, (cpu, now, limit))]
        return rows

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
        now: float,
    ) -> JobState:
        """Close an open attempt with its outcome, and move its job as the verdict says."""
        with self.transaction():
            self._db.execute(
                "UPDATE attempts SET ended_at = ?, outcome = ?, exit_code = ?, signal = ?, cause = ?, note = ?, "
                "samples = ?, peak_memory_bytes = ?, mean_memory_bytes = ?, mean_utilisation = ?, energy_j = ?, "
                "max_rss_bytes = ?, cpu_s = ?, progress = ? WHERE job_id = ? AND number = ? AND ended_at IS NULL",
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
                "energy_j = ?, progress = ? WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                (
                    usage.samples,
                    usage.peak_memory_bytes,
                    usage.mean_memory_bytes,
                    usage.mean_utilisation,
                    usage.energy_j,
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

    def requeue(self, job_id: int) -> JobState:
        """Queue a failed or cancelled job again. Raises InvalidTransition for any other."""
        with self.transaction():
            self._requeue(job_id)
            return JobState.QUEUED

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

    def jobs(self, states: Sequence[JobState] = (), *, newest: int | None = None) -> Iterator[JobRow]:
        """Jobs in the order of the file, streamed; with `newest` the most recently touched ones only."""
        where = f"WHERE state IN ({','.join('?' * len(states))})" if states else ""
        order = "ORDER BY position, id"
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


def _job(row: tuple) -> JobRow:  # type: ignore[type-arg]
    fields = list(row)
    fields[4] = JobState(row[4])
    fields[17] = frozenset(row[17].split(",")) if row[17] else frozenset()
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
        usage=Usage(*row[12:17]),
        max_rss_bytes=row[17],
        cpu_s=row[18],
        progress=row[19],
    )


def _devices_text(devices: Sequence[DeviceUse]) -> str:
    return json.dumps([[d.uuid, d.index, d.name, d.free_bytes] for d in devices])
