"""What stands already where a merge writes: may it be replaced, and which parts did it leave to be removed.

Removes nothing that has changed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from .hashing import hash_file
from .parts import Part
from .trouble import EXIT_USAGE, Refused, clean, number

TOOL = "gpusched merge"


def check_place(path: str) -> None:
    """Refuse what can never be an output."""
    check_name(path)
    if not os.path.lexists(path):
        return
    mode = os.lstat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "no regular file"
        raise Refused(f"is {kind}", where=path, hint="-o names the file that is to be made", exit_code=EXIT_USAGE)


def check_name(path: str) -> None:
    """Refuse a name that no file can have."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Refused(f"cannot be written: {error.strerror}", where=path, exit_code=EXIT_USAGE) from None


def read_document(path: str) -> dict[str, Any]:
    """The metadata that a merge left; empty where there is none, or what it says is not ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8") as file:
            found: Any = json.load(file) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except (OSError, ValueError, RecursionError):
        return {}
    ours = isinstance(found, dict) and isinstance(found.get("tool"), dict)
    return found if ours and found["tool"].get("name") == TOOL else {}


def is_ours(path: str, document: dict[str, Any]) -> bool:
    """Whether this file is as the merge that the document tells of has made it."""
    told = document.get("output")
    if not isinstance(told, dict) or told.get("name") != os.path.basename(path):
        return False
    try:
        if os.stat(path).st_size != told.get("bytes"):
            return False
        return bool(hash_file(path)[1].hexdigest() == told.get("sha256"))
    except OSError:
        return False


def path_beside(output: str) -> str:
    """`x_merged.pt`, `x.pt` -> `x_merged_metadata.json`; where another output has that, `x_pt_merged_metadata.json`."""
    stem, dot = os.path.splitext(output)
    stem = stem.removesuffix("merged").removesuffix("_") if os.path.basename(stem) != "merged" else stem
    made = f"{stem}_merged_metadata.json" if os.path.basename(stem) != "merged" else f"{stem}_metadata.json"
    told = read_document(made).get("output")
    if isinstance(told, dict) and told.get("name") != os.path.basename(output):
        return f"{stem}_{dot[1:]}_merged_metadata.json"
    return made


def check_replaces(path: str, document: dict[str, Any], digest: str, wrong: Sequence[str], *, overwrite: bool) -> None:
    """Refuse to replace a file that no merge has made, or a complete one by one that is not, for what is `wrong`."""
    if overwrite or not os.path.lexists(path):
        return
    if hash_file(path)[1].hexdigest() == digest:
        return
    if not is_ours(path, document):
        raise Refused("exists, and is not as a merge has made it", where=path, hint="--overwrite replaces it")
    if document.get("remove_parts"):
        raise Refused(
            "was made of parts that were removed then; it is kept", where=path, hint="--overwrite replaces it"
        )
    if document.get("complete") and wrong:
        raise Refused(
            "is complete, and what these parts would make is not; it is kept:\n  " + "\n  ".join(wrong),
            where=path,
            hint="--overwrite replaces it",
        )


# ---- parts to be removed ---------------------------------------------------------------------------


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
