"""The number of shards, and the plan that divides the items among them."""

from __future__ import annotations

from gpusched.common.errors import GpuschedError
from gpusched.lists.parameters import MAX_JOBS
from gpusched.shards import split
from gpusched.shards.plan import SHARDS_PER_GPU, Shard, ShardPlan, SplitOptions
from gpusched.views.words import count

SUFFIXES = {"gpu": "gpu_{}", "shard": "shard_{:05}"}


def count_shards(total: int, options: SplitOptions, slots: int) -> tuple[int, str]:
    """Return the number of shards for `slots` jobs at once, and a note if there are fewer than requested.

    Raises GpuschedError if there are no items, or too many shards.
    """
    if total < 1:
        raise GpuschedError("there are no items to share out")
    if options.shard_size is not None:
        n, least = -(-total // options.shard_size), 1
    else:
        per_slot = options.shards_per_gpu or (SHARDS_PER_GPU if slots > 1 else 1)
        n, least = max(1, slots) * per_slot, options.min_items
    if options.num_shards is not None:
        n, least = options.num_shards, 1
    most = max(1, total // least)
    if n > MAX_JOBS:
        raise GpuschedError(f"{n:,} shards are more than {MAX_JOBS:,}", hint="a larger --shard-size makes fewer")
    if n <= most:
        return n, ""
    if options.num_shards is None and most >= max(1, slots):
        return most - most % max(1, slots), ""  # each GPU still has as many as the others
    items, shards = count(total, "item"), count(most, "shard")
    why = "" if least == 1 else f" (--min-items-per-shard {least})"
    return most, f"too few items for more: {items} in {shards}{why}"


def make_plan(total: int, options: SplitOptions, n: int, slots: int) -> ShardPlan:
    """Divide `total` items among `n` shards.

    Shards are called gpu_0, gpu_1 … if each of them has its own of the `slots`, else shard_00000 …
    """
    seeds = split.seeds(options.seed_base, n)
    form = SUFFIXES[options.suffix or ("gpu" if n <= slots else "shard")]
    if options.strided:
        parts = [split.strided_positions(total, n, i) for i in range(n)]
    else:
        parts = [range(start, end) for start, end in split.split_range(total, n)]
    shards = [Shard(i, form.format(i), part[0], part[-1] + 1, len(part), seeds[i]) for i, part in enumerate(parts)]
    return ShardPlan(total, "strided" if options.strided else "contiguous", tuple(shards), options.shuffle)
