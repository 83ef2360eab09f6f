"""The periods in which a dispatcher worked on a queue."""

from __future__ import annotations

from gpusched.host.store.connection import Store


def begin(store: Store, now: float, version: str) -> int:
    """Store the start of a dispatcher of this version; return its number."""
    with store.transaction():
        return store.insert("dispatches", started_at=now, last_seen_at=now, version=version)


def newest(store: Store) -> tuple[str, float]:
    """Return the version of the newest dispatcher ("" for 0.1), and when it was last seen; 0 if there was none."""
    return store.row("SELECT version, last_seen_at FROM dispatches ORDER BY id DESC LIMIT 1") or ("", 0.0)


def touch(store: Store, dispatch: int, now: float) -> None:
    """Store that the dispatcher was still at work `now`."""
    with store.transaction():
        store.execute("UPDATE dispatches SET last_seen_at = ? WHERE id = ?", (now, dispatch))
