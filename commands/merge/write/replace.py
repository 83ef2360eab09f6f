"""The files that stand where a merge writes: may they be replaced, and which parts may be removed afterwards."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, EXIT_USAGE

from ..parts.model import MergeTask
from ..parts.report import MergeRefused, count_of, first_of, shown
from .output import hash_file

TOOL = "gpusched merge"


def metadata_path(output: str) -> str:
    """Return the path of the metadata: `x_merged.pt` and `x.pt` have `x_merged_metadata.json`.

    Where another output of this stem has that name, `x_pt_merged_metadata.json`.
    """
    stem, dot = os.path.splitext(output)
    stem = stem.removesuffix("merged").removesuffix("_") if os.path.basename(stem) != "merged" else stem
    path = f"{stem}_merged_metadata.json" if os.path.basename(stem) != "merged" else f"{stem}_metadata.json"
    own = stored_name(os.path.basename(output))
    is_free = read_metadata(path).get("output", {}).get("name", own) == own
    return path if is_free else f"{stem}_{dot[1:]}_merged_metadata.json"


def stored_name(name: str) -> str:
    """Return a name as metadata have it, whatever the locale: as UTF-8, other bytes as halves of surrogate pairs."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")


def marker_line(output: str) -> str:
    """Return the first line of the file that says that an output is incomplete."""
    return f"{shown(stored_name(os.path.basename(output)))} is incomplete:"


def is_marker(path: str, output: str) -> bool:
    return _read(path).startswith(marker_line(output).encode())


def _read(path: str) -> bytes:
    """Return the content of a regular file that is no link; nothing where there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""


def read_metadata(path: str) -> dict[str, Any]:
    """Return the metadata that a merge left; an empty dict where there are none, or the file is not ours."""
    try:
        document: Any = json.loads(_read(path))
        is_ours = document["tool"]["name"] == TOOL and isinstance(document["output"], dict)
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}
    return document if is_ours else {}


def check_output(task: MergeTask) -> None:
    """Refuse an output that cannot be written, and files of others beside it."""
    output, metadata, marker = task.output, metadata_path(task.output), f"{task.output}.incomplete"
    for path in (output, metadata, marker):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MergeRefused(f"cannot be written: {error.strerror}", where=path, exit_code=EXIT_USAGE) from None
        if path == output and not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a link" if stat.S_ISLNK(mode) else "no regular file"
            hint = "-o names the file that is to be made"
            raise MergeRefused(f"is {kind}", where=path, hint=hint, exit_code=EXIT_USAGE)
        if path == metadata and not (read_metadata(path) or task.options.overwrite):
            raise MergeRefused("exists, and is no merge's metadata", where=path, hint="--overwrite replaces it")
        if path == marker and not is_marker(path, output):
            raise MergeRefused("exists, and no merge has made it", where=path, hint="a merge writes there: move it")


def check_replacement(task: MergeTask, digest: str, problems: Sequence[str]) -> dict[str, Any] | None:
    """Return the SHA-256 of the output that stands there and if it is complete; None if a merge has made none.

    Metadata are written before the output gets its name. Those of a merge that was killed in between describe a file
    that never got it; the one that stands there is then the one that it was to replace. Refused: a file that no merge
    has made, and a complete output for one that has `problems`.
    """
    if not os.path.lexists(task.output):
        return None
    metadata, standing = read_metadata(metadata_path(task.output)), hash_file(task.output)
    own = {"sha256": metadata.get("output", {}).get("sha256"), "complete": metadata.get("complete")}
    made = next((one for one in (own, metadata.get("replaces")) if one and one["sha256"] == standing), None)
    if standing == digest or task.options.overwrite:
        return made
    gone = {row["sha256"] for row in metadata.get("parts", ())} - {part.sha256 for part in task.parts}
    why = ""
    if made is None:
        why = "exists, and is not as a merge has made it"
    elif metadata.get("remove_parts") and gone:
        why = "was made of parts that were removed then; it is kept"
    elif made["complete"] and problems:
        why = "\n  ".join(["is complete, and what these parts would make is not; it is kept:", *problems])
    if why:
        raise MergeRefused(why, where=task.output, hint="--overwrite replaces it")
    return made


def remove_parts(task: MergeTask, digest: str) -> tuple[int, list[str], int]:
    """Remove the parts, if all of them and the output are as they were when they were hashed.

    Return how many are gone, why others are left, and the exit code.
    """
    for path, name, known in [(task.output, task.output, digest), *((p.path, p.name, p.sha256) for p in task.parts)]:
        try:
            if hash_file(path) == known:
                continue
            why, code = "has changed since it was merged", EXIT_SOME_FAILED
        except OSError as error:
            why, code = f"is merged, and cannot be read again: {error.strerror}", EXIT_CANNOT_WORK
        return 0, [f"{shown(name)}: {why}; no part is removed"], code
    left = []
    for part in task.parts:
        try:
            os.unlink(part.path)
        except OSError as error:
            left.append(f"{shown(part.name)} ({error.strerror})")
    why = f"{shown(task.output)} is merged, and {count_of(len(left), 'part')} cannot be removed: "
    errors = [why + ", ".join(first_of(left))] if left else []
    return len(task.parts) - len(left), errors, EXIT_CANNOT_WORK if left else EXIT_OK
