"""A copy of a git work tree as it is. Reads the tree, changes nothing in it.

A copy is made under a private name and then renamed, one at a time in a directory, so that what has its name is whole.
It is named by the commit and by the content of all that differs from it; what has a name already is not copied again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gpusched.common.errors import GpuschedError
from gpusched.host import locks
from gpusched.host.code.work_tree import TreeListing, WorkTree, list_files

SIZE_LIMIT_BYTES = 2 << 30
TRIES = 3  # while commits and tracked files change under it
_PARTIAL = ".partial-"
_LOCK_AGAIN_S = 0.05


def snapshot(tree: WorkTree, target: str, *, leave_out: Sequence[str] = (), limit_bytes: int = SIZE_LIMIT_BYTES) -> str:
    """Copy the tracked and untracked files of the tree, without ignored ones, into `target`; return their directory.

    Raises GpuschedError if the tree cannot be copied.
    """
    leave_out = (*leave_out, target)
    try:
        os.makedirs(target, 0o700, exist_ok=True)
        with _locked(target):
            for _ in range(TRIES):
                listing = list_files(tree.root, leave_out)
                _refuse_large(tree.root, listing, limit_bytes)
                done = os.path.join(target, _name(tree.root, listing))
                if os.path.isdir(done) or (done := _copy(tree.root, listing, target, leave_out)):
                    if listing.commits[0] == tree.commit:
                        return done
                    break
    except OSError as error:
        where = os.fsdecode(error.filename) if error.filename else target
        raise GpuschedError(f"the work tree cannot be copied: {error.strerror}", where=where) from None
    raise GpuschedError("the work tree changes while it is copied", where=tree.root, hint="try again when it is still")


# ---- copying ---------------------------------------------------------------------------------------


@contextmanager
def _locked(target: str) -> Iterator[None]:
    """Hold the lock of `target`, so that only this process copies into it; remove half copies that others left."""
    while (lock := locks.take_file(os.path.join(target, "lock"), 0o600)) is None:
        time.sleep(_LOCK_AGAIN_S)
    try:
        for name in os.listdir(target):
            if name.startswith(_PARTIAL):
                shutil.rmtree(os.path.join(target, name), ignore_errors=True)
        yield
    finally:
        os.close(lock)


def _copy(root: str, listing: TreeListing, target: str, leave_out: Sequence[str]) -> str:
    """Return the directory of the whole copy; "" if commits or tracked files changed meanwhile."""
    private = tempfile.mkdtemp(prefix=_PARTIAL, dir=target)
    try:
        _copy_files(root, listing, private)
        after = list_files(root, leave_out)
        if (after.commits, after.tracked_changes) != (listing.commits, listing.tracked_changes):
            return ""
        done = os.path.join(
            target, _name(private, listing)
        )  # named by the copied content: untracked files may have changed
        if not os.path.isdir(done):
            os.rename(private, done)
        return done
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _copy_files(root: str, listing: TreeListing, to: str) -> None:
    modes: dict[str, int] = {}
    for path, status in _present(root, listing.paths):
        source, copy = os.path.join(root, path), os.path.join(to, path)
        with suppress(FileNotFoundError):  # gone since it was listed
            for parent in _parents(path):
                if parent not in modes:
                    mode = os.stat(os.path.join(root, parent)).st_mode & 0o777
                    os.mkdir(os.path.join(to, parent), 0o700)
                    modes[parent] = mode | 0o700
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(source), copy)
            elif stat.S_ISREG(status.st_mode):
                _copy_file(source, copy)
    for parent, mode in modes.items():
        os.chmod(os.path.join(to, parent), mode)


def _copy_file(source: str, copy: str) -> None:
    """Copy a file with its mode and times; the file system may share its blocks until one of both is written."""
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writer = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # not on this file system; any other error shows below
                while os.copy_file_range(reader, writer, 1 << 30):
                    pass
            while data := os.read(reader, 1 << 20):
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
            status = os.fstat(reader)
            os.fchmod(writer, status.st_mode & 0o777)
            os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _present(root: str, paths: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the paths that exist, unless a directory in them has been replaced by a link; each with its status."""
    real = {"": True}
    for path in paths:
        for parent in _parents(path):
            if parent not in real:
                real[parent] = _is_directory(os.path.join(root, parent)) and real[os.path.dirname(parent)]
        if real[os.path.dirname(path)]:
            with suppress(FileNotFoundError):
                yield path, os.lstat(os.path.join(root, path))


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _parents(path: str) -> Iterator[str]:
    """Yield the directories of a path, the outermost first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def _name(root: str, listing: TreeListing) -> str:
    """Return the name of a copy of the files under `root`."""
    total = hashlib.blake2b(digest_size=8)
    changed = sorted(listing.tracked_changes | listing.others)
    present: Mapping[str, os.stat_result] = dict(_present(root, changed))
    for text in (*listing.commits, *changed):
        total.update(os.fsencode(text) + b"\0")
        if text in present:
            total.update(_content(os.path.join(root, text), present[text].st_mode))
    return f"{listing.commits[0][:12]}-{total.hexdigest()}"


def _content(path: str, mode: int) -> bytes:
    """Return a hash of a file: of its kind, of its executable bit, and of its content."""
    digest = hashlib.blake2b(b"link" if stat.S_ISLNK(mode) else b"run" if mode & 0o100 else b"file", digest_size=16)
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(mode):
            digest.update(os.fsencode(os.readlink(path)))
        elif stat.S_ISREG(mode):
            with open(path, "rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
    return digest.digest()


# ---- too large -------------------------------------------------------------------------------------


def _refuse_large(root: str, listing: TreeListing, limit_bytes: int) -> None:
    sizes = {path: status.st_size for path, status in _present(root, listing.paths) if stat.S_ISREG(status.st_mode)}
    total = sum(sizes.values())
    if total > limit_bytes:
        raise GpuschedError(
            f"this work tree holds {_human(total)}, more than is copied for a run ({_human(limit_bytes)}): "
            + ", ".join(f"{name} {_human(size)}" for name, size in _largest(sizes)),
            where=root,
            hint="let .gitignore name what is large, and let the jobs find it by an absolute path",
        )


def _largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the three largest entries of the deepest directory that holds more than half of all bytes."""
    top, total = "", sum(sizes.values())
    while True:
        entries: Counter[str] = Counter()
        for path, size in sizes.items():
            if path.startswith(top):
                first, slash, _ = path[len(top) :].partition("/")
                entries[top + first + slash] += size
        (name, size), *_ = largest = entries.most_common(3)
        if size * 2 <= total or not name.endswith("/"):
            return largest
        top = name


def _human(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
