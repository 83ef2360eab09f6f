"""Claims on real files: their labels, bad files in their place, lock files that vanish, several directories."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.host import locks
from gpusched.host.gpus import claims as claim_files
from gpusched.host.gpus.claims import Claims
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory

UUID = "GPU-0aa1c0de"
ME = pwd.getpwuid(os.getuid()).pw_name
OWNER = f"{ME}, or root," if os.getuid() else "root"
BAD_LABELS = {
    "deep": "[" * 4096,
    "large since": '{"pid": 1, "queue": "q", "since": ' + "9" * 400 + "}",
    "long number": '{"pid": ' + "9" * 4000 + ', "queue": "q", "since": "x"}',
    "no object": "7",
    "no text": "\udcff\udcfe",
    "cut": json.dumps({"pid": 1, "queue": "q" * 5000, "since": 1.0}),
}


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_directory() as path:
        yield path


# ---- labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", BAD_LABELS.values(), ids=BAD_LABELS)
def test_a_label_that_cannot_be_read_still_names_the_user(tmp_path: Path, text: str) -> None:
    claims = Claims(str(tmp_path))
    claim = claims.try_acquire(UUID, "queue", time.time())
    assert claim is not None
    (tmp_path / f"{UUID}.lock.by-{os.getuid()}").write_text(text, "utf-8", "surrogateescape")
    holder = claims.holder(UUID)
    assert holder is not None and (holder.user, holder.queue, holder.since) == (ME, "", None)


def test_a_label_that_is_never_since_is_no_time(tmp_path: Path) -> None:
    claims = Claims(str(tmp_path))
    assert claims.try_acquire(UUID, "queue", float("inf")) is not None
    holder = claims.holder(UUID)
    assert holder is not None and (holder.queue, holder.since) == ("queue", None)


def test_pipes_and_crowds_of_labels_stop_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(str(tmp_path))
    assert claims.try_acquire(UUID, "queue", 1.0) is not None
    os.mkfifo(tmp_path / f"{UUID}.lock.by-1")
    os.symlink("/dev/zero", tmp_path / f"{UUID}.lock.by-2")
    holder = claims.holder(UUID)
    assert holder is not None and holder.queue == "queue"
    monkeypatch.setattr(claim_files, "LABELS_LIMIT", 0)
    assert claims.holder(UUID) is not None


@NEEDS_TWO_USERS
def test_nobody_can_write_the_label_of_another_user(shared: Path) -> None:
    code = """
held = lock(sys.argv[1] + ".lock")
for uid in ("0", sys.argv[2]):
    with open(sys.argv[1] + ".lock.by-" + uid, "w") as file:
        json.dump({"pid": os.getpid(), "queue": "by " + uid, "since": 5.0}, file)
"""
    with other_user(code, shared / UUID, OTHER_UID) as pid:
        holder = Claims(str(shared)).holder(UUID)
        assert holder is not None
        assert (holder.user, holder.pid, holder.queue) == (str(OTHER_UID), pid, f"by {OTHER_UID}")


# ---- what others put in the place of a lock file ----------------------------------------------------


@contextlib.contextmanager
def files_of_another_user() -> Iterator[None]:
    """Open files with the rights of another user in this block."""
    os.seteuid(OTHER_UID)
    try:
        yield
    finally:
        os.seteuid(0)


def plant(path: Path, kind: str) -> None:
    if kind == "a directory":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link":
        path.symlink_to("precious")
    else:
        path.touch(0o600)


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a link"])
def test_a_bad_lock_file_is_a_reason_that_names_its_owner(tmp_path: Path, kind: str) -> None:
    claims = Claims(str(tmp_path))
    path = tmp_path / f"{UUID}.lock"
    plant(path, kind)
    what = f"its lock file {path} is {kind}: ask {OWNER} to remove it"
    with pytest.raises(GpuschedError) as caught:
        claims.try_acquire(UUID, "queue", 1.0)
    assert (caught.value.what, claims.obstacle(UUID)) == (what, what)
    assert claims.holder(UUID) is None
    assert claims.try_acquire("GPU-other", "queue", 1.0) is not None and claims.obstacle("GPU-other") == ""
    path.rmdir() if kind == "a directory" else path.unlink()
    assert claims.obstacle(UUID) == "" and claims.try_acquire(UUID, "queue", 1.0) is not None
    assert not (tmp_path / "precious").exists()


@NEEDS_TWO_USERS
def test_a_lock_file_that_this_user_may_not_read_is_a_reason(shared: Path) -> None:
    plant(shared / f"{UUID}.lock", "a private file")
    with files_of_another_user():
        claims = Claims(str(shared))
        with pytest.raises(GpuschedError, match=r"is not readable: ask root to remove it"):
            claims.try_acquire(UUID, "queue", 1.0)
        assert "is not readable" in claims.obstacle(UUID)
        assert claims.try_acquire("GPU-other", "queue", 1.0) is not None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a file system")
def test_a_disk_without_room_for_a_lock_file_is_a_reason(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (tmp_path / "last").touch()
        with pytest.raises(GpuschedError, match="cannot be made: No space left on device"):
            Claims(str(tmp_path)).try_acquire(UUID, "queue", 1.0)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_process_without_descriptors_does_not_blame_the_lock_file(tmp_path: Path) -> None:
    claims = Claims(str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            claims.try_acquire(UUID, "queue", 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_lock_file_that_is_removed_again_and_again_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "is_named", lambda fd, path: False)
    with pytest.raises(GpuschedError):
        Claims(str(tmp_path)).try_acquire(UUID, "queue", 1.0)
