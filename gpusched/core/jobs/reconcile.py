"""Compare the job specs of a file with the jobs of a queue: which to add, keep, cancel and requeue. Changes nothing.

The identity of a job is its command text, its own directory and variables, and the occurrence number of these. It
is never the line number, since lists are edited between runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpusched.common.digests import blake2b
from gpusched.core.jobs.job import ENDED_STATES, JobSpec, JobState
from gpusched.core.jobs.readiness import CAUSE_NOT_NEEDED

CAUSE_REMOVED = "removed"  # cancelled because its line left the file
COUNTED_NOWHERE = (CAUSE_REMOVED, CAUSE_NOT_NEEDED)  # cancelled jobs of these causes count in no total
_WAITING = (JobState.QUEUED, JobState.HELD)


def identity(job: JobSpec) -> bytes:
    """Return sixteen bytes that identify a job: a hash of its text, and of its cwd and env if it states any.

    Of a job that was submitted by itself, a hash of its key.
    """
    if job.key:
        return blake2b(job.key, digest_size=16, person=b"gpusched key").digest()
    own = job.attributes
    if own.cwd is None and not own.env:
        return blake2b(job.text, digest_size=16).digest()
    parts = [job.text, b"" if own.cwd is None else b"=" + own.cwd]
    parts += (name + b"=" + value for name, value in sorted(own.env))
    whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)  # unambiguous: two lists never give the same
    return blake2b(whole, digest_size=16, person=b"gpusched job").digest()


class StoredJob(NamedTuple):
    """A job that is already in the queue."""

    id: int
    identity: bytes
    occurrence: int
    state: JobState
    cause: str


class QueueChange(NamedTuple):
    """The changes that a submission makes to a queue. `position` is the index in the order of the file."""

    add: tuple[tuple[JobSpec, int], ...]  # with position
    keep: tuple[tuple[int, JobSpec, int], ...]  # job id, new spec, new position
    requeue: tuple[int, ...]  # cancelled when their line was removed, and now listed again; or failed and retried
    cancel: tuple[int, ...]  # waiting, and no longer listed
    gone: tuple[int, ...] = ()  # ended, and no longer listed


def reconcile(
    specs: Sequence[JobSpec],
    stored: Iterable[StoredJob],
    *,
    complete: bool = True,
    retry_failed: bool = False,
    first_position: int = 0,
) -> QueueChange:
    """Return the changes that a submission of `specs` makes to a queue with the jobs `stored`.

    If `complete`, `specs` is the whole list, and jobs missing from it leave the queue; a stream that has not ended
    cleanly is not complete. `retry_failed` requeues failed jobs.
    """
    unlisted = {(job.identity, job.occurrence): job for job in stored}
    add: list[tuple[JobSpec, int]] = []
    keep: list[tuple[int, JobSpec, int]] = []
    requeue: list[int] = []
    for position, spec in enumerate(specs, first_position):
        job = unlisted.pop((identity(spec), spec.occurrence), None)
        if job is None:
            add.append((spec, position))
            continue
        keep.append((job.id, spec, position))
        returned = job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED
        if returned or (retry_failed and job.state is JobState.FAILED):
            requeue.append(job.id)
    left = list(unlisted.values()) if complete else []
    cancel = tuple(job.id for job in left if job.state in _WAITING)
    gone = tuple(job.id for job in left if job.state in ENDED_STATES and job.cause != CAUSE_REMOVED)
    return QueueChange(tuple(add), tuple(keep), tuple(requeue), cancel, gone)
