"""The one way to change a job's state, and what it does to the jobs that wait for it. Submits and starts none."""

from __future__ import annotations

import time
from collections import deque

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.lifecycle import JobEvent, next_state
from gpusched.core.jobs.readiness import (
    CAUSE_DEPENDENCY,
    CAUSE_NOT_NEEDED,
    DependencyTally,
    Readiness,
    is_unneeded,
    readiness,
    readiness_of,
)
from gpusched.core.model import ENDED_STATES, DependencyKind, JobRow, JobState, reshape
from gpusched.host.store.connection import Connection
from gpusched.host.store.rows import JOB, job_row

STOPPED_FOR_OTHERS = (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED)  # causes of jobs that are freed by themselves


class Jobs(Connection):
    def __init__(self, path: str, *, create: bool = False, read_only: bool = False) -> None:
        super().__init__(path, create=create, read_only=read_only)
        self._rippled: list[tuple[int, JobState, str]] = []  # jobs that others have stopped, not told yet
        self._freed = False
        self._changed: deque[tuple[int, JobState, JobState]] = deque()  # not counted yet in the sets they are in

    def job(self, job_id: int) -> JobRow:
        row = self._db.execute(f"SELECT {JOB} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise GpuschedError(f"there is no job {job_id} in this queue", hint="`gpusched status -v` lists the jobs")
        return job_row(row)

    # ---- the one way to change a state ----

    def _move(self, job_id: int, event: JobEvent, expected: JobState | None = None, **columns: object) -> JobState:
        """`expected` spares a question where the state is known; a job that is in another one is not changed by it."""
        more = "".join(f", {name} = ?" for name in columns)
        change = f"UPDATE jobs SET state = ?{more} WHERE id = ? AND state = ?"
        if expected is not None:
            state = next_state(expected, event, f"job {job_id}")
            if self._db.execute(change, (state.value, *columns.values(), job_id, expected.value)).rowcount:
                self._ripple(job_id, expected, state)
                return state
        row = self._db.execute("SELECT state, line FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise GpuschedError(f"there is no job {job_id}", hint="`gpusched status -v` lists the jobs")
        before = JobState(row[0])
        state = next_state(before, event, f"job {job_id}, line {row[1]}")
        self._db.execute(change, (state.value, *columns.values(), job_id, before.value))
        self._ripple(job_id, before, state)
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
            shape=reshape(job.shape, job.mem_bytes, 0),
        )
        self._weigh(job_id)

    # ---- dependencies ----

    def _weigh(self, job_id: int) -> None:
        """Say of a job whether those that it waits for let it start; cancel, hold or free it accordingly."""
        row = self._db.execute("SELECT state, cause, blocked FROM jobs WHERE id = ?", (job_id,)).fetchone()
        state, cause = JobState(row[0]), row[1]
        stopped = cause in STOPPED_FOR_OTHERS and state in (JobState.CANCELLED, JobState.HELD)
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

    def _upstream(self, job_id: int) -> list[tuple[DependencyKind, DependencyTally]]:
        query = (
            "SELECT d.kind, s.total, s.succeeded, s.failed, s.cancelled "
            "FROM dependencies d JOIN sets s ON s.id = d.set_id WHERE d.job_id = ?"
        )
        return [
            (DependencyKind(kind), DependencyTally(*counts)) for kind, *counts in self._db.execute(query, (job_id,))
        ]

    def upstream(self, job_id: int) -> list[tuple[str, JobRow]]:
        """What a job waits for: kind and job, in the order in which it names them."""
        query = (
            f"SELECT kind, {JOB} FROM dependencies d JOIN members m ON m.set_id = d.set_id "
            "JOIN jobs ON jobs.id = m.upstream_id WHERE d.job_id = ? ORDER BY d.grp, m.upstream_id"
        )
        return [(kind, job_row(tuple(columns))) for kind, *columns in self._db.execute(query, (job_id,))]

    def culprit(self, job_id: int) -> JobRow | None:
        """The first of those that a job waits for that failed or was cancelled."""
        query = (
            f"SELECT {JOB} FROM dependencies d JOIN members m ON m.set_id = d.set_id "
            "JOIN jobs ON jobs.id = m.upstream_id WHERE d.job_id = ? AND state IN ('failed', 'cancelled') LIMIT 1"
        )
        row = self._db.execute(query, (job_id,)).fetchone()
        return None if row is None else job_row(row)

    def _ripple(self, job_id: int, before: JobState, after: JobState) -> None:
        """Count the change in the sets that the job is in, and weigh those whose wait it decides; no recursion."""
        if before not in ENDED_STATES and after not in ENDED_STATES:
            return
        self._changed.append((job_id, before, after))
        if len(self._changed) > 1:
            return  # whoever is at it comes to it
        try:
            while self._changed:
                self._count(*self._changed[0])
                self._changed.popleft()
        finally:
            self._changed.clear()

    def _count(self, job_id: int, before: JobState, after: JobState) -> None:
        query = (
            "SELECT id, total, succeeded, failed, cancelled FROM sets JOIN members ON set_id = id WHERE upstream_id = ?"
        )
        for set_id, *counts in self._db.execute(query, (job_id,)).fetchall():
            old = DependencyTally(*counts)
            changes = [f"{before.value} = {before.value} - 1"] if before in ENDED_STATES else []
            changes += [f"{after.value} = {after.value} + 1"] if after in ENDED_STATES else []
            update = f"UPDATE sets SET {', '.join(changes)} WHERE id = ? RETURNING total, succeeded, failed, cancelled"
            new = DependencyTally(*self._db.execute(update, (set_id,)).fetchone())
            for kind in DependencyKind:
                if readiness_of(kind, old) is not readiness_of(kind, new):
                    waiting = "SELECT job_id FROM dependencies WHERE set_id = ? AND kind = ?"
                    for (dependant,) in self._db.execute(waiting, (set_id, kind.value)).fetchall():
                        self._weigh(dependant)
