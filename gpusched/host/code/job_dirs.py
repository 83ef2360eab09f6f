"""The directories of jobs: the commit that each is at, and its counterpart in a copy of the work tree. Runs no job.

Thousands of jobs may have directories of their own in a few work trees: git is run once for a tree, not for each job.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError, stored_value
from gpusched.common.processes import has_program

if TYPE_CHECKING:
    from gpusched.host.code.work_tree import WorkTree

FRESH_S = 10.0  # the answer of git about a tree is used so long


class JobDirs:
    """The directories in which jobs run, each determined when it is first needed."""

    def __init__(self, home: str, leave_out: Sequence[str] = (), copies: str = "") -> None:
        """With `copies`, jobs in the work tree of `home`, the submitter's directory, run in a copy below `copies`.

        Files under `leave_out` are not copied and make no tree dirty. Raises GpuschedError where there is nothing to
        copy.
        """
        self._leave_out = leave_out
        self._copies = copies
        self._without_links = functools.cache(os.path.realpath)  # of a directory that need not exist
        self._root = functools.cache(self._find_root)
        self._describe = functools.cache(self._describe_tree)
        self._forget_at = time.monotonic() + FRESH_S
        self._tree: WorkTree | None = None  # the one that is copied
        self._copy = ""
        if copies:
            self._tree = self._describe(self._root(self._without_links(home)))
            if self._tree is None:
                problem = "--snapshot copies a git work tree with a commit, and here is none"
                if not has_program("git"):
                    problem = "--snapshot needs git, and git is not installed"
                hint = "`git status` may say why; without --snapshot the jobs run where the files are"
                raise GpuschedError(problem, hint=hint)

    def prepare(self) -> None:
        """Copy the work tree, if that is wanted and not done yet, and forget old answers of git. This may take long."""
        if time.monotonic() >= self._forget_at:
            self._describe.cache_clear()
            self._forget_at = time.monotonic() + FRESH_S
        if self._tree is not None and not self._copy:
            from gpusched.host.code.tree_copy import snapshot

            self._copy, self._tree = snapshot(self._tree.root, self._copies, leave_out=self._leave_out)

    def resolve(self, cwd: bytes) -> tuple[bytes, str]:
        """Return the directory in which a job of `cwd` runs, and its commit as in Requirements.git; "" outside git."""
        directory = self._without_links(os.path.normpath(os.fsdecode(cwd)))
        if self._tree is not None and self._copy:
            root = self._tree.root
            if directory == root or directory.startswith(root.rstrip("/") + "/"):
                return os.fsencode(self._in_copy(directory, os.path.relpath(directory, root))), self._tree.label
        tree = self._describe(self._root(directory))
        return cwd, tree.label if tree else ""

    def _in_copy(self, directory: str, inside: str) -> str:
        """Return the directory in the copy; it is made, empty, where git has no files in it."""
        path = os.path.normpath(os.path.join(self._copy, inside))
        if os.path.isdir(directory):
            os.makedirs(path, exist_ok=True)
        return path

    def _find_root(self, directory: str) -> str:
        """Return the nearest directory, this one or one above, that holds a .git; "" if there is none."""
        if os.path.lexists(os.path.join(directory, ".git")):
            return directory
        above = os.path.dirname(directory)
        return "" if above == directory else self._root(above)

    def _describe_tree(self, root: str) -> WorkTree | None:
        if not root:
            return None
        from gpusched.host.code import work_tree  # no submission outside git needs it

        return work_tree.describe(root, self._leave_out)

    # ---- for the dispatcher that works on the same queue ----

    def to_json(self) -> str:
        tree = self._tree
        copied = [tree.root, tree.commit, tree.dirty, self._copy] if tree and self._copy else None
        return json.dumps({"leave_out": list(self._leave_out), "copied": copied})

    @classmethod
    @stored_value()
    def from_json(cls, text: str) -> JobDirs:
        """Return the same directories as those that `text` was made from; nothing is copied again."""
        document = json.loads(text)
        dirs = cls("/", document["leave_out"])
        if document["copied"]:
            from gpusched.host.code.work_tree import WorkTree

            root, commit, dirty, dirs._copy = document["copied"]
            dirs._tree = WorkTree(root, commit, dirty)
        return dirs
