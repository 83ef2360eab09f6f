"""The most frequent kind of error in the summary of a pool."""

from __future__ import annotations

import pytest

from gpusched.pool.summary import frequent_error


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ("", 0)),
        ([("ValueError: too dark", 2), ("OSError: gone", 1)], ("ValueError: too dark", 2)),
        ([("ValueError: item 17", 1)], ("ValueError: item 17", 1)),
        ([("E: none", 3), ("ValueError: item 17", 2), ("ValueError: item 18.5", 2)], ("ValueError: item …", 4)),
        (
            [(f"UnidentifiedImageError: cannot identify image file '/data/my images/{n}'", 1) for n in "abc"],
            ("UnidentifiedImageError: cannot identify image file …", 3),
        ),
        ([("OSError: /in/a.jpg is cut", 1), ("OSError: in/b.jpg is cut", 1)], ("OSError: … is cut", 2)),
        ([("KeyError: 'caption'", 2), ("KeyError: 'image'", 1)], ("KeyError: 'caption'", 2)),
    ],
)
def test_errors_that_differ_in_paths_and_numbers_are_of_one_kind(
    texts: list[tuple[str, int]], expected: tuple[str, int]
) -> None:
    assert frequent_error(texts) == expected
