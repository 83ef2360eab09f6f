"""The leases of the head of a cluster: which node has an attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from gpusched.core.model import AttemptRow
from gpusched.host.store import attempt_table
from gpusched.host.store.connection import Store


class LeaseRow(NamedTuple):
    """One attempt on a node. It is open as long as the attempt is."""

    job_id: int
    attempt: int
    token: str
    node: str
    holder: str  # queue_id of the node's own queue
    lease_s: float  # its length when it was granted
    is_started: bool = False
    log_bytes: int = 0
    log_wanted_at: float | None = None


_LEASE = ", ".join(f"leases.{name}" for name in LeaseRow._fields)
_OPEN = "JOIN attempts ON attempts.job_id = leases.job_id AND number = attempt WHERE ended_at IS NULL"


def begin(store: Store, lease: LeaseRow, now: float) -> int | None:
    """Book the next attempt of a queued job as that of a node; return its number, or None if the job waits no more."""
    with store.transaction():
        number = attempt_table.start(store, lease.job_id, now, "", "", ())
        if number is not None:
            store.insert("leases", **lease._replace(attempt=number)._asdict())
        return number


def open_leases(store: Store) -> list[LeaseRow]:
    """Return the leases whose attempts have not ended."""
    return [_lease(row) for row in store.rows(f"SELECT {_LEASE} FROM leases {_OPEN} ORDER BY leases.job_id")]


def of_token(store: Store, token: str) -> LeaseRow | None:
    row = store.row(f"SELECT {_LEASE} FROM leases WHERE token = ?", (token,))
    return None if row is None else _lease(row)


def of_job(store: Store, job_id: int) -> dict[int, LeaseRow]:
    """Return the leases of a job by the numbers of its attempts."""
    rows = store.rows(f"SELECT {_LEASE} FROM leases WHERE job_id = ? ORDER BY attempt", (job_id,))
    return {lease.attempt: lease for lease in map(_lease, rows)}


def of_jobs(store: Store, job_ids: Sequence[int]) -> dict[int, LeaseRow]:
    """Return the newest lease of each of these jobs that has one, by the id of the job."""
    query = f"SELECT {_LEASE} FROM leases WHERE job_id IN (SELECT value FROM json_each(?)) ORDER BY attempt"
    return {lease.job_id: lease for lease in map(_lease, store.rows(query, (json.dumps(list(job_ids)),)))}


def wanted_logs(store: Store, since: float) -> list[LeaseRow]:
    """Return the leases whose logs somebody has wanted since then."""
    return [_lease(row) for row in store.rows(f"SELECT {_LEASE} FROM leases WHERE log_wanted_at >= ?", (since,))]


def change(store: Store, token: str, **columns: object) -> None:
    store.update("leases", "token = ?", (token,), **columns)


def note_start(store: Store, lease: LeaseRow, row: AttemptRow, log: str, error_log: str) -> None:
    """Store that the attempt has begun on its node: when, on which devices, and where its log is kept here."""
    with store.transaction():
        devices = attempt_table.devices_text(row.devices)
        columns = {"started_at": row.started_at, "devices": devices, "log": log, "error_log": error_log}
        store.update("attempts", "job_id = ? AND number = ?", (lease.job_id, lease.attempt), **columns)
        change(store, lease.token, is_started=True)


def _lease(row: Sequence[object]) -> LeaseRow:
    lease = LeaseRow(*row)  # type: ignore[arg-type]
    return lease._replace(is_started=bool(lease.is_started))
