"""Write files whole or not at all, make changes of directories survive a power cut, and read JSON objects."""

from __future__ import annotations

import json
import os
from typing import Any

LARGEST_JSON_BYTES = 64 << 20


def sync_directory(path: str) -> None:
    """Make the renames and removals in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(
    path: str, data: bytes, *, sync: bool = False, mode: int = 0o600, temporary: str | None = None
) -> None:
    """Replace the file at `path` by a temporary name and a rename. With `sync` its data outlive a power cut."""
    temporary = temporary or f"{path}.tmp{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    except BaseException:
        os.close(fd)
        os.unlink(temporary)
        raise
    os.close(fd)
    os.rename(temporary, path)


def read_json_object(path: str) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none that can be read, or if it is larger than 64 MiB."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            fields = json.loads(file.read(LARGEST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
