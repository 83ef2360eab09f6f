"""Recognise files that were replaced or changed in place: by size, time and header, or by all of their content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from gpusched.common.files import hash_file

_ENDS = 1 << 16  # bytes


def describe_file(path: str, *, contents: bool = False) -> dict[str, Any]:
    """Return path, size, time of change and hash of the header of a file; with `contents` the hash of all.

    Raises OSError.
    """
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        header = hashlib.sha256(_header(file.fileno(), status.st_size)).hexdigest()
        about = {
            "path": os.path.abspath(path),
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "header": header,
        }
    if contents:
        about["sha256"] = hash_file(path)
    return about


def first_changed(files: Iterable[Mapping[str, Any]], *, contents: bool = False) -> str:
    """Return the path of the first file that is not as it was described; "" if there is none.

    Files that are gone with their directory cannot have changed.
    With `contents`, only the hash of its content counts, and a description without one is as good as a change.
    """
    for before in files:
        path = str(before.get("path", ""))
        if not os.path.isdir(os.path.dirname(path)):
            continue
        try:
            now = describe_file(path, contents=contents)
        except OSError:
            return path
        keys = ("size", "sha256") if contents else ("size", "mtime_ns", "header")
        if any(before.get(key) != now[key] for key in keys):
            return path
    return ""


def _header(fd: int, size: int) -> bytes:
    """Return both ends of a file: the header of a safetensors file is in front, the directory of a zip at the end."""
    return os.pread(fd, _ENDS, 0) + os.pread(fd, _ENDS, max(0, size - _ENDS))
