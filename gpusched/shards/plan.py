"""How many shards there are, which items each of them does, and the plan of it as a document. Reads and writes no file.

A plan is made once for a queue and kept in its `shard_plan.json`, which the merge reads.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.text import mask_secrets
from gpusched.lists.attributes import parse_value
from gpusched.lists.sweep import MAX_JOBS
from gpusched.shards import split

VERSION = 1
TAG = "shards"  # of every job that does a shard
MERGE = "merge"  # the name of the job that merges
SUFFIXES = {"gpu": "gpu_{shard}", "shard": "shard_{shard:05}"}


@dataclass(frozen=True, slots=True)
class ShardWish:
    """What was asked for. `suffix`: gpu, shard, a text with {shard}, or nothing for the one that fits."""

    num_shards: int | None = None
    shard_size: int | None = None
    shards_per_gpu: int = 4
    min_items: int = 4
    strided: bool = False
    shuffle: int | None = None
    suffix: str = ""
    seed_base: int = 0


@dataclass(frozen=True, slots=True)
class Shard:
    """The items of one job. Contiguous: positions `start` to `end` - 1; strided: `start` and every n-th from there."""

    shard: int
    suffix: str
    start: int
    end: int
    count: int
    seed: int
    items_file: str | None = None
    outputs: tuple[str, ...] = ()

    @property
    def job_name(self) -> str:
        """What its job is called: its suffix, where a job can be called so."""
        try:
            name = str(parse_value("name", self.suffix.encode()))
        except ValueError:
            name = ""
        return name if name and name not in (TAG, MERGE) else f"shard-{self.shard}"


@dataclass(frozen=True, slots=True)
class Merge:
    """How the outputs are made one."""

    output: str | None = None
    sums: tuple[str, ...] = ()
    key: str | None = None
    on_duplicate: str = "error"
    allow_partial: bool = False


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which items each shard does. `items`: the file or pattern that they come from; `asked`: what the plan follows."""

    total: int
    strategy: str  # contiguous | strided | weighted
    shards: tuple[Shard, ...]
    shuffle_seed: int | None = None
    items: str | None = None
    command: str = ""
    merge: Merge | None = None
    asked: Mapping[str, Any] | None = None
    created_at: float = 0.0  # what a shard has written is newer

    def positions(self, shard: Shard) -> range:
        """Where the shard's items stand in the line."""
        if self.strategy == "strided":
            return split.strided_positions(self.total, len(self.shards), shard.shard)
        return range(shard.start, shard.end)

    def span(self, shard: Shard) -> str:
        """The same in words: 250-499, or 1-997 by 4."""
        last = shard.end - 1
        words = str(shard.start) if shard.count == 1 else f"{shard.start}-{last}"
        return f"{words} by {len(self.shards)}" if self.strategy == "strided" and shard.count > 1 else words

    @property
    def ways(self) -> tuple[object, ...]:
        """What has to be the same, for the work of a shard of one plan to be that of a shard of another one."""
        cut = [(s.suffix, s.start, s.end, s.count, s.seed) for s in self.shards]
        digest = (self.asked or {}).get("digest")
        return self.total, self.strategy, self.shuffle_seed, digest, cut

    @property
    def split_id(self) -> str:
        """Stands for `ways`."""
        return hashlib.blake2b(repr(self.ways).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


# ---- how many, and which ---------------------------------------------------------------------------


def shard_count(total: int, wish: ShardWish, slots: int) -> tuple[int, str]:
    """How many shards, for `slots` jobs at once; and what is to be said of it, if they are fewer than wished for.

    Raises GpuschedError where there is nothing to share out.
    """
    if total < 1:
        raise GpuschedError("there are no items to share out")
    if wish.shard_size is not None:
        n, least = -(-total // wish.shard_size), 1
    else:
        n, least = wish.num_shards or max(1, slots) * wish.shards_per_gpu, wish.min_items
    most = max(1, total // least)
    if n > MAX_JOBS:
        raise GpuschedError(f"{n:,} shards are more than {MAX_JOBS:,}", hint="a larger --shard-size makes fewer")
    if n <= most:
        return n, ""
    if wish.num_shards is None and most >= slots:
        return most - most % max(1, slots), ""  # each GPU still has as many as the others
    items = "1 item is" if total == 1 else f"{total} items are"
    wished = f"{n} shards" if wish.num_shards else f"{slots} GPUs" if slots > 1 else "1 GPU"
    many = "1 shard" if most == 1 else f"{most} shards"
    return most, f"{items} too few for {wished} with {least} each (--min-items-per-shard): {many}"


def make_plan(
    total: int,
    wish: ShardWish,
    n: int,
    slots: int,
    *,
    weights: Sequence[float] | None = None,
) -> ShardPlan:
    """Share `total` items out to `n` shards, in the line's order; `weights` are those of the line.

    Shards are called gpu_0, gpu_1 … where each of them has its own of the `slots`, shard_00000 … else.
    """
    seeds = split.seeds(wish.seed_base, n)
    form = SUFFIXES.get(wish.suffix, wish.suffix) or SUFFIXES["gpu" if n <= slots else "shard"]
    suffixes = [_suffix(form, i, n) for i in range(n)]
    if wish.strided:
        spots = [split.strided_positions(total, n, i) for i in range(n)]
        strategy = "strided"
    else:
        cut = split.split_range(total, n) if weights is None else split.split_weighted(weights, n)
        spots = [range(start, end) for start, end in cut]
        strategy = "contiguous" if weights is None else "weighted"
    shards = tuple(Shard(i, suffixes[i], spot[0], spot[-1] + 1, len(spot), seeds[i]) for i, spot in enumerate(spots))
    return ShardPlan(total, strategy, shards, wish.shuffle)


def _suffix(form: str, i: int, n: int) -> str:
    text = re.sub(r"\{shard(?::0?(\d))?\}", lambda found: str(i).zfill(int(found[1] or 0)), form)
    wrong = n > 1 and "{shard" not in form
    if wrong or not text or "/" in text or not text.isprintable() or "{" in text or len(os.fsencode(text)) > 100:
        raise GpuschedError(
            f"{form!r} makes no suffixes",
            where="--suffix",
            hint="gpu (gpu_0), shard (shard_00000), or a text of its own without / such as part-{shard} or p{shard:03}",
        )
    return text


# ---- the plan as a document ------------------------------------------------------------------------


def document(plan: ShardPlan) -> dict[str, Any]:
    """The plan as it is kept; secrets in the command are masked."""
    merge = plan.merge
    return {
        "version": VERSION,
        "created_at": plan.created_at,
        "total": plan.total,
        "order": "given" if plan.shuffle_seed is None else "shuffled",
        "shuffle_seed": plan.shuffle_seed,
        "strategy": plan.strategy,
        "num_shards": len(plan.shards),
        "items": plan.items,
        "command": mask_secrets(plan.command),
        "merge": None
        if merge is None
        else {
            "output": merge.output,
            "sum": list(merge.sums),
            "key": merge.key,
            "on_duplicate": merge.on_duplicate,
            "by": "given",
            "allow_partial": merge.allow_partial,
        },
        "shards": [
            {
                "shard": shard.shard,
                "suffix": shard.suffix,
                "start": shard.start,
                "end": shard.end,
                "count": shard.count,
                "seed": shard.seed,
                "items_file": shard.items_file,
                "outputs": list(shard.outputs),
            }
            for shard in plan.shards
        ],
        "asked": dict(plan.asked or {}),
    }


def from_document(found: Any) -> ShardPlan:
    """The plan of a document. ValueError where it is none that this version knows."""
    try:
        if found["version"] != VERSION:
            raise ValueError(f"it is of version {found['version']}, and this one knows {VERSION}")
        merge = found["merge"]
        return ShardPlan(
            total=int(found["total"]),
            strategy=str(found["strategy"]),
            shards=tuple(Shard(**{**shard, "outputs": tuple(shard["outputs"])}) for shard in found["shards"]),
            shuffle_seed=found["shuffle_seed"],
            items=found["items"],
            command=str(found["command"]),
            merge=None
            if merge is None
            else Merge(
                merge["output"],
                tuple(merge["sum"]),
                merge["key"],
                merge["on_duplicate"],
                bool(merge["allow_partial"]),
            ),
            asked=found.get("asked") or {},
            created_at=float(found["created_at"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no plan of shards ({error})") from None
