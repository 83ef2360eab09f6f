"""Write files whole or not at all, keep changes of directories over a power cut, and read what others wrote."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

LARGEST_JSON_BYTES = 64 << 20


def user_dir(variable: str, below_home: str) -> str:
    """Return gpusched's directory below one of the XDG base directories; "" for a user without a home directory."""
    base = os.environ.get(variable, "").strip() or os.path.expanduser(f"~/{below_home}")
    return os.path.join(base, "gpusched") if os.path.isabs(base) else ""


def open_regular(path: str) -> int:
    """Open a file to read it, in a directory where others may have put anything in its place.

    No link is followed, no pipe is waited for. Raises OSError for all but a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def read_regular(path: str, limit_bytes: int) -> bytes:
    """Return at most the first `limit_bytes` of a file, opened by open_regular()."""
    with open(open_regular(path), "rb") as file:
        return file.read(limit_bytes)


def hash_file(path: str) -> str:
    """Return the SHA-256 of a file; nothing if it must not be read."""
    import hashlib

    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except PermissionError:
        return ""
    return digest.hexdigest()


def private_name(path: str) -> str:
    """Return a name beside `path` that nobody can guess, for a file that is not ready yet."""
    return f"{path}.tmp{os.urandom(8).hex()}"


@contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield a temporary name for a file that is written there, and that replaces the one at `path` at the end."""
    temporary = private_name(path)
    try:
        yield temporary
        os.rename(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sync_directory(path: str) -> None:
    """Make the renames and removals in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(
    path: str,
    data: bytes,
    *,
    sync: bool = False,
    mode: int = 0o600,
    temporary: str | None = None,
    for_all: bool = False,
) -> None:
    """Replace the file at `path` by a temporary name and a rename. With `sync` its data outlive a power cut.

    `for_all`: everybody may read it, whatever the umask says.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    flags |= os.O_TRUNC if temporary else os.O_EXCL
    temporary = temporary or private_name(path)
    fd = os.open(temporary, flags, mode)
    try:
        try:
            if for_all:
                os.fchmod(fd, 0o644)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_json_object(path: str) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none that can be read, or if it is larger than 64 MiB."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            fields = json.loads(file.read(LARGEST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
