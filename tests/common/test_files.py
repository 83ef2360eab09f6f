"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpusched.common.files import read_regular, replacing, write_atomically


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


def test_a_file_that_a_library_writes_replaces_the_old_one_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(str(path)) as temporary:
        Path(temporary).write_text("half")
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert [each.name for each in tmp_path.iterdir()] == ["results"]
    with replacing(str(path)) as temporary:
        Path(temporary).write_text("new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


def test_a_file_of_others_is_opened_only_if_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(str(tmp_path / "file"), 3) == b"123"
    before = os.listdir("/proc/self/fd")
    for name in ("pipe", "link", "nothing", "."):
        with pytest.raises(OSError):
            read_regular(str(tmp_path / name), 3)
    assert os.listdir("/proc/self/fd") == before


def test_a_name_that_is_taken_is_never_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever somebody plants: the name of the new file cannot be guessed, and it is made, never opened."""
    monkeypatch.setattr(os, "urandom", bytes)
    os.mkfifo(tmp_path / f"label.tmp{'0' * 16}")
    with pytest.raises(FileExistsError):
        write_atomically(str(tmp_path / "label"), b"x")
    os.mkfifo(tmp_path / "chosen")
    with pytest.raises(OSError):
        write_atomically(str(tmp_path / "label"), b"x", temporary=str(tmp_path / "chosen"))
    monkeypatch.undo()
    (tmp_path / "label").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(str(tmp_path / "label"), b"x")
    assert sorted(os.listdir(tmp_path)) == ["chosen", "label", f"label.tmp{'0' * 16}"]
