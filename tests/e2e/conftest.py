"""The box that most whole runs need; a file that needs another one has its own fixture of this name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        yield box
