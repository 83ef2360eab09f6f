"""Text that comes from others, made fit for a terminal, a table and a record. Writes nothing."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(?<![\w-])hf_[A-Za-z0-9]{16,}|(?<=://)[^/\s@]+(?=@)")


def shown(text: object, limit: int = 500) -> str:
    """One line without control characters or tokens, cut at `limit`: names of files, tensors, errors of libraries."""
    words = _SECRET.sub("***", " ".join(str(text).split()))
    plain = "".join(char if char.isprintable() else "?" for char in words)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
