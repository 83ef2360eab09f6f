"""Claims on real files: their labels, bad files in their place, lock files that vanish, several directories."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.host import locks
from gpusched.host.gpus import claims as claim_files
from gpusched.host.gpus.claims import Claims, HeldClaim
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory
from tests.support.paths import ROOT

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


# ---- lock files that vanish --------------------------------------------------------------------------


def acquire(claims: Claims, uuid: str = UUID) -> HeldClaim:
    claim = claims.try_acquire(uuid, "queue", 1.0)
    assert claim is not None
    return claim


def test_a_lock_file_that_was_removed_is_made_and_locked_again(tmp_path: Path) -> None:
    claims, path = Claims(str(tmp_path)), tmp_path / f"{UUID}.lock"
    claim = acquire(claims)
    assert claim.verify() == "" and len(claim.fds) == 1
    path.unlink()
    assert claim.verify() == "" and len(claim.fds) == 2
    assert claims.try_acquire(UUID, "other", 1.0) is None
    path.unlink()
    path.touch()
    assert claim.verify() == "" and len(claim.fds) == 3
    claim.close()
    acquire(claims).close()


def test_a_holder_that_lost_its_place_starts_nothing_until_it_is_free_again(tmp_path: Path) -> None:
    claims, path = Claims(str(tmp_path)), tmp_path / f"{UUID}.lock"
    claim = acquire(claims)
    path.unlink()
    thief = acquire(claims)
    assert claim.verify() == f"its lock file {path} was removed, and somebody else has locked the new one"
    thief.close()
    assert claim.verify() == "" and claims.try_acquire(UUID, "other", 1.0) is None
    path.unlink()
    path.mkdir()
    assert "is a directory" in claim.verify()


def test_a_holder_does_not_make_lock_files_for_ever(tmp_path: Path) -> None:
    claim = acquire(Claims(str(tmp_path)))
    for _ in range(20):
        (tmp_path / f"{UUID}.lock").unlink(missing_ok=True)
        said = claim.verify()
    assert said.endswith("is removed again and again") and len(claim.fds) == claim_files.RENEWALS_LIMIT + 1


# ---- several directories -----------------------------------------------------------------------------


@pytest.fixture
def parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three directories in the place of /run/lock, /dev/shm and /tmp."""
    made = [tmp_path / name for name in ("lock", "shm", "tmp")]
    for path in made:
        path.mkdir()
        path.chmod(0o1777)
    monkeypatch.setattr(claim_files, "_DEFAULTS", tuple(f"{path}/gpusched-claims" for path in made))
    return made


def test_the_first_directory_that_is_open_to_all_is_used(parents: list[Path]) -> None:
    claims = Claims()
    assert claims.directory() == f"{parents[0]}/gpusched-claims"
    assert os.stat(claims.directory()).st_mode & 0o7777 == 0o1777
    parents[0].chmod(0o755)
    if os.getuid() == 0:  # root's own directory is as good where nobody else may make one: tmpfiles.d does so
        assert claims.directory() == f"{parents[0]}/gpusched-claims"
        os.chown(claims.directory(), OTHER_UID, OTHER_UID)
    assert claims.directory() == f"{parents[1]}/gpusched-claims"
    for path in parents:
        path.chmod(0o755)
    Path(f"{parents[1]}/gpusched-claims").rmdir()
    with pytest.raises(GpuschedError, match="no directory for claims that all users share"):
        claims.directory()


@NEEDS_TWO_USERS
def test_a_directory_that_its_owner_closes_is_passed_over(parents: list[Path]) -> None:
    """Those who hold a claim there take one where the others look now; until then their old lock is still seen."""
    claims = Claims()
    held = acquire(claims)
    os.chown(claims.directory(), OTHER_UID, OTHER_UID)
    parents[0].chmod(0o755)
    assert claims.try_acquire(UUID, "other", 1.0) is None and held.verify() == ""
    other = acquire(claims, "GPU-other")
    assert other.path.startswith(f"{parents[1]}/")
    os.unlink(held.path)
    os.chmod(os.path.dirname(held.path), 0o700)
    assert held.verify() == "" and held.path == f"{parents[1]}/gpusched-claims/{UUID}.lock"
    assert claims.try_acquire(UUID, "other", 1.0) is None
    held.close()
    assert acquire(claims).path.startswith(f"{parents[1]}/")


@pytest.mark.parametrize("holder", [0, 1, 2])
def test_a_lock_in_any_default_directory_counts(parents: list[Path], holder: int) -> None:
    for path in parents:
        (path / "gpusched-claims").mkdir()
    held = Claims(str(parents[holder] / "gpusched-claims"))
    claim = acquire(held)
    assert Claims().try_acquire(UUID, "other", 1.0) is None
    label = Claims().holder(UUID)
    assert label is not None and (label.user, label.queue) == (ME, "queue")
    claim.close()
    acquire(Claims()).close()


def test_a_configured_directory_stands_alone(parents: list[Path], tmp_path: Path) -> None:
    held = acquire(Claims())
    alone = acquire(Claims(str(tmp_path / "alone")))
    assert (held.verify(), alone.verify()) == ("", "")


def test_of_two_holders_the_one_in_the_later_directory_starts_nothing_more(parents: list[Path]) -> None:
    for path in parents:
        (path / "gpusched-claims").mkdir()
    early = acquire(Claims(str(parents[0] / "gpusched-claims")))
    late = HeldClaim(Claims(), UUID, *_lock(parents[1], UUID))
    assert late.verify() == f"somebody else has claimed it by {early.path}"
    assert HeldClaim(Claims(), UUID, early.path, early.fds[0]).verify() == ""


def _lock(parent: Path, uuid: str) -> tuple[str, int]:
    path = f"{parent}/gpusched-claims/{uuid}.lock"
    fd = locks.take_file(path)
    assert fd is not None
    return path, fd


def test_of_two_takers_in_the_same_instant_the_earlier_directory_wins(
    parents: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one holds its lock for the moment in which it looks around."""
    for path in parents:
        (path / "gpusched-claims").mkdir()
    _, fd = _lock(parents[1], UUID)
    threading.Timer(0.02, os.close, [fd]).start()
    monkeypatch.setattr(claim_files, "ELSEWHERE_PATIENCE_S", 5.0)
    claim = acquire(Claims())
    assert claim.path.startswith(f"{parents[0]}/")
    claim.close()
    _, fd = _lock(parents[0], UUID)
    parents[0].chmod(0o755)
    if os.getuid() == 0:
        os.chown(parents[0] / "gpusched-claims", OTHER_UID, OTHER_UID)
    began = time.monotonic()
    assert Claims().try_acquire(UUID, "later", 1.0) is None and time.monotonic() - began < 4
    os.close(fd)


# ---- who holds it ------------------------------------------------------------------------------------


def test_the_holder_is_who_has_the_lock_and_not_who_took_it(tmp_path: Path) -> None:
    """The taker is gone, another process shares its descriptor; a third one only has the file open."""
    claims, path = Claims(str(tmp_path)), tmp_path / f"{UUID}.lock"
    taker = os.fork()
    if taker == 0:
        claim = claims.try_acquire(UUID, "queue", 1.0)
        fd = claim.fds[0] if claim else -1
        os.set_inheritable(fd, True)
        subprocess.Popen(["sleep", "60"], close_fds=False)
        os._exit(0)
    os.waitpid(taker, 0)
    with open(path):
        assert locks.is_held(str(path))
        holder = claims.holder(UUID)
        assert holder is not None and holder.queue == "queue" and holder.pid not in (None, taker, os.getpid())
        assert Path(f"/proc/{holder.pid}/comm").read_text() == "sleep\n"
        os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while claims.holder(UUID) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert claims.holder(UUID) is None


@NEEDS_TWO_USERS
def test_a_holder_whose_descriptors_cannot_be_read_is_named_by_the_lock_table(shared: Path) -> None:
    code = "held = lock(sys.argv[1])\nopen(sys.argv[1] + f'.by-{os.getuid()}', 'w').write('[')"
    with other_user(code, shared / f"{UUID}.lock") as pid:
        text = "import os\nfrom gpusched.host.gpus.claims import Claims\nclaims = Claims(os.environ['DIR'])\n"
        text += f"claims.holder({UUID!r})  # loads what it needs\nos.setgid(64002)\nos.setuid(64002)\n"
        text += f"print(claims.holder({UUID!r}))"
        words = [sys.executable, "-c", text]
        said = subprocess.run(words, capture_output=True, text=True, cwd="/", env={"DIR": str(shared)})
        assert f"user={str(OTHER_UID)!r}, pid={pid}" in said.stdout, said.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for a pid namespace")
def test_a_holder_in_another_pid_namespace_is_known_by_its_label(tmp_path: Path) -> None:
    claim = acquire(Claims(str(tmp_path)))
    text = f"from gpusched.host.gpus.claims import Claims; print(Claims({str(tmp_path)!r}).holder({UUID!r}))"
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", text]
    ended = subprocess.run(words, capture_output=True, text=True, cwd="/")
    if ended.returncode:
        pytest.skip(f"no pid namespace here: {ended.stderr}")
    assert f"Holder(user={ME!r}, pid=None, queue='queue'" in ended.stdout
    claim.close()


# ---- whose directory it is -----------------------------------------------------------------------------


@NEEDS_TWO_USERS
@pytest.mark.parametrize(
    ("owner", "mode", "is_weak"), [(OTHER_UID, 0o1777, True), (0, 0o1777, False), (OTHER_UID, 0o755, False)]
)
def test_a_shared_directory_of_a_mere_user_is_a_weakness(tmp_path: Path, owner: int, mode: int, is_weak: bool) -> None:
    path = tmp_path / "claims"
    assert Claims(str(path)).weakness() == "" and not path.exists()
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    what = f"{path} belongs to {owner}, who can remove the claims of others; as root: chown root:root {path}"
    assert Claims(str(path)).weakness() == (what if is_weak else "")


def test_the_snippet_for_root_makes_the_first_directory() -> None:
    lines = (ROOT / "examples" / "gpusched-tmpfiles.conf").read_text().splitlines()
    assert lines[-1] == f"d {claim_files._DEFAULTS[0]} 1777 root root -"
