"""A copy of a git work tree as it is. Reads the tree, changes nothing in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.host.code import work_tree
from gpusched.host.code.work_tree import WorkTree

SIZE_LIMIT_BYTES = 2 << 30


def snapshot(
    root: str, target: str, *, leave_out: Sequence[str] = (), limit_bytes: int = SIZE_LIMIT_BYTES
) -> tuple[str, WorkTree]:
    """Copy the files that git tracks or does not ignore into a new directory in `target`.

    Return this directory, and the commit and dirty mark of the copy. Raises GpuschedError if the tree cannot be copied.
    """
    leave_out = (*leave_out, target)
    before = work_tree.describe(root, leave_out)
    try:
        os.makedirs(target, 0o700, exist_ok=True)
        copy = tempfile.mkdtemp(prefix=f"{before.commit[:12]}-" if before else "", dir=target)
        try:
            _copy_files(root, copy, leave_out, limit_bytes)
            after = work_tree.describe(root, leave_out)
            if before is None or after is None or before.commit != after.commit:
                hint = "try again when it is still"
                raise GpuschedError("the work tree changes while it is copied", where=root, hint=hint)
        except BaseException:
            shutil.rmtree(copy, ignore_errors=True)
            raise
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else target
        raise GpuschedError(f"the work tree cannot be copied: {error.strerror}", where=where) from None
    return copy, replace(after, dirty=before.dirty or after.dirty)


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
