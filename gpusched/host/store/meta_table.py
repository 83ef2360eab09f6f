"""Facts about a queue as a whole, by key: its source, the settings and the directories of its last submission."""

from __future__ import annotations

import json
import os

from gpusched.host.store.connection import Store

AGENT_SESSION = "agent_session"  # how often an agent has begun: only a queue of a cluster's node has it


def read(store: Store, key: str) -> str | None:
    value = store.scalar("SELECT value FROM meta WHERE key = ?", (key,))
    return None if value is None else str(value)


def write(store: Store, key: str, value: str | bytes) -> None:
    with store.transaction():
        store.execute("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2", (key, value))


def queue_id(store: Store) -> str:
    """Return the random id of this queue, which tells its records from those of another one; made when missing."""
    with store.transaction():
        if (known := read(store, "queue_id")) is None:
            write(store, "queue_id", known := os.urandom(8).hex())
    return known


def cluster_of(store: Store) -> str:
    """Return the cluster whose head dispatches this queue; empty for a queue of this box."""
    return read(store, "cluster") or ""


def maker(store: Store) -> str:
    """Return the command that makes the jobs of this queue, such as run or pool; run for those of a file."""
    typed = read(store, "typed")
    return "run" if typed is None else "".join(json.loads(typed)[1][:1])


def is_paused(store: Store) -> bool:
    """Return True if a person wants that nothing starts in this queue."""
    return bool(read(store, "paused"))


def source(store: Store) -> bytes | None:
    """Return the absolute path of the file that this queue belongs to; b"-" for a stream; None: not set yet."""
    value = store.scalar("SELECT value FROM meta WHERE key = 'source'")
    return None if value is None else bytes(value)
