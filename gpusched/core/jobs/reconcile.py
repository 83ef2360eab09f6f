"""Job specs of a file + what the queue already holds -> what to add, keep, cancel and take back. Changes nothing.

Identity is the text of the command, its own directory and variables, and which occurrence of these; never the line
number: lists are edited between runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusched.core.model import ENDED_STATES, JobSpec, JobState

CAUSE_REMOVED = "removed"  # cancelled because its line left the file
_WAITING = (JobState.QUEUED, JobState.HELD)


def identity(job: JobSpec) -> bytes:
    """Sixteen bytes that stand for a job: for its text, and its cwd and env if it states any."""
    own = job.attributes
    if own.cwd is None and not own.env:
        return hashlib.blake2b(job.text, digest_size=16).digest()
    parts = [job.text, b"" if own.cwd is None else b"=" + own.cwd]
    parts += (name + b"=" + value for name, value in sorted(own.env))
    whole = b"".join(b"%d:%b" % (len(part), part) for part in parts)  # no other list of parts gives the same bytes
    return hashlib.blake2b(whole, digest_size=16, person=b"gpusched job").digest()


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job that the queue already holds."""

    id: int
    identity: bytes
    occurrence: int
    state: JobState
    cause: str


@dataclass(frozen=True, slots=True)
class QueueChange:
    """`position` is the place in the order of the file; it and the line number follow the file as it is now."""

    add: tuple[tuple[JobSpec, int], ...]  # with position
    keep: tuple[tuple[int, JobSpec, int], ...]  # job id, spec as it is now, position
    requeue: tuple[int, ...]  # were cancelled because their line was gone; or failed and asked for again
    cancel: tuple[int, ...]  # wait, and their line is gone
    gone: tuple[int, ...] = ()  # have ended, and their line is gone


def reconcile(
    specs: Sequence[JobSpec],
    held: Iterable[StoredJob],
    *,
    complete: bool = True,
    retry_failed: bool = False,
    first_position: int = 0,
) -> QueueChange:
    """What a submission of `specs` does to a queue that holds `held`.

    `complete` says that `specs` is the whole list, so that what is missing is gone; a stream that has not ended
    cleanly is not. `retry_failed` asks for the failed ones again.
    """
    known = {(job.identity, job.occurrence): job for job in held}
    add: list[tuple[JobSpec, int]] = []
    keep: list[tuple[int, JobSpec, int]] = []
    requeue: list[int] = []
    for position, spec in enumerate(specs, first_position):
        job = known.pop((identity(spec), spec.occurrence), None)
        if job is None:
            add.append((spec, position))
            continue
        keep.append((job.id, spec, position))
        returned = job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED
        if returned or (retry_failed and job.state is JobState.FAILED):
            requeue.append(job.id)
    if not complete:
        return QueueChange(tuple(add), tuple(keep), tuple(requeue), ())
    cancel = tuple(job.id for job in known.values() if job.state in _WAITING)
    gone = tuple(job.id for job in known.values() if job.state in ENDED_STATES and job.cause != CAUSE_REMOVED)
    return QueueChange(tuple(add), tuple(keep), tuple(requeue), cancel, gone)
