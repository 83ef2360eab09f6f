"""The options of a pool, each described once.

The fields of `PoolOptions` are the table: the command line, the `optimization:` block of a configuration file, the file
that coordinator and workers read, and docs/reference.md are made from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import check_values, option, options_of, words_of
from gpusched.common.quantities import parse_duration
from gpusched.pool.publication import FORMATS, Publication, check_libraries

T = TypeVar("T", bound="PoolOptions")
OPTIONS = "pool.json"  # the file of them, in the local directory of the queue


def _check_errors(text: str) -> None:
    number = text.removesuffix("%")
    if not number.isdecimal() or (number != text and int(number) > 100):
        raise ValueError("a number of items, or a percentage such as 5%")


def _check_cpu_workers(text: str) -> None:
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise ValueError("a number of workers, or auto")


def _check_settings(words: tuple[str, ...]) -> None:
    if any("=" not in word for word in words):
        raise ValueError("NAME=VALUE")


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """A worker, its items, and how the pool works on them. It is also the source of the queue's jobs."""

    worker: str = ""  # FILE.py:NAME or MODULE:NAME
    command: str = option(
        "", "Run this program as the worker: items as JSON lines on stdin, answers on stdout.", metavar="PROGRAM"
    )
    items: str = option("", "Work on the items of this file, or on the files that match.", metavar="FILE")
    output_dir: str = option("", "Keep results, errors and what is needed to resume here.", metavar="DIR")
    set: tuple[str, ...] = option((), "Hand a setting to the worker.", metavar="NAME=VALUE", check=_check_settings)
    key: str = option("", "Tell items apart by this field, not by their content.", metavar="FIELD")
    size_key: str = option("", "Begin with the items whose FIELD is largest.", metavar="FIELD")
    collect: str = option("none", "Join results that are dicts of lists to one.", choices=("none", "dict-of-lists"))
    batch_size: int = option(0, "Hand N items to `batch` at once; 0, the default: one.", metavar="N", least=0)
    threads: int = option(1, "Let N threads of a process share one loaded worker.", metavar="N", least=1)
    max_workers_per_gpu: int = option(4, "Add workers up to N on each GPU.", metavar="N", least=1)
    workers_per_gpu: int = option(
        0, "Run exactly N workers on each GPU; 0, the default: adaptive.", metavar="N", least=0
    )
    cpu_workers: str = option(
        "", "Use no GPU, but N workers (auto: one per core).", metavar="N|auto", check=_check_cpu_workers
    )
    in_flight: int = option(16, "Send a worker at most N short items ahead.", metavar="N", least=1)
    item_timeout: str = option("", "End a worker whose item runs longer.", metavar="TIME", check=parse_duration)
    item_retries: int = option(1, "Try an item that failed N times again.", metavar="N", least=0)
    max_errors: str = option("", "Stop after N (or N%) items ended in an error.", metavar="N|P%", check=_check_errors)
    orphan_timeout: str = option(
        "60s", "Keep a worker for so long without a coordinator.", metavar="TIME", check=parse_duration
    )
    min_items_per_gpu: int = option(4, "With one GPU and fewer items, work in this process.", metavar="N", least=0)
    checkpoint_every: int = option(100, "Write a part of the results each N items.", metavar="N", least=1)
    checkpoint_dir: str = option(
        "", "Write the parts of the results here.", metavar="DIR", default_text="results in the output directory"
    )
    sink: str = option("jsonl", "Write results in this format; files: they are paths of files.", choices=tuple(FORMATS))
    upload: str = option("", "Upload the parts of the results meanwhile.", metavar="URL")
    wandb: str = option("", "Log the progress to this project of Weights & Biases.", metavar="PROJECT")
    log_errors: bool = option(True, "Write no errors.jsonl.")
    error_log_dir: str = option("", "Write errors.jsonl here.", metavar="DIR", default_text="in the output directory")
    inline: bool = option(False, "Work in this process, item by item.")
    retry_errors: bool = option(False, "Try the items again that ended in an error.")
    overwrite: bool = option(False, "Forget earlier results in the output directory.")

    def check(self, *, is_export: bool = False) -> None:
        """Raise GpuschedError for a value that makes no sense, or for a library that is missing."""
        check_values(self)
        order = self.publication
        check_libraries(order.sink, order.url, order.project)
        if not is_export and bool(self.worker) == bool(self.command):
            hint = "gpusched pool captions.py:Caption --items items.txt --output-dir out"
            raise GpuschedError("name either a worker or --command PROGRAM", hint=hint)
        if not self.output_dir:
            raise GpuschedError("no directory is named", where="--output-dir", hint="--output-dir out")

    def check_threads(self, *, is_safe: bool) -> None:
        """Raise GpuschedError if threads are to share a worker that is not made for it."""
        if self.threads > 1 and not is_safe:
            problem = "wants several threads, and the worker does not say that it is safe"
            raise GpuschedError(problem, where=f"--threads {self.threads}", hint="thread_safe = True, in its class")

    # ---- the source of the jobs ----

    @property
    def output(self) -> str:
        """The absolute path of the output directory."""
        return os.path.abspath(os.path.expanduser(self.output_dir))

    @property
    def parts_dir(self) -> str:
        """The absolute path of the directory of the parts."""
        return os.path.abspath(os.path.expanduser(self.checkpoint_dir or f"{self.output}/results"))

    @property
    def publication(self) -> Publication:
        """The order to the stage that publishes the parts."""
        url = self.upload if "://" in self.upload or not self.upload else f"file://{os.path.abspath(self.upload)}"
        return Publication(self.parts_dir, self.sink, self.output, url, self.wandb, self.stem)

    @property
    def stem(self) -> str:
        """The default name of the queue."""
        return os.path.basename(self.output) or "pool"

    @property
    def owner(self) -> bytes:
        """The identity of the queue's source; never equal to a file path."""
        return b"pool " + os.fsencode(self.output)

    @property
    def words(self) -> list[str]:
        """The command line after `gpusched`, without the settings of a run."""
        return ["pool", *filter(None, [self.worker]), *words_of(self, options_of(PoolOptions))]

    # ---- for coordinator and workers ----

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the worker. A value that is JSON is taken as that, any other one as text."""
        pairs = (word.partition("=") for word in self.set)
        values = {name: _value(text) for name, _, text in pairs}
        return {**({"batch_size": self.batch_size} if self.batch_size else {}), **values}

    @property
    def item_timeout_s(self) -> float:
        """The longest time of an item; 0: no limit."""
        return parse_duration(self.item_timeout) if self.item_timeout else 0.0

    @property
    def capacity(self) -> int:
        """The number of items that a worker works on at once."""
        return self.threads * max(1, int(self.settings.get("batch_size", 1)))

    @property
    def cpu_count(self) -> int:
        """The number of workers on the CPU; 0: none, they run on GPUs."""
        return len(os.sched_getaffinity(0)) if self.cpu_workers == "auto" else int(self.cpu_workers or 0)

    def error_limit(self, total: int) -> float:
        """Return the number of errors that is still no reason to stop."""
        if not self.max_errors:
            return float("inf")
        number = int(self.max_errors.removesuffix("%"))
        return total * number / 100 if self.max_errors.endswith("%") else number

    def fingerprint(self, tunable: Collection[str] = ()) -> str:
        """Return the digest of what the results depend on, beside the items. `tunable` settings are no part of it."""
        settings = {name: value for name, value in self.settings.items() if name not in {*tunable, "batch_size"}}
        parts = [self.worker, self.command, self.key, json.dumps(settings, sort_keys=True)]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()

    @classmethod
    def read(cls: type[T], directory: str) -> T:
        """Read the options in the local directory of a queue. Names that only another version knows are left out."""
        import msgspec

        with open(f"{directory}/{OPTIONS}", "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
