"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusched.common.files import write_atomically


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    write_atomically(str(path), b"first", sync=True)
    assert path.read_bytes() == b"first" and path.stat().st_mode & 0o777 == 0o600
    write = os.write

    def fill_the_disk(fd: int, data: memoryview) -> int:
        if len(data) < 6:
            raise OSError(28, "No space left on device")
        return write(fd, data[:3])

    monkeypatch.setattr(os, "write", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(str(path), b"second")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["table.csv"]
