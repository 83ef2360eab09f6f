"""The agent of a node: it keeps the node's own queue in step with the head. It knows no transport, and decides nothing.

All that it must remember lies in the queue of the node and in the deadlines beside it, so it can be killed at any
moment. The dispatcher of that queue and its shepherds go on without it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusched import __version__
from gpusched.cluster.leases import LeaseTerms
from gpusched.cluster.messages import LOG_PART_BYTES, Grant, Held, HeldState, LogPart, LogWish, Reply, Request
from gpusched.common.errors import disk_full
from gpusched.core.jobs import environment
from gpusched.core.model import ENDED_STATES, AttemptRow, JobState
from gpusched.host.attempts import attempt_dir, fence
from gpusched.host.queue import published
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, TransientError, attempt_table, job_table, meta_table
from gpusched.host.store.cluster import leased_table
from gpusched.host.store.cluster.leased_table import LeasedJob

TROUBLE_S = 15.0  # for which a node is given nothing after it could not take a job
JOB_VARIABLE = b"GPUSCHED_CLUSTER_JOB"  # number of the job and of its attempt at the head, as 12.1


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node, and the queue that it has for one cluster."""

    name: str
    queue: QueueDir
    tags: frozenset[str] = frozenset()


class Agent:
    """One agent, for one call at a time: `request`, then `apply` with the reply to it."""

    def __init__(
        self,
        place: NodePlace,
        terms: LeaseTerms,
        *,
        closed: Callable[[], str] = lambda: "",
        clock_s: Callable[[], float] = fence.now_s,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`closed` says why the node takes no more jobs; empty if it does."""
        self._place, self._terms = place, terms
        self._closed, self._clock_s, self._wall = closed, clock_s, wall
        self._store = Store(place.queue.database)
        self._holder = meta_table.queue_id(self._store)
        self._session = 1 + int(meta_table.read(self._store, meta_table.AGENT_SESSION) or 0)
        meta_table.write(self._store, meta_table.AGENT_SESSION, str(self._session))
        self._seq = 0
        self._sent_s = 0.0  # when the newest request was made
        self._directories: tuple[bytes, ...] = ()  # that the head asks for
        self._logs: tuple[LogWish, ...] = ()
        self._trouble, self._trouble_until_s = "", 0.0  # why no job could be taken, and until when none is asked for

    def close(self) -> None:
        self._store.close()

    def version_of_queue(self) -> int:
        """Return what is another one once the queue of the node has changed."""
        return self._store.data_version()

    # ---- asking ----

    def request(self) -> Request:
        """Return the state of this node now."""
        self._seq += 1
        self._sent_s = self._clock_s()  # before anything is read, and before it is sent
        board = published.read_board(self._place.queue)
        pid = self._place.queue.dispatcher()  # 0: there is one, and it is not seen at this moment
        held = tuple(self._held(each) for each in leased_table.leased_jobs(self._store))
        return Request(
            node=self._place.name,
            holder=self._holder,
            session=self._session,
            seq=self._seq,
            version=__version__,
            terms=self._terms,
            at=self._wall(),
            tags=self._place.tags,
            closed=self._closed() or self._unable(),
            board=board if board is not None and pid in (0, board.pid) else None,
            held=held,
            directories={path: _fault_of(path) for path in self._directories},
            logs=tuple(part for wish in self._logs for part in self._read_logs(wish)),
        )

    def _unable(self) -> str:
        """Return why a job cannot be taken now; empty if it can."""
        if full := self._place.queue.full_disk():
            return disk_full(full)
        return self._trouble if self._sent_s < self._trouble_until_s else ""

    def _held(self, leased: LeasedJob) -> Held:
        job = job_table.get(self._store, leased.job_id)
        row = attempt_table.attempts(self._store, job.id)[-1] if job.attempts else None
        state: HeldState = "waiting"
        if job.state in ENDED_STATES:
            state = "ended"
        elif job.state is JobState.RUNNING:
            state = "running"
        return Held(leased.token, state, row, 0 if row is None else self._log_bytes(row))

    def _log_bytes(self, row: AttemptRow) -> int:
        try:
            return os.stat(f"{self._place.queue.path}/{row.log}").st_size
        except OSError:
            return 0

    def _read_logs(self, wish: LogWish) -> Iterable[LogPart]:
        """Yield what is there of the logs of an attempt beyond what the head has."""
        job_id = leased_table.job_of(self._store, wish.token)
        rows = [] if job_id is None else attempt_table.attempts(self._store, job_id)
        for row in rows[-1:]:
            for name, offset in ((row.log, wish.offset), (row.error_log, wish.error_offset)):
                path = f"{self._place.queue.path}/{name}"
                data = attempt_dir.read_part(path, LOG_PART_BYTES, since=offset) if name else None
                if data:
                    yield LogPart(wish.token, name == row.error_log, offset, data)

    # ---- doing ----

    def apply(self, request: Request, reply: Reply) -> None:
        """Do what the head wishes. A reply to any but the newest request is passed over.

        Raises GpuschedError or OSError when it cannot be done now; the next reply says it again.
        """
        if reply.seq != self._seq or request.session != self._session:
            return
        if reply.refused:
            return
        self._directories, self._logs = reply.directories, reply.logs
        deadline_s = self._sent_s + self._terms.fence_after_s
        leased = {each.token: each.job_id for each in leased_table.leased_jobs(self._store)}
        over = {token: leased[token] for token in (*reply.done, *reply.stale) if token in leased}
        for token, job_id in leased.items():
            if token not in over:
                fence.write(self._fence(job_id), deadline_s)
            elif token in reply.stale:
                fence.write(self._fence(job_id), 0.0)  # its shepherd ends it, with a dispatcher or without
        wanted = reply.stale | reply.stop  # to end, in any case; the others only if they have not begun
        ending = {leased[token]: token not in wanted for token in wanted | reply.back if token in leased}
        if over or reply.grants or any(self._is_to_end(job_id, back=back) for job_id, back in ending.items()):
            try:
                self._change(reply.grants, deadline_s, over=list(over), ending=ending)
            except (TransientError, OSError) as error:
                self._trouble, self._trouble_until_s = f"it cannot take jobs: {error}", self._sent_s + TROUBLE_S
                raise
            self._place.queue.ring()
        for token in reply.done:
            if token in over:
                fence.remove(self._fence(over[token]))

    def _is_to_end(self, job_id: int, *, back: bool) -> bool:
        """Return True if this job has still to be ended; one that is only wanted `back` must not have begun."""
        job = job_table.get(self._store, job_id)
        if job.state in ENDED_STATES or job.cancel_requested_at is not None:
            return False
        return not (back and job.state is JobState.RUNNING)

    def _change(
        self, grants: Iterable[Grant], deadline_s: float, *, over: Sequence[str], ending: Mapping[int, bool]
    ) -> None:
        """Change the queue of the node, whole or not at all. `ending` says by job if it is only wanted back."""
        with self._store.transaction():
            for job_id, back in ending.items():
                if self._is_to_end(job_id, back=back):  # its dispatcher may have begun it just now
                    job_table.cancel(self._store, job_id, self._wall())
            leased_table.set_done(self._store, over)
            for grant in grants:
                own = (JOB_VARIABLE, f"{grant.job.id}.{grant.attempt}".encode())
                env = {**environment.variables(grant.environment), **dict(grant.job.env), own[0]: own[1]}
                new = leased_table.add(self._store, grant.token, replace(grant.job, env=tuple(env.items())))
                if new is not None:
                    fence.write(self._fence(new), deadline_s)  # before anybody can see the job

    def _fence(self, job_id: int) -> str:
        return fence.path_of(self._place.queue.state, job_id)


def _fault_of(path: bytes) -> str:
    """Return why a job cannot run in this directory on this box; empty if it can."""
    if os.path.isdir(path) and os.access(path, os.X_OK):
        return ""
    return f"it has no directory {os.fsdecode(path)} (a shared file system, or cwd=, makes it one)"
