"""Claims on real files: their labels, bad files in their place, lock files that vanish, several directories."""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.host.gpus import claims as claim_files
from gpusched.host.gpus.claims import Claims
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory

UUID = "GPU-0aa1c0de"
ME = pwd.getpwuid(os.getuid()).pw_name
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
