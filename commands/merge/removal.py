"""Removing parts once they are safe in a complete output: hashed again first. Removes nothing that has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .hashing import hash_file
from .metadata import path_beside
from .output import is_ours, read_document
from .parts import Part
from .trouble import Refused, clean, number


def remove_parts(output: str, document: Mapping[str, Any], parts: Sequence[Part]) -> int:
    """Remove these parts, if they and the output are as the document says; how many were removed."""
    sums = {row["name"]: row["sha256"] for row in document["parts"]}
    if not is_ours(output, dict(document)):
        raise Refused("is not what was written; no part is removed", where=output)
    for part in parts:
        if hash_file(part.path)[1].hexdigest() != sums.get(part.name):
            raise Refused("has changed since it was merged; no part is removed", where=part.name)
    for part in parts:
        os.unlink(part.path)
    return len(parts)


def finish_removal(output: str, parts: Sequence[Part], *, asked: bool) -> str | None:
    """What to say, where this output was made whole before and its parts were being removed; None to merge."""
    document = read_document(path_beside(output))
    if not (document.get("remove_parts") and document.get("complete") and isinstance(document.get("parts"), list)):
        return None
    names = {row.get("name") for row in document["parts"] if isinstance(row, dict)}
    gone = len(names) - len(parts)
    if parts and not asked:
        return None  # what they would make now is compared with what stands there
    if gone <= 0 or not {part.name for part in parts} <= names or not is_ours(output, document):
        return None
    removed = remove_parts(output, document, parts) if parts else 0
    return (
        f"{clean(output)} was merged before; {number(removed, 'part')} that was left is removed"
        if removed
        else (f"{clean(output)} was merged before, and its parts are removed")
    )
