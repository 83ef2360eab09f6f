"""What a list does to its queue: jobs added, kept, cancelled, and tied to those that they wait for. Starts none."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Set

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.lifecycle import JobEvent, next_state
from gpusched.core.jobs.readiness import JobIndex, ListedJob, UnknownReference, find_cycle
from gpusched.core.jobs.reconcile import CAUSE_REMOVED, QueueChange, StoredJob, identity, reconcile
from gpusched.core.model import ENDED_STATES, JobSpec, JobState, Requirements
from gpusched.host.store.jobs import STOPPED_FOR_OTHERS, Jobs
from gpusched.host.store.rows import columns


class Submission(Jobs):
    def submit(
        self,
        specs: Sequence[JobSpec],
        needs: Callable[[JobSpec], Requirements],
        now: float,
        *,
        complete: bool = True,
        retry_failed: bool = False,
        append: bool = False,
    ) -> QueueChange:
        """Make the queue hold `specs`; what was not ended yet gets the new order, lines and requirements.

        Raises GpuschedError, and changes nothing, when a job depends on one that is not there, or on itself.
        """
        with self._ample_cache(len(specs)), self.transaction():
            held: list[StoredJob] = []
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
            self._db.executemany("UPDATE jobs SET listed = 0 WHERE id = ?", ((job_id,) for job_id in change.gone))
            for job_id in change.cancel:
                self._move(job_id, JobEvent.CANCELLED, cause=CAUSE_REMOVED, ended_at=now)
        return change

    def _insert(self, add: Sequence[tuple[JobSpec, int]], needs: Callable[[JobSpec], Requirements], now: float) -> None:
        state = next_state(None, JobEvent.SUBMITTED).value
        self._db.executemany(
            "INSERT INTO jobs (command, line, position, identity, occurrence, state, submitted_at, cwd, gpus, "
            "time_limit_s, retries, mem_bytes, stated_mem_bytes, prio, name, tags, gpu_model, env, git, items, shape) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (spec.command, spec.line, position, identity(spec), spec.occurrence, state, now, *columns(needs(spec)))
                for spec, position in add
            ),
        )

    def _update(self, keep: Sequence[tuple[int, JobSpec, int]], needs: Callable[[JobSpec], Requirements]) -> None:
        self._db.executemany(
            "UPDATE jobs SET line = ?2, position = ?3, name = ?4, tags = ?5, listed = 1 "
            "WHERE id = ?1 AND (line <> ?2 OR position <> ?3 OR name <> ?4 OR tags <> ?5 OR listed = 0)",
            (
                (job_id, spec.line, position, spec.attributes.name, ",".join(spec.attributes.tags))
                for job_id, spec, position in keep
            ),
        )
        # a budget that has grown after an out-of-memory stays, unless another one is stated now
        self._db.executemany(
            "UPDATE jobs SET command = ?1, cwd = ?2, gpus = ?3, time_limit_s = ?4, retries = ?5, "
            "mem_bytes = CASE WHEN stated_mem_bytes = ?7 THEN mem_bytes ELSE ?6 END, stated_mem_bytes = ?7, prio = ?8, "
            "name = ?9, tags = ?10, gpu_model = ?11, env = ?12, git = ?13, items = ?14, "
            "shape = CASE WHEN stated_mem_bytes = ?7 AND mem_bytes <> ?6 THEN shape ELSE ?15 END "
            "WHERE id = ?16 AND (state IN ('queued', 'held') "
            "OR (state = 'cancelled' AND cause IN ('dependency', 'not_needed')))",
            ((spec.command, *columns(needs(spec)), job_id) for job_id, spec, _ in keep),
        )

    def _connect(self, change: QueueChange, newest: int | None) -> None:
        """Turn the references of new and waiting jobs into rows, and weigh these jobs.

        `newest` is the last job before this submission, if that is the whole list: then its own jobs count first.
        """
        ids = self._ids_of(spec for spec, _ in change.add if spec.attributes.after)
        wanting = [(ids[id(spec)], spec) for spec, _ in change.add if spec.attributes.after]
        kept = {job_id: spec for job_id, spec, _ in change.keep}
        had = [job_id for (job_id,) in self._db.execute("SELECT DISTINCT job_id FROM dependencies") if job_id in kept]
        for job_id in {*had, *(job_id for job_id, spec in kept.items() if spec.attributes.after)}:
            job = self.job(job_id)
            if job.state is JobState.RUNNING or (job.state in ENDED_STATES and job.cause not in STOPPED_FOR_OTHERS):
                continue
            self._db.execute("DELETE FROM dependencies WHERE job_id = ?", (job_id,))
            wanting.append((job_id, kept[job_id]))
        if not wanting:
            return
        directory = self._directory(set(change.cancel), kept, newest)
        sets: dict[tuple[int, ...], int] = {}
        for job_id, spec in wanting:
            try:
                groups = directory.resolve(job_id, spec.attributes.after)
            except UnknownReference as error:
                raise _unknown_reference(spec, error.ref, directory.names()) from None
            for n, (kind, members) in enumerate(groups):
                if members not in sets:
                    sets[members] = self._set_of(members)
                row = (job_id, n, kind.value, sets[members])
                self._db.execute("INSERT INTO dependencies VALUES (?, ?, ?, ?)", row)
        self._db.execute("DELETE FROM sets WHERE id NOT IN (SELECT set_id FROM dependencies)")
        self._refuse_cycles()
        for job_id, _ in wanting:
            self._weigh(job_id)

    def _set_of(self, members: Sequence[int]) -> int:
        """The set of these jobs, made if there is none."""
        name = hashlib.blake2b(json.dumps(sorted(members)).encode(), digest_size=16).digest()
        row = self._db.execute("SELECT id FROM sets WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return int(row[0])
        cursor = self._db.execute("INSERT INTO sets VALUES (NULL, ?, ?, 0, 0, 0)", (name, len(members)))
        set_id = int(cursor.lastrowid or 0)
        self._db.executemany("INSERT INTO members VALUES (?, ?)", ((set_id, up) for up in members))
        counted = (
            "UPDATE sets SET (succeeded, failed, cancelled) = (SELECT coalesce(sum(state = 'succeeded'), 0), "
            "coalesce(sum(state = 'failed'), 0), coalesce(sum(state = 'cancelled'), 0) "
            "FROM members JOIN jobs ON jobs.id = upstream_id WHERE set_id = sets.id) WHERE id = ?"
        )
        self._db.execute(counted, (set_id,))
        return set_id

    def _directory(self, leaving: Set[int], kept: Container[int], newest: int | None) -> JobIndex:
        listed: list[ListedJob] = []
        earlier: list[ListedJob] = []
        query = "SELECT id, name, tags FROM jobs WHERE cause <> ?"
        for job_id, name, tags in self._db.execute(query, (CAUSE_REMOVED,)):
            if job_id not in leaving:
                known = ListedJob(job_id, name, tuple(tags.split(",")) if tags else ())
                (listed if newest is None or job_id > newest or job_id in kept else earlier).append(known)
        return JobIndex(listed, earlier)

    def _ids_of(self, specs: Iterable[JobSpec]) -> dict[int, int]:
        query = "SELECT id FROM jobs WHERE identity = ? AND occurrence = ?"
        return {id(s): self._db.execute(query, (identity(s), s.occurrence)).fetchone()[0] for s in specs}

    def _refuse_cycles(self) -> None:
        upstream: dict[int, list[int]] = {}
        # a job that has ended waits for nobody any more
        query = (
            "SELECT d.job_id, d.set_id FROM dependencies d JOIN jobs j ON j.id = d.job_id "
            "WHERE j.state NOT IN ('succeeded', 'failed')"
        )
        for job_id, set_id in self._db.execute(query):  # a job waits for sets (below zero), a set for its jobs
            upstream.setdefault(job_id, []).append(-set_id)
        for set_id, up in self._db.execute("SELECT set_id, upstream_id FROM members"):
            upstream.setdefault(-set_id, []).append(up)
        circle = [node for node in find_cycle(upstream) if node > 0]
        if circle:
            lines = [str(self.job(job_id).line) for job_id in circle]
            raise GpuschedError(
                "jobs wait for each other in a circle: line " + " waits for line ".join([*lines, lines[0]]),
                hint="take one after= out; nothing of this list was taken",
            )

    def names(self) -> set[str]:
        """Names and tags of the jobs whose line is not gone."""
        rows = self._db.execute("SELECT DISTINCT name, tags FROM jobs WHERE cause <> ?", (CAUSE_REMOVED,))
        return {word for name, tags in rows for word in (name, *tags.split(",")) if word}

    def held(self) -> list[StoredJob]:
        """What the queue holds, for comparing with a list."""
        return list(self._held("", ()))

    def _held(self, where: str, values: tuple[object, ...]) -> Iterator[StoredJob]:
        query = f"SELECT id, identity, occurrence, state, cause FROM jobs {where}"
        for job_id, name, occurrence, state, cause in self._db.execute(query, values):
            yield StoredJob(job_id, name, occurrence, JobState(state), cause)


def _unknown_reference(spec: JobSpec, ref: str, names: Sequence[str]) -> GpuschedError:
    nearest = difflib.get_close_matches(ref, names, n=1, cutoff=0.5)
    hint = (
        f"did you mean {nearest[0]}?"
        if nearest
        else "a job bears name=…, or several bear tag=…; ids are those of `status`"
    )
    return GpuschedError(f"there is no job or tag {ref!r} to wait for", where=f"line {spec.line}", hint=hint)
