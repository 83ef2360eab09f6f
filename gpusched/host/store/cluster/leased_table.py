"""The jobs that the queue of a node has for the head of a cluster, each under a lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpusched.core.jobs.job import JobRow
from gpusched.host.store import submission
from gpusched.host.store.connection import Store


class LeasedJob(NamedTuple):
    """A job of the head in the queue of a node."""

    token: str
    job_id: int  # here


def add(store: Store, token: str, job: JobRow) -> int | None:
    """Add a job under a lease; return its number here, or None if this lease is known."""
    with store.transaction():
        if job_of(store, token) is not None:
            return None
        spec, needs = submission.spec_of(job, token.encode()), submission.needs_of(job)
        ((job_id, _),) = submission.add(store, [spec], lambda _: needs, job.submitted_at, origin="lease")
        wishes = {"avoid": ",".join(sorted(job.avoid)), "above_bytes": job.above_bytes, "shape": job.shape}
        store.update("jobs", "id = ?", (job_id,), **wishes)
        store.insert("leased", token=token, job_id=job_id)
        return job_id


def leased_jobs(store: Store) -> list[LeasedJob]:
    """Return the jobs whose ends the head does not know yet."""
    return [LeasedJob(*row) for row in store.rows("SELECT token, job_id FROM leased WHERE is_done = 0 ORDER BY job_id")]


def job_of(store: Store, token: str) -> int | None:
    """Return the number of the job of this lease here, done or not; None if it was never here."""
    value = store.scalar("SELECT job_id FROM leased WHERE token = ?", (token,))
    return None if value is None else int(value)


def set_done(store: Store, tokens: Sequence[str]) -> None:
    """Note that the head needs to hear no more of these leases."""
    store.execute_many("UPDATE leased SET is_done = 1 WHERE token = ?", [(token,) for token in tokens])
