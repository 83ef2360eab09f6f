"""The plan of a sharded script as values, and the document that it is kept as. Reads and writes no file.

A plan is made once for a queue and kept in its `shard_plan.json`, which the merge reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpusched.common.option_table import option
from gpusched.common.text import mask_secrets
from gpusched.shards import split
from gpusched.shards.merge_options import MergeOptions, from_plan_record, plan_record

VERSION = 1
_PLAIN_FIELDS = ("created_at", "total", "shuffle_seed", "strategy", "items", "command")  # the same in the document
TAG = "shards"  # of every job that runs a shard
MERGE = "merge"  # the name of the job that merges
SHARDS_PER_GPU = 4


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """The options that decide how items are split."""

    num_shards: int | None = option(None, "Make N shards.", metavar="N", least=1, takes=int)
    shard_size: int | None = option(None, "Make shards of at most N items.", metavar="N", least=1, takes=int)
    shards_per_gpu: int | None = option(
        None,
        "Without --num-shards and --shard-size, make N shards for each GPU. More shards even out slow ones; use 1 for "
        "a script that takes minutes to load.",
        metavar="N",
        least=1,
        takes=int,
        default_text=f"{SHARDS_PER_GPU}, of a single GPU 1",
    )
    min_items: int = option(
        4,
        "Without --num-shards, make fewer shards if they would have fewer than N items.",
        metavar="N",
        least=1,
        spelt="--min-items-per-shard",
    )
    strided: bool = option(False, "Deal the items out in turn: of N shards, each gets every N-th item.")
    shuffle: int | None = option(None, "Shuffle the items before they are split.", metavar="SEED", least=0, takes=int)
    suffix: str | None = option(
        None,
        "Set {suffix} to gpu_0 or shard_00000.",
        choices=("gpu", "shard"),
        default_text="gpu if there are no more shards than GPUs, else shard",
    )
    seed_base: int = option(0, "Derive the seeds of the shards from this number.", metavar="N", default_text="0")


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


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The items of each shard. `items` is the file or pattern that they come from; the split depends on `inputs`."""

    total: int
    strategy: str  # contiguous | strided | weighted, which only version 0.1 made
    shards: tuple[Shard, ...]
    shuffle_seed: int | None = None
    items: str | None = None
    command: str = ""
    merge: MergeOptions | None = None
    inputs: Mapping[str, Any] | None = None
    created_at: float = 0.0  # every output of a shard is newer

    def positions(self, shard: Shard) -> range:
        """Return the positions of a shard's items, in the order of the items or in the shuffled order."""
        if self.strategy == "strided":
            return split.strided_positions(self.total, len(self.shards), shard.shard)
        return range(shard.start, shard.end)

    def span(self, shard: Shard) -> str:
        """Return the positions of a shard's items as text: 250-499, or 1-997 by 4."""
        last = shard.end - 1
        text = str(shard.start) if shard.count == 1 else f"{shard.start}-{last}"
        return f"{text} by {len(self.shards)}" if self.strategy == "strided" and shard.count > 1 else text

    @property
    def spans(self) -> dict[str, str]:
        """The positions of the items of each shard as text, by the names of their jobs."""
        return {shard.suffix: self.span(shard) for shard in self.shards}

    def input(self, name: str) -> Any:
        """Return one of the inputs of the split; None if the plan does not have it."""
        return (self.inputs or {}).get(name)

    @property
    def split(self) -> tuple[object, ...]:
        """The values that two plans have in common if each shard of one does the work of that shard of the other."""
        shards = [(s.suffix, s.start, s.end, s.count, s.seed) for s in self.shards]
        return self.total, self.strategy, self.shuffle_seed, self.input("digest"), shards


# ---- the plan as a document ------------------------------------------------------------------------


def to_document(plan: ShardPlan) -> dict[str, Any]:
    """Return the plan as it is kept; secrets in the command are masked."""
    return {
        "version": VERSION,
        **{name: getattr(plan, name) for name in _PLAIN_FIELDS},
        "order": "given" if plan.shuffle_seed is None else "shuffled",
        "num_shards": len(plan.shards),
        "command": mask_secrets(plan.command),
        "merge": None if plan.merge is None else {**plan_record(plan.merge), "by": "given"},
        "shards": [{**asdict(shard), "outputs": list(shard.outputs)} for shard in plan.shards],
        "asked": dict(plan.inputs or {}),
    }


def from_document(document: Any) -> ShardPlan:
    """Read the plan of a document. Raises ValueError for anything that is no plan of this version."""
    try:
        if document["version"] != VERSION:
            raise ValueError(f"its version is {document['version']}, and this gpusched knows version {VERSION}")
        merge = document["merge"]
        return ShardPlan(
            **{name: document[name] for name in _PLAIN_FIELDS},
            shards=tuple(Shard(**{**shard, "outputs": tuple(shard["outputs"])}) for shard in document["shards"]),
            merge=None if merge is None else from_plan_record(merge),
            inputs=document.get("asked") or {},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no plan of shards ({error})") from None
