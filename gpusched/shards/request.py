"""The request to run a script in shards, as a user makes it."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.shards.command import command_line
from gpusched.shards.merge_options import MergeOptions, shard_rows
from gpusched.shards.plan import SplitOptions

# Options whose flags are not called like their fields.
_FLAGS = {"min_items": "min_items_per_shard", **{row.name: row.shard.removeprefix("--") for row in shard_rows()}}


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """A command to run in shards, its items, and the files to merge.

    `total` items are only counted; `items` is a file of them, or a pattern of files. A request is also the source of
    its jobs: their queue belongs to the command, the items and the output directory.
    """

    command: tuple[str, ...]
    total: int | None = None
    items: str | None = None
    split: SplitOptions = field(default_factory=SplitOptions)
    weights: str | None = None  # the column of the weights of the items
    output_dir: str | None = None
    patterns: tuple[str, ...] = ()  # of the files of a shard that are merged
    merge: MergeOptions | None = None

    def check(self) -> None:
        """Raise GpuschedError for options that exclude each other."""
        if (self.total is None) == (self.items is None):
            raise GpuschedError("either --total N or --items FILE says which items there are")
        if self.split.num_shards and self.split.shard_size:
            raise GpuschedError("--num-shards and --shard-size exclude each other")
        if self.split.strided and self.weights:
            raise GpuschedError("--strided and --weights exclude each other")
        if self.weights and self.items is None:
            raise GpuschedError("--weights needs --items")
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
        options = {name: getattr(self, name) for name in ("total", "items", "weights", "output_dir")}
        split, no_split = asdict(self.split), asdict(SplitOptions())
        options |= {_FLAGS.get(name, name): value for name, value in split.items() if value != no_split[name]}
        options["merge"] = self.patterns
        if self.merge is not None:
            merge, no_merge = asdict(self.merge), asdict(MergeOptions())
            options |= {_FLAGS.get(name, name): value for name, value in merge.items() if value != no_merge[name]}
        words = ["shard"]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                words.append(flag)
            elif value is not None:
                words += [
                    word for text in (value if isinstance(value, tuple) else (value,)) for word in (flag, str(text))
                ]
        return [*words, "--", *self.command]

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
            "total": self.total,
            "weights": self.weights,
            "digest": digest,
            "cwd": os.getcwd(),
        }
