"""A copy of a git work tree as it is. Reads the tree, changes nothing in it.

A copy is made under a private name and then renamed, one at a time in a directory, so that what has its name is whole.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.host import locks
from gpusched.host.code import work_tree
from gpusched.host.code.work_tree import WorkTree

SIZE_LIMIT_BYTES = 2 << 30
_PARTIAL = ".partial-"
_LOCK_AGAIN_S = 0.05


def snapshot(
    root: str, target: str, *, leave_out: Sequence[str] = (), limit_bytes: int = SIZE_LIMIT_BYTES
) -> tuple[str, WorkTree]:
    """Copy the files that git tracks or does not ignore into a new directory in `target`.

    Return this directory, and the commit and dirty mark of the copy. Raises GpuschedError if the tree cannot be copied.
    """
    leave_out = (*leave_out, target)
    try:
        os.makedirs(target, 0o700, exist_ok=True)
        with _private_directory(target) as private:
            before = work_tree.describe(root, leave_out)
            _copy_files(root, private, leave_out, limit_bytes)
            after = work_tree.describe(root, leave_out)
            if before is None or after is None or before.commit != after.commit:
                hint = "try again when it is still"
                raise GpuschedError("the work tree changes while it is copied", where=root, hint=hint)
            names = (os.path.join(target, f"{after.commit[:12]}-{number}") for number in itertools.count(1))
            done = next(name for name in names if not os.path.lexists(name))
            os.rename(private, done)
            return done, replace(after, dirty=before.dirty or after.dirty)
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else target
        raise GpuschedError(f"the work tree cannot be copied: {error.strerror}", where=where) from None


@contextmanager
def _private_directory(target: str) -> Iterator[str]:
    """Make a directory in `target` while this process alone copies there; remove what is not renamed at the end."""
    while (lock := locks.take_file(os.path.join(target, "lock"), 0o600)) is None:
        time.sleep(_LOCK_AGAIN_S)
    try:
        _remove_partial(target)  # left by a process that was killed
        yield tempfile.mkdtemp(prefix=_PARTIAL, dir=target)
    finally:
        _remove_partial(target)
        os.close(lock)


def _remove_partial(target: str) -> None:
    for name in os.listdir(target):
        if name.startswith(_PARTIAL):
            shutil.rmtree(os.path.join(target, name), ignore_errors=True)


def _copy_files(root: str, to: str, leave_out: Iterable[str], limit_bytes: int) -> None:
    files = work_tree.list_files(root, leave_out)
    size = sum(status.st_size for status in files.values())
    if size > limit_bytes:
        problem = f"this work tree holds {size:,} bytes, more than are copied for a run ({limit_bytes:,})"
        hint = "let .gitignore name what is large, and let the jobs find it by an absolute path"
        raise GpuschedError(problem, where=root, hint=hint)
    for path in files:
        copy = os.path.join(to, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with suppress(FileNotFoundError):  # gone since it was listed
            shutil.copy2(os.path.join(root, path), copy, follow_symlinks=False)
