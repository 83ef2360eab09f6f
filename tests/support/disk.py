"""File systems that are full. They need root."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(path: Path, mib: int) -> Iterator[Path]:
    """A file system of a few MiB at `path`."""
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(path)], capture_output=True)
    if made.returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:
        while True:
            file.write(b"x")
