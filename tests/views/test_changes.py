"""The lines that say what happened to which jobs."""

from __future__ import annotations

import pytest

from gpusched.common import text as text_module


@pytest.mark.parametrize(
    ("ids", "text"), [([1], "1"), ([3, 1, 2], "1-3"), ([1, 3, 4, 9], "1, 3-4, 9"), ([7, 5], "5, 7")]
)
def test_ranges(ids: list[int], text: str) -> None:
    assert text_module.ranges(ids) == text
