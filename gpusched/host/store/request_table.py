"""Requests of other gpusched commands to the dispatcher of a queue, and its answers."""

from __future__ import annotations

from gpusched.host.store.connection import Store


def add(store: Store, kind: str, now: float) -> int:
    """Store a request; return its number."""
    with store.transaction():
        return store.insert("requests", kind=kind, created_at=now)


def open_requests(store: Store) -> list[tuple[int, str, float]]:
    """Return number, kind and time of each request that has no answer yet."""
    return store.rows("SELECT id, kind, created_at FROM requests WHERE acked_at IS NULL")


def acknowledge(store: Store, request: int, now: float) -> None:
    with store.transaction():
        store.execute("UPDATE requests SET acked_at = ? WHERE id = ? AND acked_at IS NULL", (now, request))


def is_acknowledged(store: Store, request: int) -> bool:
    return store.scalar("SELECT acked_at FROM requests WHERE id = ?", (request,)) is not None
