"""`gpusched merge`: the stage commands/merge in the place of this process, with the same words."""

from __future__ import annotations

import os
import sys

import click

from gpusched.cli.features.table import table_options
from gpusched.shards.merge_options import MergeOptions


class MergeCommand(click.Command):
    """A command that leaves its words to the stage, --help too. Its own options are for the reference."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


@click.command(
    cls=MergeCommand,
    epilog="\b\nExamples:\n  gpusched merge -o all.jsonl out_rank_*.jsonl\n"
    "  gpusched merge -o all.csv part_*.csv --key id --on-duplicate keep-first --expect 1000",
)
@click.argument("parts", nargs=-1, metavar="IN...")
@table_options(MergeOptions)
def merge(words: tuple[str, ...]) -> None:
    """Make one file of many parts."""
    from gpusched.config.layers import working_directory

    working_directory()
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file of the working directory is no module of ours. Python 3.10 does not know it.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", "gpusched.commands.merge", *words])
