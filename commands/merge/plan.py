"""The plan of a sharded script as `gpusched shard` leaves it, read and compared with itself. Looks at no part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec

from .parts import ItemOrder
from .trouble import EXIT_USAGE, Refused, clean

VERSION = 1


class Asked(msgspec.Struct):
    """What `gpusched shard` was told of the merge."""

    output: str | None = None
    sum: list[str] = []
    key: str | None = None
    on_duplicate: Literal["error", "keep-first", "keep-last"] | None = None
    allow_partial: bool = False


class Shard(msgspec.Struct):
    """One shard of the plan."""

    shard: int
    suffix: str
    start: int
    end: int
    count: int
    seed: int | None = None
    outputs: list[str] = []


class Plan(msgspec.Struct):
    """What a merge needs of the plan file."""

    version: int
    created_at: float
    total: int
    num_shards: int
    shards: list[Shard]
    order: Literal["given", "shuffled"] = "given"
    shuffle_seed: int | None = None
    strategy: Literal["contiguous", "strided", "weighted"] = "contiguous"
    merge: Asked | None = None


def read_plan(path: str) -> Plan:
    """The plan of this file. Refused where it is none, or does not fit together."""
    try:
        # Of json, and not of msgspec: names that are not UTF-8 are in it, as halves of surrogate pairs.
        plan = msgspec.convert(json.loads(Path(path).read_bytes()), Plan)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}", where=path, exit_code=EXIT_USAGE) from None
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Refused(
            f"is no plan: {clean(error)}", where=path, hint="'gpusched shard' writes it", exit_code=EXIT_USAGE
        ) from None
    wrong = _disagreement(plan)
    if wrong:
        raise Refused(f"does not fit together: {wrong}", where=path, exit_code=EXIT_USAGE)
    return plan


def _disagreement(plan: Plan) -> str:
    if plan.version != VERSION:
        return f"it is of version {plan.version}, and this merges version {VERSION}"
    if [shard.shard for shard in plan.shards] != list(range(plan.num_shards)):
        return f"its shards are not numbered 0 to {plan.num_shards - 1}"
    if sum(shard.count for shard in plan.shards) != plan.total:
        return f"its shards have {sum(shard.count for shard in plan.shards)} items of {plan.total}"
    if plan.order == "shuffled" and plan.shuffle_seed is None:
        return "it is shuffled without a seed"
    order = item_order(plan)
    for shard in plan.shards:
        dealt = order.dealt(shard.shard) if order else range(shard.start, shard.end)
        if len(dealt) != shard.count or (dealt and not (dealt[0] >= 0 and dealt[-1] < plan.total)):
            return f"shard {shard.shard} has {shard.count} items, and {len(dealt)} by its range"
    return ""


def item_order(plan: Plan) -> ItemOrder | None:
    """How items come back in order; None where the shards one after the other are that already."""
    strided, seed = plan.strategy == "strided", plan.shuffle_seed if plan.order == "shuffled" else None
    if not strided and seed is None:
        return None
    ranges = [(shard.start, shard.end) for shard in plan.shards]
    return ItemOrder(plan.total, plan.num_shards, strided, seed, ranges)
