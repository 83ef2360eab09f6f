"""The environments of submissions: each content once, as long as a job refers to it."""

from __future__ import annotations

from gpusched.common.digests import blake2b
from gpusched.host.store.connection import Store


def store_content(store: Store, content: bytes) -> int:
    """Store an environment (NAME=value, with a NUL behind each), unless it is there; return its number."""
    digest = blake2b(content, digest_size=16).digest()
    with store.transaction():
        known = store.scalar("SELECT id FROM environments WHERE digest = ?", (digest,))
        return store.insert("environments", digest=digest, content=content) if known is None else int(known)


def read(store: Store, environment_id: int) -> bytes:
    """Return the content of an environment; empty if it is not there."""
    content = store.scalar("SELECT content FROM environments WHERE id = ?", (environment_id,))
    return b"" if content is None else bytes(content)


def remove_unused(store: Store) -> None:
    """Remove the environments that no job refers to."""
    with store.transaction():
        used = "SELECT 1 FROM jobs WHERE environment_id = environments.id"
        store.execute(f"DELETE FROM environments WHERE NOT EXISTS ({used})")
