"""The periods in which a dispatcher worked on a queue."""

from __future__ import annotations

from gpusched.host.store.connection import Store


def begin(store: Store, now: float) -> int:
    """Store the start of a dispatcher; return its number."""
    with store.transaction():
        return store.insert("dispatches", started_at=now, last_seen_at=now)


def touch(store: Store, dispatch: int, now: float) -> None:
    """Store that the dispatcher was still at work `now`."""
    with store.transaction():
        store.execute("UPDATE dispatches SET last_seen_at = ? WHERE id = ?", (now, dispatch))
