"""The periods in which a dispatcher worked on a queue."""

from __future__ import annotations

from gpusched.host.store.connection import Store


def begin(store: Store, now: float, version: str) -> int:
    """Store the start of a dispatcher of this version; return its number.

    The one before, if it was killed, was at work at least until the last start or end of a job that it has stored.
    """
    stored = "SELECT max(max(started_at, ifnull(ended_at, 0))) FROM attempts"
    stored += " WHERE job_id IN (SELECT id FROM jobs WHERE origin <> 'exec')"
    with store.transaction():
        store.execute(
            f"UPDATE dispatches SET last_seen_at = max(last_seen_at, min(?, ifnull(({stored}), 0)))"
            " WHERE id = (SELECT max(id) FROM dispatches)",
            (now,),
        )
        return store.insert("dispatches", started_at=now, last_seen_at=now, version=version)


def newest(store: Store) -> tuple[str, float]:
    """Return the version of the newest dispatcher ("" for 0.1), and when it was last seen; 0 if there was none."""
    return store.row("SELECT version, last_seen_at FROM dispatches ORDER BY id DESC LIMIT 1") or ("", 0.0)


def touch(store: Store, dispatch: int, now: float) -> None:
    """Store that the dispatcher was still at work `now`."""
    with store.transaction():
        store.execute("UPDATE dispatches SET last_seen_at = ? WHERE id = ?", (now, dispatch))
