"""What stands already where a merge writes: may it be replaced, and which parts did it leave to be removed.

Removes nothing that has changed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .hashing import hash_file
from .parts import Part
from .trouble import EXIT_CANNOT_WORK, EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE, Refused, clean, number

TOOL = "gpusched merge"
LEFT_SHOWN = 8  # of the parts that cannot be removed


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


def _read(path: str, size: int = -1) -> bytes:
    """The first bytes of a regular file that is no link; none where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(size) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""


def read_document(path: str) -> dict[str, Any]:
    """The metadata that a merge left; empty where there is none, or what it says is not ours."""
    try:
        found: Any = json.loads(_read(path))
    except (ValueError, RecursionError):
        return {}
    ours = isinstance(found, dict) and isinstance(found.get("tool"), dict)
    return found if ours and found["tool"].get("name") == TOOL else {}


def stored_name(name: str) -> str:
    """A name as metadata have it, whatever the locale: as UTF-8, and bytes that are none as halves of pairs."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def marker_line(output: str) -> str:
    """How the file begins that says of an output that it is incomplete."""
    return f"{clean(stored_name(os.path.basename(output)))} is incomplete:"


def is_marker(path: str, output: str) -> bool:
    line = marker_line(output).encode()
    return _read(path, len(line)) == line


def is_ours(path: str, document: Mapping[str, Any]) -> bool:
    """Whether this file is as the merge that the document tells of has made it."""
    try:
        return bool(_told_of(path, document.get("output"), *_identity(path)))
    except OSError:
        return False


def _identity(path: str) -> tuple[int, str]:
    size, digest = hash_file(path)
    return size, digest.hexdigest()


def _told_of(path: str, told: Any, size: int, digest: str) -> dict[str, Any]:
    """`told` if it is of this file as it stands there; else nothing."""
    own = (stored_name(os.path.basename(path)), size, digest)
    is_it = isinstance(told, dict) and (told.get("name"), told.get("bytes"), told.get("sha256")) == own
    return dict(told) if is_it else {}


def path_beside(output: str) -> str:
    """`x_merged.pt`, `x.pt` -> `x_merged_metadata.json`; where another output has that, `x_pt_merged_metadata.json`.

    Where a third one has that too, `x.pt_merged_metadata.json`. One that tells of this output goes before all.
    """
    stem, dot = os.path.splitext(output)
    stem = stem.removesuffix("merged").removesuffix("_") if os.path.basename(stem) != "merged" else stem
    made = f"{stem}_merged_metadata.json" if os.path.basename(stem) != "merged" else f"{stem}_metadata.json"
    choices = (made, f"{stem}_{dot[1:]}_merged_metadata.json", f"{output}_merged_metadata.json")
    told = [read_document(path).get("output") for path in choices]
    names = [one.get("name") if isinstance(one, dict) else None for one in told]
    for wanted in (stored_name(os.path.basename(output)), None):
        if wanted in names:
            return choices[names.index(wanted)]
    return choices[-1]


def check_replaces(
    path: str, document: Mapping[str, Any], parts: Sequence[Part], digest: str, wrong: Sequence[str], *, overwrite: bool
) -> dict[str, Any]:
    """What stands there and a merge has made, to be written down before it is replaced; empty if there is none.

    Refuses to replace a file that no merge has made, or a complete one by one that is not, for what is `wrong`.
    """
    if not os.path.lexists(path):
        return {}
    try:
        size, present = _identity(path)
    except OSError:
        if overwrite:
            return {}
        raise
    if present == digest:
        return {}
    found = _standing(path, document, parts, size, present)
    if overwrite:
        return found
    if not found:
        raise Refused("exists, and is not as a merge has made it", where=path, hint="--overwrite replaces it")
    if found.get("remove_parts"):
        raise Refused(
            "was made of parts that were removed then; it is kept", where=path, hint="--overwrite replaces it"
        )
    if found.get("complete") and wrong:
        raise Refused(
            "is complete, and what these parts would make is not; it is kept:\n  " + "\n  ".join(wrong),
            where=path,
            hint="--overwrite replaces it",
        )
    return found


def _standing(path: str, document: Mapping[str, Any], parts: Sequence[Part], size: int, digest: str) -> dict[str, Any]:
    """What metadata say of the file that stands there: of what was made, or else of what that was to replace.

    Metadata come first: a merge that was killed then has left those of an output that never got its name.
    """
    if made := _told_of(path, document.get("output"), size, digest):
        rows = document.get("parts")
        sums = {row.get("sha256") for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {None}
        gone = not sums <= {part.sha256 for part in parts}  # of those that it was made of, some may be removed
        return {
            **made,
            "complete": bool(document.get("complete")),
            "remove_parts": bool(document.get("remove_parts")) and gone,
        }
    return _told_of(path, document.get("replaces"), size, digest)


# ---- parts to be removed ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Removal:
    """How many parts were removed after a merge; why others are left, which does not undo it."""

    removed: int
    errors: Sequence[str] = ()
    exit_code: int = EXIT_OK


def remove_parts(output: str, document: Mapping[str, Any], parts: Sequence[Part]) -> Removal:
    """Remove these parts, if all of them and the output are as the document says."""
    sums = {row["name"]: row["sha256"] for row in document["parts"]}
    if not is_ours(output, document):
        return Removal(0, [f"{clean(output)}: is not what was written; no part is removed"], EXIT_INCOMPLETE)
    for part in parts:
        try:
            if hash_file(part.path)[1].hexdigest() == sums.get(stored_name(part.name)):
                continue
            why, code = "has changed since it was merged", EXIT_INCOMPLETE
        except OSError as error:
            why, code = f"is merged, and cannot be read again: {error.strerror}", EXIT_CANNOT_WORK
        return Removal(0, [f"{clean(part.name)}: {why}; no part is removed"], code)
    left: dict[str, list[str]] = {}
    for part in parts:
        try:
            os.unlink(part.path)
        except OSError as error:
            left.setdefault(str(error.strerror), []).append(clean(part.name))
    kept = [name for names in left.values() for name in names]
    return Removal(
        len(parts) - len(kept), [_left(output, *one) for one in left.items()], EXIT_CANNOT_WORK if kept else EXIT_OK
    )


def _left(output: str, why: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - LEFT_SHOWN:,} more" if len(names) > LEFT_SHOWN else ""
    shown = f"{', '.join(names[:LEFT_SHOWN])}{more}"
    return f"{clean(output)} is merged, and {number(len(names), 'part')} cannot be removed: {why}: {shown}"


def finish_removal(output: str, parts: Sequence[Part], *, asked: bool) -> tuple[str, Removal] | None:
    """What to say, where this output was made whole before and its parts were being removed; None to merge."""
    document = read_document(path_beside(output))
    if not (document.get("remove_parts") and document.get("complete") and isinstance(document.get("parts"), list)):
        return None
    names = {row.get("name") for row in document["parts"] if isinstance(row, dict)}
    gone = len(names) - len(parts)
    if parts and not asked:
        return None  # what they would make now is compared with what stands there
    if gone <= 0 or not {stored_name(part.name) for part in parts} <= names or not is_ours(output, document):
        return None
    said = f"{clean(output)} was merged before"
    if not parts:
        return f"{said}, and its parts are removed", Removal(0)
    done = remove_parts(output, document, parts)
    return f"{said}; {number(done.removed, 'part')} that was left is removed", done
