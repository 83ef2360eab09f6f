"""The jobs that jobs wait for: stored as sets that dependants share, read back, and refused when they form a cycle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from gpusched.common.digests import blake2b
from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.job import JobRow, JobSpec
from gpusched.core.jobs.readiness import JobIndex, UnknownReference, find_cycle
from gpusched.host.store import job_table
from gpusched.host.store.connection import Store
from gpusched.host.store.migration import COUNT_SETS
from gpusched.host.store.rows import JOB, job_row

_UPSTREAM = (
    f"SELECT kind, {JOB} FROM dependencies d JOIN members m ON m.set_id = d.set_id "
    "JOIN jobs ON jobs.id = m.upstream_id WHERE d.job_id = ?"
)


def upstream(store: Store, job_id: int) -> list[tuple[str, JobRow]]:
    """Return the jobs that a job waits for, each with the kind of the wait, in the order in which it names them."""
    rows = store.rows(f"{_UPSTREAM} ORDER BY d.grp, m.upstream_id", (job_id,))
    return [(kind, job_row(columns)) for kind, *columns in rows]


def failed_upstream(store: Store, job_id: int) -> JobRow | None:
    """Return the first job that failed or was cancelled of those that a job waits for."""
    ends = "state IN ('failed', 'cancelled') AND cause <> 'not_needed'"
    row = store.row(f"{_UPSTREAM} AND {ends} LIMIT 1", (job_id,))
    return None if row is None else job_row(row[1:])


def jobs_with_any(store: Store) -> list[int]:
    """Return the ids of the jobs that wait for others."""
    return [job_id for (job_id,) in store.rows("SELECT DISTINCT job_id FROM dependencies")]


def clear(store: Store, job_id: int) -> None:
    """Let a job wait for nobody."""
    store.execute("DELETE FROM dependencies WHERE job_id = ?", (job_id,))


def connect(store: Store, specs: Mapping[int, JobSpec], index: JobIndex) -> None:
    """Store what these jobs (by id) wait for.

    Raises GpuschedError for a reference that names no job, and for jobs that wait for each other.
    """
    sets: dict[tuple[int, ...], int] = {}
    for job_id, spec in specs.items():
        try:
            groups = index.resolve(job_id, spec.attributes.after)
        except UnknownReference as error:
            raise _unknown_reference(spec, error.ref, index.names()) from None
        for n, (kind, members) in enumerate(groups):
            if members not in sets:
                sets[members] = _set_of(store, members)
            store.insert("dependencies", job_id=job_id, grp=n, kind=kind.value, set_id=sets[members])
    store.execute("DELETE FROM sets WHERE id NOT IN (SELECT set_id FROM dependencies)")
    _refuse_cycles(store)


def _set_of(store: Store, members: Sequence[int]) -> int:
    """Return the id of the set of these jobs; make the set if there is none."""
    name = blake2b(json.dumps(sorted(members)).encode(), digest_size=16).digest()
    stored_id = store.scalar("SELECT id FROM sets WHERE name = ?", (name,))
    if stored_id is not None:
        return int(stored_id)
    set_id = store.insert("sets", name=name, total=len(members), succeeded=0, failed=0, cancelled=0)
    store.execute_many("INSERT INTO members VALUES (?, ?)", ((set_id, up) for up in members))
    store.execute(f"{COUNT_SETS} WHERE id = ?", (set_id,))
    return set_id


def _refuse_cycles(store: Store) -> None:
    edges: dict[int, list[int]] = {}
    # a job that has ended waits for nobody any more
    query = (
        "SELECT d.job_id, d.set_id FROM dependencies d JOIN jobs j ON j.id = d.job_id "
        "WHERE j.state NOT IN ('succeeded', 'failed')"
    )
    for job_id, set_id in store.stream(query):  # a job waits for sets (negative numbers), a set for its jobs
        edges.setdefault(job_id, []).append(-set_id)
    for set_id, member in store.stream("SELECT set_id, upstream_id FROM members"):
        edges.setdefault(-set_id, []).append(member)
    cycle = [node for node in find_cycle(edges) if node > 0]
    if cycle:
        lines = [str(job_table.get(store, job_id).line) for job_id in cycle]
        raise GpuschedError(
            "jobs wait for each other in a circle: line " + " waits for line ".join([*lines, lines[0]]),
            hint="take one after= out; nothing of this list was taken",
        )


def _unknown_reference(spec: JobSpec, ref: str, names: Sequence[str]) -> GpuschedError:
    import difflib

    nearest = difflib.get_close_matches(ref, names, n=1, cutoff=0.5)
    hint = "a job bears name=…, or several bear tag=…; ids are those of `status`"
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    return GpuschedError(f"there is no job or tag {ref!r} to wait for", where=f"line {spec.line}", hint=hint)
