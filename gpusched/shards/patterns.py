"""Patterns of file names with at most one `*`, as `--merge` takes them. Pure values."""

from __future__ import annotations

import re

_WILDCARD = re.compile(r"(\[[*?[]\]|[*?[])")  # `[*]` is an escaped star, as glob.escape writes it


def split_pattern(pattern: str) -> list[str]:
    """Return the literal text of a pattern: one string, or the two around its `*`.

    Raises ValueError for any other wildcard, and for more than one.
    """
    texts = [""]
    for piece in _WILDCARD.split(pattern):
        if piece == "*":
            texts.append("")
        elif piece in ("?", "["):
            raise ValueError(f"{piece} is no wildcard of a merge: only one * is")
        else:
            texts[-1] += piece[1] if _WILDCARD.fullmatch(piece) else piece
    if len(texts) > 2:
        raise ValueError("has more than one *")
    return texts
