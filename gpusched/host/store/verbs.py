"""The verbs of dispatchers and of people, and what is read of a queue. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpusched.core.jobs.lifecycle import BACKOFF_HORIZON_S, JobEvent, Verdict
from gpusched.core.jobs.progress import COUNTED_NOWHERE, ItemCount, Span
from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.core.model import (
    ENDED_STATES,
    NOTHING_USED,
    AttemptRow,
    DeviceUse,
    JobRow,
    JobState,
    Outcome,
    Usage,
    reshape,
)
from gpusched.host.store.jobs import STOPPED_FOR_OTHERS
from gpusched.host.store.rows import ATTEMPT, JOB, USAGE, attempt_row, devices_text, job_row, usage_columns
from gpusched.host.store.submission import Submission

GROUPS_MAX = 50
SHAPES_MAX = 500  # where there are more, the order alone counts
_REMOVED = f"state = 'cancelled' AND cause IN {COUNTED_NOWHERE}"


class Store(Submission):
    """One open connection to a queue's database, with all its verbs."""

    # ---- about the queue ----

    def source(self) -> bytes | None:
        """The file that this queue belongs to, as an absolute path; b"-" for a stream; None: not said yet."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'source'").fetchone()
        return None if row is None else bytes(row[0])

    def counts(self) -> dict[JobState, int]:
        return {JobState(state): n for state, n in self._db.execute("SELECT state, n FROM counts")}

    def item_counts(self) -> list[ItemCount]:
        """The jobs that say how many items they do, by tags and state; of at most GROUPS_MAX different tags.

        Those of `count_removed` are not among them.
        """
        removed = f"FROM jobs WHERE {_REMOVED} AND items > 0 AND tags = counted.tags"
        some = "state = 'cancelled' AND jobs > 0"  # else nothing is searched: a live view asks twice a second
        query = (
            f"SELECT tags, state, jobs - CASE WHEN {some} THEN (SELECT count(*) {removed}) ELSE 0 END, "
            f"items - CASE WHEN {some} THEN (SELECT coalesce(sum(items), 0) {removed}) ELSE 0 END "
            "FROM item_counts AS counted "
            f"WHERE tags IN (SELECT DISTINCT tags FROM item_counts LIMIT {GROUPS_MAX})"
        )
        return [
            ItemCount(tuple(tags.split(",")) if tags else (), JobState(state), jobs, items)
            for tags, state, jobs, items in self._db.execute(query)
        ]

    def item_spans(self, tags: Sequence[str]) -> list[Span]:
        """Every attempt that has ended of the jobs with items that bear these tags."""
        query = (
            "SELECT j.id, j.name, j.items, a.started_at, a.ended_at, j.state = 'succeeded' AND a.number = j.attempts "
            "FROM jobs j JOIN attempts a ON a.job_id = j.id "
            "WHERE j.items > 0 AND j.tags = ? AND j.listed AND a.ended_at IS NOT NULL"
        )
        rows = self._db.execute(query, (",".join(tags),))
        return [
            Span(job_id, name, items, started_at, ended_at, bool(succeeded))
            for job_id, name, items, started_at, ended_at, succeeded in rows
        ]

    def item_seconds(self, tags: Sequence[str]) -> float:
        """Seconds that the succeeded jobs with items that bear these tags took, one by one."""
        query = (
            "SELECT coalesce(sum(a.ended_at - a.started_at), 0) "
            "FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = j.attempts "
            "WHERE j.items > 0 AND j.tags = ? AND j.state = 'succeeded'"
        )
        return float(self._db.execute(query, (",".join(tags),)).fetchone()[0])

    def has_work(self) -> bool:
        """Whether a dispatcher that looks now would find something to do."""
        return bool(self.has_startable() or self.counts()[JobState.RUNNING] or self.open_requests())

    def has_startable(self) -> bool:
        """Whether a job waits that waits for no other job."""
        query = "SELECT 1 FROM jobs WHERE state = 'queued' AND blocked = 0 LIMIT 1"
        return self._db.execute(query).fetchone() is not None

    def count_failed_unlisted(self) -> int:
        """Failed jobs whose line is gone: what is wrong with them was mended, or is wanted no more."""
        query = "SELECT count(*) FROM jobs WHERE state = 'failed' AND listed = 0"
        return int(self._db.execute(query).fetchone()[0])

    def find_name(self, name: str) -> int | None:
        """The job of this name; the newest, where one of them has left the list."""
        query = "SELECT max(id) FROM jobs WHERE name = ? AND name <> ''"
        row = self._db.execute(query, (name,)).fetchone()
        return None if row[0] is None else int(row[0])

    def last_attempt(self, name: str) -> AttemptRow | None:
        """Of all attempts of the jobs of this name, the one that began last."""
        query = "SELECT id FROM jobs JOIN attempts ON job_id = id WHERE name = ? ORDER BY started_at DESC LIMIT 1"
        row = self._db.execute(query, (name,)).fetchone()
        return None if row is None else self.attempts(row[0])[-1]

    def wants_gpus(self) -> bool:
        """Whether any job that has not ended wants a GPU."""
        query = "SELECT 1 FROM jobs WHERE state IN ('queued', 'held', 'running') AND gpus > 0 LIMIT 1"
        return self._db.execute(query).fetchone() is not None

    def count_removed(self) -> int:
        """Jobs that count nowhere: their line is gone, or they were to start after a failure that did not come."""
        return int(self._db.execute(f"SELECT count(*) FROM jobs WHERE {_REMOVED}").fetchone()[0])

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

    # ---- what a dispatcher does ----

    def shapes(self) -> list[str]:
        """The shapes of waiting jobs, found by leaps over the index; at most SHAPES_MAX and one more."""
        query = (
            "WITH RECURSIVE leap (shape) AS ("
            "SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 UNION ALL "
            "SELECT (SELECT min(shape) FROM jobs WHERE state = 'queued' AND blocked = 0 AND shape > leap.shape) "
            f"FROM leap WHERE leap.shape IS NOT NULL LIMIT {SHAPES_MAX + 2}) "
            "SELECT shape FROM leap WHERE shape IS NOT NULL"
        )
        return [shape for (shape,) in self._db.execute(query)]

    def head(self, now: float, limit: int, shape: str | None = None) -> list[JobRow]:
        """The first waiting jobs that may start by their own time, of one shape or of all, in their order."""
        of_shape = "AND shape = ?3 " if shape is not None else ""
        query = (
            f"SELECT {JOB} FROM jobs WHERE state = 'queued' AND blocked = 0 {of_shape}"
            f"AND (not_before <= ?1 OR not_before > ?1 + {BACKOFF_HORIZON_S}) "
            "ORDER BY prio DESC, position LIMIT ?2"
        )
        values = (now, limit) if shape is None else (now, limit, shape)
        return [job_row(row) for row in self._db.execute(query, values)]

    def next_not_before(self, now: float) -> float | None:
        """Return when the next job that backs off may start; None if no job does."""
        query = (
            "SELECT min(not_before) FROM jobs WHERE state = 'queued' AND not_before > 0 "
            "AND not_before > ?1 AND not_before <= ?1 + ?2"
        )
        value = self._db.execute(query, (now, BACKOFF_HORIZON_S)).fetchone()[0]
        return None if value is None else float(value)

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
                (job_id, number, started_at, log, error_log, devices_text(devices)),
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
                f"({USAGE}) = (?, ?, ?, ?, ?, ?, ?), max_rss_bytes = ?, cpu_s = ?, progress = ? "
                "WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                (
                    ended_at,
                    outcome.kind.value,
                    outcome.exit_code,
                    outcome.signal,
                    outcome.cause,
                    verdict.note or outcome.note,
                    *usage_columns(usage),
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
                shape=reshape(job.shape, budget, above_bytes),
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
                f"UPDATE attempts SET ({USAGE}) = (?, ?, ?, ?, ?, ?, ?), progress = ? "
                "WHERE job_id = ? AND number = ? AND ended_at IS NULL",
                (*usage_columns(usage), progress, job_id, number),
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
                if job.state is JobState.CANCELLED and job.cause in (CAUSE_REMOVED, *STOPPED_FOR_OTHERS):
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
        query = f"SELECT {JOB} FROM jobs {where} {order}"
        for row in self._db.execute(query, [state.value for state in states]):
            yield job_row(row)

    def running(self) -> list[tuple[JobRow, AttemptRow]]:
        """Every running job with its open attempt."""
        jobs = [job_row(row) for row in self._db.execute(f"SELECT {JOB} FROM jobs WHERE state = 'running' ORDER BY id")]
        found = []
        for job in jobs:
            query = f"SELECT {ATTEMPT} FROM attempts WHERE job_id = ? AND ended_at IS NULL"
            row = self._db.execute(query, (job.id,)).fetchone()
            if row is not None:
                found.append((job, attempt_row(row)))
        return found

    def attempts(self, job_id: int) -> list[AttemptRow]:
        query = f"SELECT {ATTEMPT} FROM attempts WHERE job_id = ? ORDER BY number"
        return [attempt_row(row) for row in self._db.execute(query, (job_id,))]
