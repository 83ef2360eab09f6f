"""Which processes use a repository of the hub's cache, so that what one fetched is not deleted under another.

Deletes only files that its own process fetched, and only while no other process uses the repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_DIRECTORY = Path(".locks", "gpusched")  # in the cache, where its library keeps its own


class Use:
    """One process's use of one repository, from here to `close`.

    Each user locks the byte of its own process id in a file beside the repository. Who can lock the whole file is
    alone; whoever comes then waits, and finds that it has to fetch. A lock dies with its process. A cache that cannot
    be written has no such file, and nothing in it is fetched or deleted.
    """

    def __init__(self, cache: Path, folder: Path) -> None:
        self._folder = folder
        self._created: list[Path] = []
        self._fd = -1
        place = cache / _DIRECTORY
        try:
            place.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(place / f"{folder.name}.use", flags, 0o666)
            os.lseek(self._fd, os.getpid(), os.SEEK_SET)
            os.lockf(self._fd, os.F_LOCK, 1)
        except OSError:
            self.close()

    def creates(self, path: Path) -> None:
        """This file of the cache is not there yet and is about to be fetched."""
        self._created.append(path)

    def drop(self) -> None:
        """Delete what was fetched, unless somebody else uses the repository."""
        if self._fd < 0 or not self._created:
            return
        try:
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.lockf(self._fd, os.F_TLOCK, 0)
        except OSError:
            return
        blobs = {path: Path(os.path.realpath(path)) for path in self._created if path.is_file()}
        held = _held_by_others(set(blobs.values()))
        for path, blob in blobs.items():
            if blob in held or not blob.is_relative_to(self._folder.resolve()):
                continue
            path.unlink(missing_ok=True)
            if not any(Path(os.path.realpath(other)) == blob for other in self._folder.glob("snapshots/*/*")):
                blob.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _held_by_others(paths: set[Path]) -> set[Path]:
    """Those of these files that another process, as far as we may look, has open or mapped."""
    wanted = {str(path) for path in paths}
    held: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            names = set(_open_files(process))
        except OSError:  # not ours, or gone
            continue
        held |= {Path(name) for name in names & wanted}
    return held


def _open_files(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        try:
            yield os.readlink(link)
        except OSError:
            continue
    for line in (process / "maps").read_text("utf-8", "surrogateescape").splitlines():
        yield from line.split(maxsplit=5)[5:]
