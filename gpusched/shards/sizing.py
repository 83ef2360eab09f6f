"""The number of shards, and the plan that divides the items among them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gpusched.common.errors import GpuschedError
from gpusched.lists.parameters import MAX_JOBS
from gpusched.shards import split
from gpusched.shards.plan import Shard, ShardPlan, SplitOptions
from gpusched.views.words import count

SUFFIXES = {"gpu": "gpu_{shard}", "shard": "shard_{shard:05}"}


def count_shards(total: int, options: SplitOptions, slots: int) -> tuple[int, str]:
    """Return the number of shards for `slots` jobs at once, and a note if there are fewer than requested.

    Raises GpuschedError if there are no items, or too many shards.
    """
    if total < 1:
        raise GpuschedError("there are no items to share out")
    if options.shard_size is not None:
        n, least = -(-total // options.shard_size), 1
    else:
        n, least = options.num_shards or max(1, slots) * options.shards_per_gpu, options.min_items
    most = max(1, total // least)
    if n > MAX_JOBS:
        raise GpuschedError(f"{n:,} shards are more than {MAX_JOBS:,}", hint="a larger --shard-size makes fewer")
    if n <= most:
        return n, ""
    if options.num_shards is None and most >= slots:
        return most - most % max(1, slots), ""  # each GPU still has as many as the others
    items, shards = count(total, "item"), count(most, "shard")
    return most, f"too few items for more: {items} in {shards} (--min-items-per-shard {least})"


def make_plan(
    total: int, options: SplitOptions, n: int, slots: int, *, weights: Sequence[float] | None = None
) -> ShardPlan:
    """Divide `total` items among `n` shards. `weights` are those of the items, in the shuffled order if there is one.

    Shards are called gpu_0, gpu_1 … if each of them has its own of the `slots`, else shard_00000 …
    """
    seeds = split.seeds(options.seed_base, n)
    form = SUFFIXES.get(options.suffix, options.suffix) or SUFFIXES["gpu" if n <= slots else "shard"]
    suffixes = [_suffix(form, i, n) for i in range(n)]
    if options.strided:
        parts = [split.strided_positions(total, n, i) for i in range(n)]
        strategy = "strided"
    else:
        ranges = split.split_range(total, n) if weights is None else split.split_weighted(weights, n)
        parts = [range(start, end) for start, end in ranges]
        strategy = "contiguous" if weights is None else "weighted"
    shards = tuple(Shard(i, suffixes[i], part[0], part[-1] + 1, len(part), seeds[i]) for i, part in enumerate(parts))
    return ShardPlan(total, strategy, shards, options.shuffle)


def _suffix(form: str, i: int, n: int) -> str:
    text = re.sub(r"\{shard(?::0?(\d))?\}", lambda match: str(i).zfill(int(match[1] or 0)), form)
    is_shared = n > 1 and "{shard" not in form
    if is_shared or not text or "/" in text or not text.isprintable() or "{" in text or len(os.fsencode(text)) > 100:
        raise GpuschedError(
            f"{form!r} makes no suffixes",
            where="--suffix",
            hint="gpu (gpu_0), shard (shard_00000), or a text of its own without / such as part-{shard} or p{shard:03}",
        )
    return text
