"""Claims among users who cannot be trusted, by real dispatchers: bad labels, bad files, locks that are taken away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_directory() as path:
        yield path


@pytest.fixture
def box(tmp_path: Path, shared: Path) -> Iterator[Box]:
    """A box of two GPUs whose claims directory every user can write to."""
    with Box(tmp_path, gpus="2", environment={"GPUSCHED_CLAIMS_DIR": str(shared)}) as made:
        yield made


@NEEDS_TWO_USERS
@pytest.mark.parametrize("label", ["[" * 4096, '{"pid": 1e999, "queue": "", "since": 1e999}'], ids=["deep", "large"])
def test_a_label_of_another_user_ends_nobody(box: Box, shared: Path, label: str) -> None:
    code = """
held = lock(sys.argv[1] + ".lock")
with open(f"{sys.argv[1]}.lock.by-{os.getuid()}", "w") as file:
    file.write(sys.argv[2])
"""
    with other_user(code, shared / box.uuid(0), label) as pid:
        ended = box.run("true", "true #2")
        assert ended.code == 0 and "Traceback" not in ended.text, ended.text
        assert [row.indices for row in box.jobs()] == [[1], [1]]
        shown = json.loads(box.gpusched("devices", "--json").out)["devices"]
        assert shown[0]["claim"] == {"user": str(OTHER_UID), "pid": pid, "queue": "", "since": None}
        assert f"by {OTHER_UID}'s gpusched" in box.gpusched("run", "--dry-run", "list.txt").text
