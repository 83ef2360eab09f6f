"""Patterns of file names with at most one `*`, as `--merge` takes them. Reads no directory."""

from __future__ import annotations

import re

from gpusched.common.errors import GpuschedError

_WILDCARD = re.compile(r"(\[[*?[]\]|[*?[])")  # `[*]` is an escaped star, as glob.escape writes it


def split_pattern(pattern: str) -> list[str]:
    """Return the literal text of a pattern: one string, or the two around its `*`.

    Raises GpuschedError for any other wildcard, and for more than one.
    """
    texts = [""]
    for piece in _WILDCARD.split(pattern):
        if piece == "*":
            texts.append("")
        elif piece in ("?", "["):
            texts += ["", ""]
        else:
            texts[-1] += piece[1] if _WILDCARD.fullmatch(piece) else piece
    if len(texts) > 2:
        hint = "name what differs by {start} or {seed}, or use several patterns"
        raise GpuschedError("a pattern has at most one wildcard, a *", where=pattern, hint=hint)
    return texts
