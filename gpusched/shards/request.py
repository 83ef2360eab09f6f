"""The request to run a script in shards, as a user makes it."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.option_table import check_values, option, options_of, words_of
from gpusched.shards.command import command_line
from gpusched.shards.merge_options import MergeOptions, shard_rows
from gpusched.shards.plan import SHARDS_PER_GPU, SplitOptions


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """A command to run in shards, its items, and the files to merge.

    `total` items are only counted; `items` is a file of them, or a pattern of files. A request is also the source of
    its jobs: their queue belongs to the command, the items and the output directory.
    """

    command: tuple[str, ...]
    total: int | None = option(None, "Split N items, which are only counted.", metavar="N", least=0, takes=int)
    items: str | None = option(
        None,
        "Split the items of this file: the lines of text or .jsonl, the records of .csv or .tsv, the rows of .parquet. "
        "A pattern in quotes: the files that it matches. -: the lines of standard input.",
        metavar="FILE",
    )
    output_dir: str | None = option(None, "Make this directory, and replace {output_dir} by it.", metavar="DIR")
    patterns: tuple[str, ...] = option(
        (),
        "Merge the files that the shards write, once all shards have succeeded: a pattern of the files of one shard, "
        "with wildcards and placeholders. May be repeated.",
        metavar="PATTERN",
        spelt="--merge",
    )
    split: SplitOptions = field(default_factory=SplitOptions)
    merge: MergeOptions | None = None

    def check(self) -> None:
        """Raise GpuschedError for invalid options, and for some that exclude each other."""
        check_values(self)
        check_values(self.split)
        if (self.total is None) == (self.items is None):
            raise GpuschedError("either --total N or --items FILE says which items there are")
        if self.split.num_shards and self.split.shard_size:
            raise GpuschedError("--num-shards and --shard-size exclude each other")
        if self.merge is not None and not self.patterns:
            raise GpuschedError("the options of a merge need --merge PATTERN")

    @property
    def stem(self) -> str:
        """The default name of the queue: the name of the script, and a hash of the command."""
        words = self.command[0].split() if len(self.command) == 1 else list(self.command)
        modules = [words[n].rpartition(".")[2] for n in range(1, len(words)) if words[n - 1] == "-m"]
        scripts = [word for word in words if word.endswith((".py", ".sh", ".pl", ".R", ".jl"))]
        name = os.path.splitext(os.path.basename([*scripts, *modules, *words, "shard"][0]))[0]
        return f"{name}-{hashlib.blake2b(self.owner, digest_size=4).hexdigest()}"

    @property
    def owner(self) -> bytes:
        """The identity of the queue's source; never equal to a file path."""
        items = [] if self.items is None else ["--items", self.items]
        directory = [] if self.output_dir is None else ["--output-dir", self.output_dir]
        return os.fsencode(shlex.join(["shard", *items, *directory, "--", *self.command]))

    @property
    def words(self) -> list[str]:
        """The command line after `gpusched`, without the settings of a run."""
        own = words_of(self, options_of(ShardRequest))
        split, merge = (
            words_of(self.split, options_of(SplitOptions)),
            words_of(self.merge or MergeOptions(), shard_rows()),
        )
        return ["shard", *own, *split, *merge, "--", *self.command]

    @property
    def merge_in_full(self) -> MergeOptions | None:
        """The options of the merge, with the absolute path of its output; None if nothing is merged."""
        merge = (self.merge or MergeOptions()) if self.patterns else None
        if merge is None or not merge.output:
            return merge
        return replace(merge, output=os.path.abspath(os.path.expanduser(merge.output)))

    @property
    def line(self) -> str:
        """The command as a line for the shell."""
        return command_line(self.command)

    def split_inputs(self, digest: str) -> dict[str, Any]:
        """Return the values that the split depends on, as the plan keeps them. `digest` is that of the items."""
        return {
            **asdict(self.split),
            "suffix": self.split.suffix or "",
            "shards_per_gpu": self.split.shards_per_gpu or SHARDS_PER_GPU,  # as version 0.1 keeps it
            "total": self.total,
            "weights": None,  # which version 0.1 had
            "digest": digest,
            "cwd": os.getcwd(),
        }
