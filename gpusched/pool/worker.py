"""The class that a user's worker derives from. Imports nothing but the standard library."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_CONTEXT_BYTES = 512 << 20  # of CUDA and its libraries, which torch does not count


class Worker:
    """A worker of a pool: one object in each process, which loads its models once and then gets items.

    Override `setup` and either `__call__`, for one item, or `batch`, for several. `tunable` names settings that change
    no result, with the values to choose from, such as {"batch_size": [8, 16, 32]}.
    """

    tunable: ClassVar[Mapping[str, Sequence[Any]]] = {}
    thread_safe: ClassVar[bool] = False  # True: `--threads N` may call it from N threads at once
    output_dir = "."  # of the pool: for results that are too large for JSON, written to files named in them

    def setup(self, device: str, settings: Mapping[str, Any]) -> None:
        """Load what all items need. Called once in each process; `device` is "cuda:0" or "cpu"."""

    def thread_setup(self) -> None:
        """Prepare one more thread. Called in each thread before its first item, after `setup`."""

    def __call__(self, item: Any) -> Any:
        """Return the result of an item, as JSON has it."""
        return self.batch([item])[0]

    def batch(self, items: Sequence[Any]) -> Any:
        """Return the results of several items, in their order."""
        return [self(item) for item in items]

    def memory_bytes(self) -> int:
        """Return the GPU memory that this process holds by its own account; 0 if it does not know.

        It counts where the driver tells processes not apart. This one asks torch, if that is used.
        """
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.max_memory_reserved()) + _CONTEXT_BYTES

    def teardown(self) -> None:
        """Release what `setup` has loaded. Called once at the end, unless the process is killed."""
