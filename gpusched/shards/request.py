"""The request to run a script in shards, as a user makes it."""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.shards.command import command_line
from gpusched.shards.merge_options import MergeOptions, shard_rows
from gpusched.shards.plan import SHARDS_PER_GPU, SplitOptions

# Options whose flags are not called like their fields.
_FLAGS = {"min_items": "--min-items-per-shard", **{row.name: row.shard for row in shard_rows()}}


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
    output_dir: str | None = None
    patterns: tuple[str, ...] = ()  # of the files of a shard that are merged
    merge: MergeOptions | None = None

    def check(self) -> None:
        """Raise GpuschedError for options that exclude each other."""
        if (self.total is None) == (self.items is None):
            raise GpuschedError("either --total N or --items FILE says which items there are")
        if self.split.num_shards and self.split.shard_size:
            raise GpuschedError("--num-shards and --shard-size exclude each other")
        if self.split.suffix not in ("", "gpu", "shard"):
            raise GpuschedError("--suffix is gpu or shard")
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
        values: list[tuple[str, Any, Any]]
        values = [(name, getattr(self, name), None) for name in ("total", "items", "output_dir")]
        for options in (self.split, self.merge or MergeOptions()):
            values += [(each.name, getattr(options, each.name), each.default) for each in fields(options)]
        words = ["shard"]
        for name, value, default in [*values, ("merge", self.patterns, ())]:
            if value != default:
                flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
                for one in value if isinstance(value, tuple) else (value,):
                    words += [flag] if one is True else [flag, str(one)]
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
            "shards_per_gpu": self.split.shards_per_gpu or SHARDS_PER_GPU,  # as version 0.1 keeps it
            "total": self.total,
            "weights": None,  # which version 0.1 had
            "digest": digest,
            "cwd": os.getcwd(),
        }
