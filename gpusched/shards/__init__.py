"""One script run on many items in shards: the plan, the jobs, and the merge of their outputs.

The names are loaded on first use, so that a stage can import `gpusched.shards.plan` without the dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.shards.merge_options import MergeOptions as MergeOptions
    from gpusched.shards.plan import ShardPlan as ShardPlan
    from gpusched.shards.plan import SplitOptions as SplitOptions
    from gpusched.shards.request import ShardRequest as ShardRequest
    from gpusched.shards.start import run_shards as run_shards

_MODULES = {
    "MergeOptions": "merge_options",
    "ShardPlan": "plan",
    "ShardRequest": "request",
    "SplitOptions": "plan",
    "run_shards": "start",
}


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
