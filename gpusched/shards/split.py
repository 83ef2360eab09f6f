"""The items of each shard: even, strided or weighted. Reads no item.

The items are numbered from 0, and stand in a line: in their own order, or in a shuffled one. Contiguous shards are
slices of the line, one after the other; strided shards take every n-th item of it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappush, heapreplace
from itertools import accumulate


def split_range(total: int, n: int) -> list[tuple[int, int]]:
    """Return [start, end) of each of `n` contiguous shards: sizes differ by at most one, larger shards come first.

    Raises ValueError for a negative total, or fewer than one shard.
    """
    return [shard_range(total, n, i) for i in range(n)] if n > 0 else [shard_range(total, n, 0)]


def shard_range(total: int, n: int, i: int) -> tuple[int, int]:
    """Return [start, end) of shard `i` of `n`, by the rule of `split_range`."""
    if total < 0 or n < 1 or not 0 <= i < n:
        raise ValueError(f"shard {i} of {n} for {total} items: there is no such shard")
    size, larger = divmod(total, n)
    start = i * size + min(i, larger)
    return start, start + size + (i < larger)


def split_weighted(weights: Sequence[float], n: int) -> list[tuple[int, int]]:
    """Return [start, end) of `n` contiguous shards, with the heaviest shard as light as possible.

    Each shard gets an item if there are enough. Raises ValueError for a weight that is negative or not a number.
    """
    total = len(weights)
    if n < 1:
        raise ValueError("at least one shard")
    if any(not 0 <= w < float("inf") for w in weights):
        raise ValueError("a weight is a number, at least 0")
    if n >= total:
        return split_range(total, n)
    sums = list(accumulate(weights, initial=0.0))
    low, high = max(weights), sums[-1]
    for _ in range(64):
        middle = (low + high) / 2
        if len(_fill(sums, middle)) > n:
            low = middle
        else:
            high = middle
    return _spread(_fill(sums, high), total, n)


def _fill(sums: Sequence[float], limit: float) -> list[int]:
    """Return the starts of shards that are filled up to `limit`. `sums`: for each item the weight of all before it."""
    starts, total = [0], len(sums) - 1
    while (end := max(starts[-1] + 1, bisect_right(sums, sums[starts[-1]] + limit) - 1)) < total:
        starts.append(end)
    return starts


def _spread(starts: list[int], total: int, n: int) -> list[tuple[int, int]]:
    """Cut the longest shards until there are `n`; no shard becomes heavier."""
    cuts = [(start - end, start, end) for start, end in zip(starts, [*starts[1:], total], strict=True)]
    heapify(cuts)
    while len(cuts) < n:
        _, start, end = cuts[0]
        middle = (start + end) // 2
        heapreplace(cuts, (start - middle, start, middle))
        heappush(cuts, (middle - end, middle, end))
    return sorted((start, end) for _, start, end in cuts)


def shuffled(total: int, seed: int) -> list[int]:
    """Return the items in the shuffled order of this seed: the same on every machine."""
    line = list(range(total))
    random.Random(seed).shuffle(line)
    return line


def strided_positions(total: int, n: int, i: int) -> range:
    """Return the positions in the line of strided shard `i` of `n`."""
    shard_range(total, n, i)
    return range(i, total, n)


def seeds(base: int, n: int) -> list[int]:
    """Return a seed for each shard: distinct, below 2**31. The first seeds of a base do not depend on `n`."""
    source, drawn = random.Random(base), dict[int, None]()
    while len(drawn) < n:
        drawn[source.randrange(2**31)] = None
    return list(drawn)
