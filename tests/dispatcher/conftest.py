"""Fixtures that several tests of the dispatcher share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.host.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path / "queue.db"), create=True)
    yield store
    store.close()
