"""The items of each shard: a range, or every n-th item. Reads no item.

The items are numbered from 0, and stand in a line: in their own order, or in a shuffled one. Contiguous shards are
slices of the line, one after the other; strided shards take every n-th item of it.
"""

from __future__ import annotations

import random


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
