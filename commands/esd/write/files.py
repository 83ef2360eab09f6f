"""Write a file of results whole or not at all."""

from __future__ import annotations

from pathlib import Path

from gpusched.common.files import write_atomically


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in a directory that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(str(path), data, sync=True, mode=0o666)
