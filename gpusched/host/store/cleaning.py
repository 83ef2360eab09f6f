"""Removal of jobs that have ended, with all that refers to them. Touches no file."""

from __future__ import annotations

import json
import time

from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.host.store import environment_table
from gpusched.host.store.connection import CLOSED, GAP_S, Store

_ENDED = (
    "FROM jobs WHERE state IN ('succeeded', 'failed', 'cancelled') AND coalesce(ended_at, submitted_at) < ? "
    "AND id NOT IN (SELECT job_id FROM leased WHERE is_done = 0)"  # the head of the cluster does not know their ends
)
_BATCH = 5000  # jobs that are removed together
_THESE = "(SELECT value FROM json_each(?))"


def removable(store: Store, before: float, newest: int = -1) -> list[int]:
    """Return the jobs that had ended before this moment, or the `newest`, without those that other jobs depend on."""
    going = {job_id for (job_id,) in store.rows(f"SELECT id {_ENDED} ORDER BY id DESC LIMIT ?", (before, newest))}
    waits: dict[int, list[int]] = {}
    for job_id, set_id in store.rows("SELECT job_id, set_id FROM dependencies"):
        waits.setdefault(job_id, []).append(set_id)
    members: dict[int, list[int]] = {}
    for set_id, upstream in store.rows("SELECT set_id, upstream_id FROM members"):
        members.setdefault(set_id, []).append(upstream)
    staying = [job_id for job_id in waits if job_id not in going]
    while staying:
        for set_id in waits[staying.pop()]:
            kept = going.intersection(members.pop(set_id, ()))
            going -= kept
            staying += kept & waits.keys()
    return sorted(going)


def remove(store: Store, before: float, *, forget: bool = False) -> None:
    """Remove the jobs that `removable` returns, in transactions so short that others can write in between.

    Lines of the list stay known as finished, so that they do not run again; with `forget`, they and all earlier ones
    are forgotten.
    """
    if forget:
        store.execute("DELETE FROM finished")
    while _remove_some(store, before, forget=forget):
        time.sleep(GAP_S)
    environment_table.remove_unused(store)


def _remove_some(store: Store, before: float, *, forget: bool) -> bool:
    """Remove the newest of these jobs, upon which hardly any depends; return False if there is none left."""
    with store.transaction():
        ids = removable(store, before, _BATCH) or removable(store, before)
        these = (json.dumps(ids),)
        if not forget:
            store.execute(
                "INSERT OR REPLACE INTO finished SELECT identity, occurrence, state FROM jobs "
                f"WHERE id IN {_THESE} AND origin = 'list' AND cause <> '{CAUSE_REMOVED}'",
                these,
            )
        store.execute(f"DELETE FROM dependencies WHERE job_id IN {_THESE}", these)
        store.execute("DELETE FROM sets WHERE id NOT IN (SELECT set_id FROM dependencies)")
        store.execute(f"DELETE FROM leases WHERE job_id IN {_THESE}", these)
        store.execute(f"DELETE FROM attempts WHERE job_id IN {_THESE}", these)
        store.execute(f"DELETE FROM jobs WHERE id IN {_THESE}", these)
    return bool(ids)


def count_ended(store: Store, before: float) -> int:
    """Count the jobs that had ended before this moment."""
    return int(store.scalar(f"SELECT count(*) {_ENDED}", (before,)))


def has_lines(store: Store) -> bool:
    """Return True if a job came from a list."""
    return store.row("SELECT 1 FROM jobs WHERE origin = 'list' LIMIT 1") is not None


def count_finished(store: Store) -> int:
    """Count the lines whose jobs were cleaned away, and that do not run again."""
    return int(store.scalar("SELECT count(*) FROM finished"))


def close(store: Store) -> bool:
    """Let no job be added any more, if there is none; return True if so. The files are removed next."""
    with store.transaction():
        if store.row("SELECT 1 FROM jobs LIMIT 1") is not None:
            return False
        abort = f"SELECT RAISE(ABORT, '{CLOSED}')"
        store.execute(f"CREATE TRIGGER IF NOT EXISTS closed BEFORE INSERT ON jobs BEGIN {abort}; END")
    return True
