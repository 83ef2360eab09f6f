"""The git work tree of a directory: its commit, its changes, and its files. Changes no repository."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.job import DIRTY

TIME_LIMIT_S = 10.0  # of one git command
LIST_TIME_LIMIT_S = 120.0  # of one that lists every file
_NOT_OURS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
_CAREFUL = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
_PLAIN = ("core.fsmonitor=", "diff.renames=false", "status.renames=false")  # starts no helper, compares no contents


@dataclass(frozen=True, slots=True)
class WorkTree:
    """A checked out commit. `dirty`: a tracked file is changed, or there is an untracked one that is not ignored."""

    root: str
    commit: str
    dirty: bool

    @property
    def label(self) -> str:
        return self.commit + (DIRTY if self.dirty else "")


def describe(cwd: str, leave_out: Iterable[str] = (), limit_s: float = TIME_LIMIT_S) -> WorkTree | None:
    """Return the work tree that the directory is in; None if there is none, no git, or no answer in time.

    Files under `leave_out` make no tree dirty.
    """
    output = _git(cwd, limit_s, "rev-parse", "--show-toplevel", "HEAD")
    root, _, commit = os.fsdecode(output or b"").removesuffix("\n").rpartition("\n")
    if not root or not re.fullmatch("[0-9a-f]{40,64}", commit):
        return None
    words = ("status", "--porcelain=v2", "-z", "--untracked-files=normal", "--ignore-submodules=none", "--")
    changes = _git(root, limit_s, *words, *_without(root, leave_out))
    return None if changes is None else WorkTree(root, commit, bool(changes))


# ---- git -------------------------------------------------------------------------------------------


def _git(directory: str, limit_s: float, *words: str) -> bytes | None:
    """Return the output of a git command; None if it fails, is not installed, or takes too long."""
    import subprocess  # not loaded for directories outside git

    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    command = ["git", "-C", directory, *(word for setting in _PLAIN for word in ("-c", setting)), *words]
    try:
        done = subprocess.run(
            command,
            env=environment | _CAREFUL,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=limit_s,
            start_new_session=True,  # a Ctrl-C at the terminal is not for it
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _without(root: str, leave_out: Iterable[str]) -> Iterator[str]:
    """Yield the pathspecs that exclude these paths."""
    for path in leave_out:
        inside = os.path.relpath(os.path.realpath(path), root)
        if inside != "." and inside.split(os.sep)[0] != "..":
            yield f":(top,literal,exclude){inside}"


def list_files(root: str, leave_out: Iterable[str], prefix: str = "") -> dict[str, os.stat_result]:
    """Return the files and links under `prefix` that git tracks or does not ignore, by their paths from the root.

    Repositories in the tree are listed like directories. Files under `leave_out` are not. Raises GpuschedError if git
    cannot list them.
    """
    top = os.path.realpath(os.path.join(root, prefix))
    words = ("ls-files", "-co", "--exclude-standard", "-z", "--", *_without(top, leave_out))
    output = _git(top, LIST_TIME_LIMIT_S, *words)
    if output is None:
        raise GpuschedError("git cannot list the files of this work tree", where=top, hint="`git status` may say why")
    files: dict[str, os.stat_result] = {}
    linked: dict[str, bool] = {}  # directories: True if a link has taken their place since they were committed
    for name in filter(None, os.fsdecode(output).split("\0")):
        path = os.path.join(top, name.rstrip("/"))
        parent = os.path.dirname(path)
        if parent not in linked:
            linked[parent] = os.path.realpath(parent) != parent
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if linked[parent]:
            continue
        if stat.S_ISDIR(status.st_mode) and os.path.lexists(f"{path}/.git"):
            files |= list_files(root, leave_out, f"{prefix}{name.rstrip('/')}/")
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            files[prefix + name] = status
    return files
