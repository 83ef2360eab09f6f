"""The git work tree of a directory: its commit, its changes, and its files. Changes no repository."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpusched.common.errors import GpuschedError
from gpusched.core.model import DIRTY

TIME_LIMIT_S = 10.0  # of one git command
LIST_TIME_LIMIT_S = 120.0  # of one that lists every file
GITLINK = "160000"  # a submodule's mode in the index
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


@dataclass(slots=True)
class TreeListing:
    """The files of a work tree and of the repositories in it, by their paths from the root."""

    commits: list[str] = field(default_factory=list)  # of each repository, with its path; that of the root first
    paths: list[str] = field(default_factory=list)
    tracked_changes: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)  # untracked, or not watched by git: no commit has them


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
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    try:
        process = subprocess.Popen(
            ["git", "-C", directory, *(word for setting in _PLAIN for word in ("-c", setting)), *words],
            env=environment | _CAREFUL,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that all that it starts can be ended
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.returncode is None:
            _end(process)
    return output if process.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    try:
        process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # stuck in the kernel: nobody can wait for it


def _without(root: str, leave_out: Iterable[str]) -> Iterator[str]:
    """Yield the pathspecs that exclude these paths."""
    for path in leave_out:
        inside = os.path.relpath(os.path.realpath(path), root)
        if inside != "." and inside.split(os.sep)[0] != "..":
            yield f":(top,literal,exclude){inside}"


def list_files(
    root: str, leave_out: Sequence[str], prefix: str = "", listing: TreeListing | None = None
) -> TreeListing:
    """List the files under `prefix`, without those under `leave_out` and ignored ones.

    Raises GpuschedError if git cannot list them.
    """
    listing = listing or TreeListing()
    files = os.path.join(root, prefix)
    without = ("--", *_without(os.path.realpath(files), leave_out))
    words = ("status", "--porcelain=v2", "-z", "--branch", "--untracked-files=all", "--ignore-submodules=all")
    status = _git(files, LIST_TIME_LIMIT_S, *words, *without)
    index = _git(files, LIST_TIME_LIMIT_S, "ls-files", "-s", "-v", "-z", *without)
    if status is None or index is None:
        raise GpuschedError("git cannot list the files of this work tree", where=files, hint="`git status` may say why")
    nested = set()
    for record in _records(status):
        kind, _, rest = record.partition(" ")
        if kind == "#" and rest.startswith("branch.oid "):
            listing.commits.append(prefix + rest.removeprefix("branch.oid "))
        elif kind == "?":
            if rest.endswith("/"):  # git lists no directory, unless it is a repository of its own
                nested.add(rest)
            else:
                listing.others.add(prefix + rest)
        elif kind in ("1", "u"):
            listing.tracked_changes.add(prefix + rest.split(" ", 7 if kind == "1" else 9)[-1])
    for record in _records(index):
        marks, _, path = record.partition("\t")
        tag, mode, *_ = marks.split(" ")
        if mode == GITLINK:
            nested.add(f"{path}/")
            continue
        listing.paths.append(prefix + path)
        if tag != "H":  # such as skip-worktree or assume-unchanged
            listing.others.add(prefix + path)
    listing.paths = [*dict.fromkeys((*listing.paths, *sorted(listing.others)))]
    for path in sorted(nested):
        if os.path.lexists(os.path.join(files, path, ".git")):  # else a submodule that is not checked out
            list_files(root, leave_out, prefix + path, listing)
    return listing


def _records(data: bytes) -> list[str]:
    return [os.fsdecode(record) for record in data.split(b"\0") if record]
