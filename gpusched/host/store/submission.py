"""The effect of a list on its queue: jobs added, kept, cancelled, and tied to the jobs that they wait for."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set

from gpusched.core.jobs.job import (
    ENDED_STATES,
    Attributes,
    Dependency,
    DependencyKind,
    JobOrigin,
    JobRow,
    JobSpec,
    JobState,
    Requirements,
)
from gpusched.core.jobs.lifecycle import JobEvent, next_state
from gpusched.core.jobs.readiness import JobIndex, ListedJob
from gpusched.core.jobs.reconcile import CAUSE_REMOVED, QueueChange, StoredJob, identity, reconcile
from gpusched.host.store import dependency_table, environment_table, job_table, transitions
from gpusched.host.store.connection import Store
from gpusched.host.store.rows import NEEDS, needs_columns

_KEPT_NEEDS = [name for name in NEEDS if name not in ("mem_bytes", "shape")]


def submit(
    store: Store,
    specs: Sequence[JobSpec],
    needs: Callable[[JobSpec], Requirements],
    now: float,
    *,
    complete: bool = True,
    retry_failed: bool = False,
    append: bool = False,
) -> QueueChange:
    """Make the queue hold `specs`; jobs that have not ended get the new order, lines and requirements.

    Raises GpuschedError, and changes nothing, when a job depends on one that is not there, or on itself.
    """
    with store.large_cache(), store.transaction():
        stored: list[StoredJob] = []
        first = 0
        specs, met = _without_finished(store, specs)
        if append:
            first = _end_of_list(store)
            for spec in specs:
                same = (identity(spec), spec.occurrence)
                stored.extend(_select(store, "WHERE identity = ? AND occurrence = ?", same))
        else:
            stored = stored_jobs(store)
        change = reconcile(specs, stored, complete=complete, retry_failed=retry_failed, first_position=first)
        newest = store.scalar("SELECT coalesce(max(id), 0) FROM jobs")
        _insert(store, change.add, needs, now)
        for job_id in change.requeue:
            transitions.queue_again(store, job_id)
        _update(store, change.keep, needs)
        _connect(store, change, newest if complete and not append else None, met)
        store.execute_many("UPDATE jobs SET listed = 0 WHERE id = ?", ((job_id,) for job_id in change.gone))
        for job_id in change.cancel:
            transitions.move(store, job_id, JobEvent.CANCELLED, cause=CAUSE_REMOVED, ended_at=now)
    return change


def _without_finished(store: Store, specs: Sequence[JobSpec]) -> tuple[Sequence[JobSpec], frozenset[str]]:
    """Return the jobs without those that are cleaned away, and the names and tags of these that had succeeded."""
    query = "SELECT identity, occurrence, state FROM finished"
    finished = {(name, occurrence): state for name, occurrence, state in store.stream(query)}
    if not finished:
        return specs, frozenset()
    ends = [(spec, finished.get((identity(spec), spec.occurrence))) for spec in specs]
    succeeded = [spec.attributes for spec, end in ends if end == JobState.SUCCEEDED.value]
    met = frozenset(word for known in succeeded for word in (known.name, *known.tags))
    return [spec for spec, end in ends if end is None], met


def add(
    store: Store,
    specs: Sequence[JobSpec],
    needs: Callable[[JobSpec], Requirements],
    now: float,
    *,
    once: bool = False,
    origin: JobOrigin = "submit",
) -> list[tuple[int, bool]]:
    """Add jobs that no list has, each with a key of its own; return the id of each, and if it is new.

    With `once`, a job of the same key may be there, and is taken in place of the new one.

    Raises GpuschedError, and changes nothing, when a job depends on one that is not there, or on itself.
    """
    with store.large_cache(), store.transaction():
        old = {spec.key: job_id for spec in specs if once and (job_id := _find(store, spec)) is not None}
        new = {spec.key: spec for spec in specs if spec.key not in old}
        change = QueueChange(tuple((spec, n) for n, spec in enumerate(new.values(), _end_of_list(store))), (), (), ())
        first = _insert(store, change.add, needs, now, origin)
        _connect(store, change, None)
    ids = {**old, **{key: job_id for job_id, key in enumerate(new, first)}}
    return [(ids[spec.key], spec.key in new) for spec in specs]


def spec_of(job: JobRow, key: bytes) -> JobSpec:
    """Return a job of another queue as one that is submitted here by itself, under this key."""
    return JobSpec(job.command, job.command, job.line, key=key)


def needs_of(job: JobRow) -> Requirements:
    """Return the needs of a job of another queue for one attempt here."""
    own = {name: getattr(job, name) for name in Requirements._fields if hasattr(job, name)}
    return Requirements(**{**own, "retries": 0, "begin_at": 0.0})


def _find(store: Store, spec: JobSpec) -> int | None:
    """Return the id of the job of this identity."""
    query = "SELECT id FROM jobs WHERE identity = ? AND occurrence = ?"
    job_id = store.scalar(query, (identity(spec), spec.occurrence))
    return None if job_id is None else int(job_id)


def _end_of_list(store: Store) -> int:
    """Return the position behind all jobs."""
    return int(store.scalar("SELECT coalesce(max(position) + 1, 0) FROM jobs"))


def stored_jobs(store: Store) -> list[StoredJob]:
    """Return the jobs of the queue's list as they are compared with a newer one."""
    return list(_select(store, "WHERE origin = 'list'", ()))


def _select(store: Store, where: str, values: tuple[object, ...]) -> Iterator[StoredJob]:
    query = f"SELECT id, identity, occurrence, state, cause FROM jobs {where}"
    for job_id, name, occurrence, state, cause in store.stream(query, values):
        yield StoredJob(job_id, name, occurrence, JobState(state), cause)


def _insert(
    store: Store,
    add: Sequence[tuple[JobSpec, int]],
    needs: Callable[[JobSpec], Requirements],
    now: float,
    origin: JobOrigin = "list",
) -> int:
    """Add the jobs, and return the id of the first one; no id was ever that of another job."""
    state = next_state(None, JobEvent.SUBMITTED).value
    known = ("id", "command", "line", "position", "identity", "occurrence", "state", "submitted_at", "origin")
    names = (*known, "environment_id", *NEEDS)
    first = 1 + job_table.last_id(store)
    environment_id = functools.cache(functools.partial(environment_table.store_content, store))
    store.execute_many(
        f"INSERT INTO jobs ({', '.join(names)}) VALUES (:{', :'.join(names)})",
        (
            {
                "id": job_id,
                "command": spec.command,
                "line": spec.line,
                "position": position,
                "identity": identity(spec),
                "occurrence": spec.occurrence,
                "state": state,
                "submitted_at": now,
                "origin": origin,
                "environment_id": environment_id(wanted.environment) if wanted.environment else None,
                **needs_columns(wanted),
            }
            for job_id, (spec, position) in enumerate(add, first)
            for wanted in [needs(spec)]
        ),
    )
    return first


def _update(store: Store, keep: Sequence[tuple[int, JobSpec, int]], needs: Callable[[JobSpec], Requirements]) -> None:
    store.execute_many(
        "UPDATE jobs SET line = ?2, position = ?3, name = ?4, tags = ?5, listed = 1 "
        "WHERE id = ?1 AND (line <> ?2 OR position <> ?3 OR name <> ?4 OR tags <> ?5 OR listed = 0)",
        (
            (job_id, spec.line, position, spec.attributes.name, ",".join(spec.attributes.tags))
            for job_id, spec, position in keep
        ),
    )
    # a budget that has grown after an out-of-memory stays, unless another one is stated now
    store.execute_many(
        f"UPDATE jobs SET command = :command, {', '.join(f'{name} = :{name}' for name in _KEPT_NEEDS)}, "
        "mem_bytes = CASE WHEN stated_mem_bytes = :stated_mem_bytes THEN mem_bytes ELSE :mem_bytes END, "
        "shape = CASE WHEN stated_mem_bytes = :stated_mem_bytes AND mem_bytes <> :mem_bytes THEN shape ELSE :shape END "
        "WHERE id = :id AND (state IN ('queued', 'held') "
        "OR (state = 'cancelled' AND cause IN ('dependency', 'not_needed')))",
        ({"id": job_id, "command": spec.command, **needs_columns(needs(spec))} for job_id, spec, _ in keep),
    )


# ---- dependencies ----------------------------------------------------------------------------------


def _connect(store: Store, change: QueueChange, newest: int | None, met: frozenset[str] = frozenset()) -> None:
    """Store the references of new and waiting jobs, and weigh these jobs.

    `newest` is the last job before this submission, if that is the whole list: then its own jobs count first. `met` are
    names and tags of jobs that have succeeded and are no longer there.
    """
    added = [spec for spec, _ in change.add if spec.attributes.after]
    wanting = {job_id: spec for spec in added if (job_id := _find(store, spec)) is not None}
    kept = {job_id: spec for job_id, spec, _ in change.keep}
    had = [job_id for job_id in dependency_table.jobs_with_any(store) if job_id in kept]
    for job_id in {*had, *(job_id for job_id, spec in kept.items() if spec.attributes.after)}:
        job = job_table.get(store, job_id)
        ended = job.state in ENDED_STATES and job.cause not in transitions.STOPPED_FOR_OTHERS
        if ended or job.state is JobState.RUNNING:
            continue
        dependency_table.clear(store, job_id)
        wanting[job_id] = kept[job_id]
    if not wanting:
        return
    dependency_table.connect(store, wanting, _index(store, set(change.cancel), kept, newest, met))
    for job_id in wanting:
        transitions.weigh(store, job_id)


def change_dependencies(store: Store, job_id: int, stated: Mapping[str, tuple[str, ...]]) -> None:
    """Have a waiting job wait for these jobs, by the kind of the wait; for nobody of a kind that states none.

    What it waits for by other kinds stays. Raises GpuschedError for jobs that are not there, or wait for each other.
    """
    refs: dict[str, tuple[str, ...]] = {}
    for kind, job in dependency_table.upstream(store, job_id):
        refs[kind] = (*refs.get(kind, ()), str(job.id))
    after = tuple(Dependency(DependencyKind(kind), ids) for kind, ids in {**refs, **stated}.items() if ids)
    with store.transaction():
        dependency_table.clear(store, job_id)
        spec = JobSpec(b"", b"", job_table.get(store, job_id).line, attributes=Attributes(after=after))
        dependency_table.connect(store, {job_id: spec}, _index_of(store, {ref for each in after for ref in each.refs}))
        transitions.weigh(store, job_id)


def _index_of(store: Store, refs: Set[str]) -> JobIndex:
    """Return the jobs that these names, tags and ids can mean."""
    words = [ref for ref in refs if not ref.isdecimal()]
    listed = "IN (SELECT value FROM json_each(?))"
    named = f"AND (id {listed} OR name {listed} OR {job_table.has_tag(words)})"
    return JobIndex(_listed(store, named, json.dumps(list(refs)), json.dumps(words), *words))


def _index(store: Store, leaving: Set[int], kept: Container[int], newest: int | None, met: frozenset[str]) -> JobIndex:
    listed: list[ListedJob] = []
    earlier: list[ListedJob] = []
    for job in _listed(store):
        if job.id not in leaving:
            (listed if newest is None or job.id > newest or job.id in kept else earlier).append(job)
    return JobIndex(listed, earlier, met)


def _listed(store: Store, condition: str = "", *values: object) -> Iterator[ListedJob]:
    """Yield the jobs that can be waited for, by their names and tags."""
    query = f"SELECT id, name, tags FROM jobs WHERE cause <> ? {condition}"
    for job_id, name, tags in store.stream(query, (CAUSE_REMOVED, *values)):
        yield ListedJob(job_id, name, tuple(tags.split(",")) if tags else ())
