"""`gpusched merge`: the stage commands/merge in the place of this process, with the same words."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpusched.shards.merge_options import OptionRow, option_rows


def click_values(row: OptionRow) -> dict[str, Any]:
    """Return the arguments of a click option for a row in the table of merge options."""
    kind = click.Choice(row.choices) if row.choices else int if row.kind is int else str
    values = {"is_flag": True} if row.kind is bool else {"type": kind, "multiple": row.kind is tuple}
    return values | {"default": row.default, "metavar": row.metavar or None, "help": row.full_help}


class MergeCommand(click.Command):
    """A command that leaves its words to the stage, --help too. Its own options are for the reference."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


@click.command(
    cls=MergeCommand,
    params=[
        click.Argument(["parts"], nargs=-1, metavar="IN..."),
        *(click.Option([row.flag, *([row.short] if row.short else [])], **click_values(row)) for row in option_rows()),
    ],
    epilog="\b\nExamples:\n  gpusched merge -o all.jsonl out_rank_*.jsonl\n"
    "  gpusched merge -o all.csv part_*.csv --key id --on-duplicate keep-first --expect 1000",
)
def merge(words: tuple[str, ...]) -> None:
    """Make one file of many parts."""
    from gpusched.config.layers import working_directory

    working_directory()
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file of the working directory is no module of ours. Python 3.10 does not know it.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", "gpusched.commands.merge", *words])
