"""The leases of a cluster in the queue of its head: granted, booked as nodes report, ended. Decides for no node."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from gpusched.cluster.messages import Grant, Held, LogPart, LogWish, Request
from gpusched.core.jobs import environment
from gpusched.core.jobs.lifecycle import GIVEN_BACK, steer
from gpusched.core.model import Attempt, AttemptFact, AttemptRow, JobRow, Outcome, OutcomeKind
from gpusched.core.plan import observe
from gpusched.core.plan.planner import close_of
from gpusched.core.plan.snapshot import DeviceView
from gpusched.dispatcher.attempts.attempt_book import log_paths
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, environment_table, job_table
from gpusched.host.store.attempt_table import AttemptEnd, NextAttempt
from gpusched.host.store.cluster import lease_table
from gpusched.host.store.cluster.lease_table import LeaseRow

log = logging.getLogger("gpusched.cluster")

CLOCK_ERROR_S = 5.0  # more than this, and the times of a node are corrected
LOGS_WANTED_S = 10.0  # after the last word of who reads a log


class OpenLease(NamedTuple):
    """A lease with its job and its attempt, which have not ended."""

    lease: LeaseRow
    job: JobRow
    row: AttemptRow

    @property
    def is_cancelled(self) -> bool:
        return self.job.cancel_requested_at is not None

    def planned(self) -> Attempt:
        return observe.open_attempt(self.job, self.row)


class LeaseBook:
    """`devices` are those of all nodes, for the question whether a larger budget could be had anywhere."""

    def __init__(self, queue: QueueDir, store: Store, wall: Callable[[], float]) -> None:
        self.devices: tuple[DeviceView, ...] = ()
        self._queue, self._store, self._wall = queue, store, wall

    def open_leases(self) -> dict[str, OpenLease]:
        """Return the leases that have not ended, by token."""
        running = {job.id: (job, row) for job, row in attempt_table.running(self._store)}
        leases = lease_table.open_leases(self._store)
        return {each.token: OpenLease(each, *running[each.job_id]) for each in leases if each.job_id in running}

    # ---- ends ----

    def book(self, request: Request, leases: dict[str, OpenLease]) -> tuple[frozenset[str], frozenset[str], int]:
        """Book what a node reports, in `leases` too; return the tokens that are done and stale, and the ends booked."""
        stale = self.stale_of(request, leases)
        done, ended = set[str](), 0
        skew_s = self._wall() - request.at
        offset_s = skew_s if abs(skew_s) > CLOCK_ERROR_S else 0.0
        with self._store.transaction():
            for held in request.held:
                if not _is_current(held, request, leases):
                    done |= {held.token} if held.state == "ended" else set()
                    self._log_stale(request, held)
                    continue
                known = leases[held.token]
                row = held.attempt and _shifted(held.attempt, offset_s)
                known = leases[held.token] = self._note(known, held, row)
                if held.state == "ended":
                    self._close(known, row)
                    ended += 1
                    done.add(held.token)
                    del leases[held.token]
        return frozenset(done), stale, ended

    def stale_of(self, request: Request, leases: Mapping[str, OpenLease]) -> frozenset[str]:
        """Return the leases of jobs that must end, since they are no longer those of this node."""
        running = (held for held in request.held if held.state != "ended")
        return frozenset(held.token for held in running if not _is_current(held, request, leases))

    def _note(self, known: OpenLease, held: Held, row: AttemptRow | None) -> OpenLease:
        """Note the beginning of an attempt, and the size of its log."""
        lease = known.lease
        if row is not None and not lease.is_started:
            logs = log_paths(known.job, lease.attempt, bool(row.error_log))
            lease_table.note_start(self._store, lease, row, *logs)
            here = replace(known.row, started_at=row.started_at, devices=row.devices, log=logs[0], error_log=logs[1])
            known = known._replace(lease=lease._replace(is_started=True), row=here)
        elif row is not None and (row.usage, row.progress) != (known.row.usage, known.row.progress):
            attempt_table.save_usage(self._store, lease.job_id, lease.attempt, row.usage, row.progress)
        if held.log_bytes != lease.log_bytes:
            lease_table.change(self._store, held.token, log_bytes=held.log_bytes)
        return known

    def _log_stale(self, request: Request, held: Held) -> None:
        """Log a report that is refused, unless it was booked and only the answer was lost."""
        lease = lease_table.of_token(self._store, held.token)
        rows = [] if lease is None else attempt_table.attempts(self._store, lease.job_id)
        booked = rows[lease.attempt - 1].outcome if lease is not None and rows else None
        reported = None if held.attempt is None else held.attempt.outcome
        if held.state != "ended" or reported not in (None, booked):
            what = "a lease that is not known" if lease is None else f"job {lease.job_id}, attempt {lease.attempt}"
            log.warning("stale report of node %s refused: %s is %s there", request.node, what, held.state)

    def _close(self, known: OpenLease, row: AttemptRow | None) -> None:
        """Close an attempt as its node has reported it; None: it was given back unbegun."""
        given_back = Outcome(OutcomeKind.NOT_STARTED, cause=GIVEN_BACK)
        outcome = given_back if row is None or row.outcome is None else row.outcome
        self._end(known, outcome, row or known.row)

    def end_as_lost(self, known: OpenLease, note: str) -> None:
        log.warning("job %s, attempt %s: %s", known.job.id, known.lease.attempt, note)
        self._end(known, Outcome(OutcomeKind.LOST, note=note), known.row)

    def _end(self, known: OpenLease, outcome: Outcome, row: AttemptRow) -> None:
        job, now = known.job, self._wall()
        attempt = replace(
            known.planned(),
            devices=tuple(device.uuid for device in row.devices),
            fact=AttemptFact.EXITED,
            outcome=outcome,
            peak_device_bytes=row.usage.peak_device_bytes,
        )
        close = close_of(attempt, outcome, self.devices)
        avoid, above = steer(outcome, row.devices, job.avoid, job.above_bytes)
        ended_at = now if row.ended_at is None else max(row.ended_at, known.row.started_at)
        end = AttemptEnd(outcome, ended_at, row.usage, row.max_rss_bytes, row.cpu_s, row.progress)
        wishes = NextAttempt(avoid, 0 if job.mem_bytes else above, close.mem_bytes or None)
        attempt_table.close(self._store, job.id, known.lease.attempt, end, close.verdict, wishes, now=now)

    # ---- beginnings ----

    def grant(self, request: Request, mine: Sequence[OpenLease], job_ids: Iterable[int]) -> tuple[Grant, ...]:
        """Book these jobs for the node; return their leases, and those of `mine` that it does not have.

        It has none but those that it names: an earlier answer that is still on its way is passed over there. What it
        does not have and cannot take is queued again.
        """
        held = {each.token for each in request.held}
        grants = []
        with self._store.transaction():
            for each in mine:
                if each.lease.token in held:
                    continue
                if each.is_cancelled or request.closed:
                    self._close(each, None)
                else:
                    grants.append(self._as_grant(each.lease, each.job))
            for job_id in job_ids:
                token = os.urandom(8).hex()
                lease = LeaseRow(job_id, 0, token, request.node, request.holder, request.terms.lease_s)
                if (number := lease_table.begin(self._store, lease, self._wall())) is not None:
                    job = job_table.get(self._store, job_id)
                    grants.append(self._as_grant(lease._replace(attempt=number), job))
        return tuple(grants)

    def _as_grant(self, lease: LeaseRow, job: JobRow) -> Grant:
        content = b"" if job.environment_id is None else environment_table.read(self._store, job.environment_id)
        own = {name: value for name, value in environment.variables(content).items() if name not in environment.ALWAYS}
        return Grant(lease.token, job, lease.attempt, b"".join(b"%b=%b\0" % pair for pair in own.items()))

    # ---- logs ----

    def log_wishes(self, holder: str) -> tuple[LogWish, ...]:
        """Return the logs of this node that somebody reads here, and what is here of them."""
        wanted = lease_table.wanted_logs(self._store, self._wall() - LOGS_WANTED_S)
        mine = [(each, self._log_files(each)) for each in wanted if each.holder == holder and each.is_started]
        return tuple(LogWish(each.token, _size(out), _size(err)) for each, (out, err) in mine)

    def _log_files(self, lease: LeaseRow) -> tuple[str, str]:
        row = attempt_table.attempts(self._store, lease.job_id)[lease.attempt - 1]
        return f"{self._queue.path}/{row.log}", f"{self._queue.path}/{row.error_log}" if row.error_log else ""

    def keep_logs(self, parts: Iterable[LogPart]) -> None:
        """Write bytes of logs at their offsets: twice is as good as once."""
        for part in parts:
            lease = lease_table.of_token(self._store, part.token)
            path = "" if lease is None else self._log_files(lease)[part.is_error]
            if path:
                with suppress(OSError), open(_open_log(path), "wb", buffering=0) as file:
                    os.pwrite(file.fileno(), part.data, part.offset)


def _is_current(held: Held, request: Request, leases: Mapping[str, OpenLease]) -> bool:
    known = leases.get(held.token)
    return known is not None and (known.lease.node, known.lease.holder) == (request.node, request.holder)


def _shifted(row: AttemptRow, offset_s: float) -> AttemptRow:
    """Return an attempt with its times by the clock of the head."""
    ended_at = None if row.ended_at is None else row.ended_at + offset_s
    return replace(row, started_at=row.started_at + offset_s, ended_at=ended_at)


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except OSError:
        return 0
