"""The files that stand where a merge writes: may they be replaced?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpusched.common.errors import EXIT_USAGE
from gpusched.common.files import hash_file

from ..parts.model import MergeRefused, MergeTask, shown

TOOL = "gpusched merge"


def metadata_path(output: str) -> str:
    """Return `x_merged_metadata.json` for `x_merged.pt` and `x.pt`; `x_pt_…` where another output has that name."""
    stem, dot = os.path.splitext(output)
    is_named = os.path.basename(stem) != "merged"
    stem = stem.removesuffix("merged").removesuffix("_") if is_named else stem
    path = f"{stem}_merged_metadata.json" if is_named else f"{stem}_metadata.json"
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
    return os.path.isfile(path) and Path(path).read_bytes().startswith(marker_line(output).encode())


def read_metadata(path: str) -> dict[str, Any]:
    """Return the metadata that a merge left; an empty dict where there are none, or the file is not ours."""
    try:
        document: Any = json.loads(Path(path).read_bytes()) if os.path.isfile(path) else {}
        is_ours = document["tool"]["name"] == TOOL and isinstance(document["output"], dict)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return document if is_ours else {}


def check_output(task: MergeTask) -> None:
    """Refuse an output that cannot be written, and files of others beside it."""
    output, metadata, marker = task.output, metadata_path(task.output), f"{task.output}.incomplete"
    for path in (output, metadata, marker):
        with suppress(FileNotFoundError):
            os.lstat(path)  # OSError for a name that is too long
    if os.path.lexists(output) and (os.path.islink(output) or not os.path.isfile(output)):
        raise MergeRefused("is no regular file", where=output, hint="-o names a file", exit_code=EXIT_USAGE)
    if os.path.lexists(metadata) and not (read_metadata(metadata) or task.options.overwrite):
        raise MergeRefused("exists, and is no merge's metadata", where=metadata, hint="--overwrite replaces it")
    if os.path.lexists(marker) and not is_marker(marker, output):
        raise MergeRefused("exists, and no merge has made it", where=marker, hint="a merge writes there: move it")


def check_replacement(task: MergeTask, digest: str, problems: Sequence[str]) -> None:
    """Refuse to replace a file that no merge has made, and a complete output by one that has `problems`."""
    standing = hash_file(task.output) if os.path.exists(task.output) else digest
    if standing == digest or task.options.overwrite:
        return
    metadata = read_metadata(metadata_path(task.output))
    why = ""
    if metadata.get("output", {}).get("sha256") != standing:
        why = "exists, and is not as a merge has made it"
    elif metadata.get("remove_parts"):
        why = "was made of parts that were removed then; it is kept"
    elif metadata.get("complete") and problems:
        why = "\n  ".join(["is complete, and what these parts would make is not; it is kept:", *problems])
    if why:
        raise MergeRefused(why, where=task.output, hint="--overwrite replaces it")
