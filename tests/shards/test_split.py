"""The split: every item in exactly one shard, sizes even, seeds distinct."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.shards.split import seeds, shard_range, shuffled, split_range, strided_positions

TOTALS = st.integers(0, 500)
COUNTS = st.integers(1, 60)


@given(TOTALS, COUNTS)
def test_an_even_split_covers_each_item_once(total: int, n: int) -> None:
    shards = split_range(total, n)
    assert [item for start, end in shards for item in range(start, end)] == list(range(total))
    sizes = [end - start for start, end in shards]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert shards == [shard_range(total, n, i) for i in range(n)]


@given(TOTALS, COUNTS)
def test_a_strided_split_covers_each_item_once(total: int, n: int) -> None:
    found = [position for i in range(n) for position in strided_positions(total, n, i)]
    assert sorted(found) == list(range(total))


@given(TOTALS, st.integers(0, 2**63))
def test_a_shuffled_line_has_all_items_and_comes_again(total: int, seed: int) -> None:
    assert sorted(shuffled(total, seed)) == list(range(total))
    assert shuffled(total, seed) == shuffled(total, seed)


def test_a_shuffled_line_is_the_same_for_ever() -> None:
    assert shuffled(6, 7) == [4, 0, 5, 3, 1, 2]


@given(st.integers(0, 2**31), st.integers(1, 300))
def test_seeds_are_distinct_and_do_not_move(base: int, n: int) -> None:
    found = seeds(base, n)
    assert len(set(found)) == n
    assert found[: n // 2] == seeds(base, n // 2)


@pytest.mark.parametrize(("total", "n", "i"), [(-1, 1, 0), (5, 0, 0), (5, 2, 2), (5, 2, -1)])
def test_a_shard_that_there_is_not(total: int, n: int, i: int) -> None:
    with pytest.raises(ValueError, match="no such shard"):
        shard_range(total, n, i)
