"""The options of a tuning, each described once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import check_values, option, options_of, words_of
from gpusched.pool.options import PoolOptions
from gpusched.pool.publication import JSON_LINES, check_libraries
from gpusched.pool.tuner.search import SearchSpace

_POOL = {each.name: each for each in options_of(PoolOptions)}
CPU_WORKERS = (1, 2, 4, 8, 12, 16)


def _as_in_pool(name: str, **details: Any) -> Any:
    """Return an option that the pool has too, with its description."""
    each = _POOL[name]
    shown = {"metavar": each.metavar, "least": each.least, "check": each.check, "default_text": each.default_text}
    return option(each.default, details.pop("help", each.help), **{**shown, **details})


def _numbers(text: str) -> tuple[int, ...]:
    values = sorted({int(word) for word in text.split(",")})
    if values[0] < 1:
        raise ValueError
    return tuple(values)


def _check_numbers(text: str) -> None:
    try:
        _numbers(text)
    except ValueError:
        raise ValueError("whole numbers from 1 on, such as 8,16,32") from None


list_option = partial(option, metavar="N,N,…", check=_check_numbers)


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """A worker, items to try it with, and what may be tried. It is also the source of the queue's job."""

    worker: str = ""  # FILE.py:NAME or MODULE:NAME
    output: str = ""  # the YAML file
    output_dir: str = ""  # of the pool, as the file names it
    script: str = option(
        "", "Tune this pool of the file, which has several.", metavar="NAME", default_text="all of them"
    )
    command: str = _as_in_pool("command")
    items: str = _as_in_pool("items", help="Take the items for the trials from this file, or these files.")
    set: tuple[str, ...] = _as_in_pool("set")
    size_key: str = _as_in_pool("size_key", help="Probe memory with the items whose FIELD is largest.")
    batch_sizes: str = list_option(
        "", "Try these batch sizes.", default_text="the worker's `tunable`, else sizes up to the end of memory"
    )
    max_batch_size: int = option(4096, "Try no larger batch size.", metavar="N", least=1)
    threads: str = list_option(
        "", "Try these numbers of threads.", default_text="1,2,4 for a worker that is thread_safe"
    )
    max_workers_per_gpu: int = _as_in_pool("max_workers_per_gpu", help="Try up to N workers on a GPU.")
    cpu_workers: str = _as_in_pool("cpu_workers", help="Use no GPU; try 1, 2, 4, 8, 12, 16 workers up to N.")
    trial_items: int = option(10, "Measure each setting with at least N items.", metavar="N", least=1)
    max_trials: int = option(12, "Make at most N trials.", metavar="N", least=1)
    dataset_size: int = option(
        0, "Say how long N items will take.", metavar="N", least=0, default_text="the number of items"
    )
    wandb: str = _as_in_pool("wandb", help="Log the trials to this project of Weights & Biases.")
    seed: int = option(0, "Choose the items by this seed.", metavar="N")
    overwrite: bool = option(False, "Forget earlier trials.")

    def check(self) -> None:
        """Raise GpuschedError for a value that makes no sense."""
        check_values(self)
        check_libraries(JSON_LINES, "", self.wandb)
        if bool(self.worker) == bool(self.command):
            hint = "gpusched tune captions.py:Caption --items items.txt -o captions.yaml"
            raise GpuschedError("name either a worker or --command PROGRAM", hint=hint)
        if not self.items:
            raise GpuschedError("no items are named", hint="--items items.txt")

    # ---- the source of the job ----

    @property
    def path(self) -> str:
        """The absolute path of the YAML file."""
        return os.path.abspath(os.path.expanduser(self.output or "pool.yaml"))

    @property
    def stem(self) -> str:
        """The default name of the queue."""
        name = os.path.splitext(os.path.basename(self.path))[0]
        return f"{name}.{self.script}.tune" if self.script else f"{name}.tune"

    @property
    def owner(self) -> bytes:
        """The identity of the queue's source; never equal to a file path."""
        return b" ".join([b"tune", os.fsencode(self.path), self.script.encode(), self.worker.encode()])

    @property
    def words(self) -> list[str]:
        """The command line after `gpusched`, without the settings of a run."""
        return ["tune", *filter(None, [self.worker]), *words_of(self, options_of(TuneOptions)), "-o", self.path]

    # ---- for the trials ----

    @property
    def for_pool(self) -> PoolOptions:
        """The options of the pool that is tuned, as far as they are known."""
        shared = {each.name for each in fields(PoolOptions)} & {each.name for each in fields(TuneOptions)}
        values = {name: getattr(self, name) for name in shared - {"threads", "overwrite"}}
        own = os.path.splitext(self.path)[0]
        return PoolOptions(
            **{**values, "output_dir": self.output_dir or (f"{own}/{self.script}" if self.script else own)}
        )

    def space(
        self, tunable: Mapping[str, Any], *, is_thread_safe: bool, memory_bytes: int | None, items: int
    ) -> SearchSpace:
        """Return what is tried: what the command line names, else what the worker says; for `items` on each GPU."""
        sizes = tuple(sorted(size for size in tunable.get("batch_size", ()) if isinstance(size, int) and size > 0))
        workers = tuple(range(1, self.max_workers_per_gpu + 1))
        if self.cpu_workers:
            workers = tuple(count for count in CPU_WORKERS if count <= self.for_pool.cpu_count)
        return SearchSpace(
            batch_sizes=_numbers(self.batch_sizes) if self.batch_sizes else sizes,
            largest_batch_size=max(1, min(self.max_batch_size, items)),
            memory_bytes=memory_bytes,
            workers=workers,
            threads=_numbers(self.threads) if self.threads else (1, 2, 4) if is_thread_safe else (1,),
            most_trials=self.max_trials,
        )
