"""The split: every item in exactly one shard, sizes and weights even, seeds distinct."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.shards.split import seeds, shard_range, shuffled, split_range, split_weighted, strided_positions

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


@given(st.lists(st.floats(0, 1e6), max_size=40), st.integers(1, 12))
def test_a_weighted_split_covers_each_item_once_and_leaves_no_shard_empty(weights: list[float], n: int) -> None:
    shards = split_weighted(weights, n)
    assert [item for start, end in shards for item in range(start, end)] == list(range(len(weights)))
    assert len(shards) == n
    assert sum(end > start for start, end in shards) == min(n, len(weights))


def heaviest(weights: Sequence[float], shards: Sequence[tuple[int, int]]) -> float:
    return max(sum(weights[start:end]) for start, end in shards)


def test_weights_that_no_float_adds_up_exactly_lose_no_item() -> None:
    source = random.Random(1)
    for _ in range(200):
        assert split_weighted([source.random() * 10 for _ in range(5)], 1) == [(0, 5)]


@given(st.lists(st.integers(0, 30), min_size=2, max_size=9), st.integers(2, 4))
def test_no_contiguous_split_is_more_even(weights: list[int], n: int) -> None:
    if n >= len(weights):
        return
    best = min(
        heaviest(weights, list(pairwise([0, *cuts, len(weights)])))
        for cuts in combinations(range(1, len(weights)), n - 1)
    )
    assert heaviest(weights, split_weighted(weights, n)) <= best * (1 + 1e-9)


def test_what_no_shard_is_made_for_by_weight_is_cut_where_it_is_longest() -> None:
    shards = split_weighted([1.0, *[0.0] * 9], 4)
    assert shards == [(0, 2), (2, 5), (5, 7), (7, 10)]
    assert len(split_weighted([1.0, *[0.0] * 99_999], 50_000)) == 50_000  # no minutes


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


@pytest.mark.parametrize("weights", [[1.0, -1.0], [float("nan")], [float("inf")]])
def test_a_weight_that_is_none(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="a weight is a number"):
        split_weighted(weights, 2)
