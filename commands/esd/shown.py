"""Text that comes from others, made fit for a terminal, a table and a record. Writes nothing."""

from __future__ import annotations


def shown(text: object, limit: int = 500) -> str:
    """One line without control characters, cut at `limit`: file names, names of tensors, errors of libraries."""
    words = " ".join(str(text).split())
    plain = "".join(char if char.isprintable() else "?" for char in words)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
