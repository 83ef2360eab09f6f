"""`gpusched merge`: the stage commands/merge in the place of this process, with the same words."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from gpusched.shards.merge_options import OptionRow, option_rows


def option(row: OptionRow, flag: str = "", **more: Any) -> click.Option:
    """Return the click option of a row in the table of merge options."""
    kind: Any = click.Choice(row.choices) if row.choices else int if row.kind is int else str
    kinds = {"is_flag": True} if row.kind is bool else {"type": kind, "multiple": row.kind is tuple}
    names = [flag or row.flag, *([row.short] if row.short and not flag else [])]
    return click.Option(names, help=row.help, metavar=row.metavar or None, **kinds, **more)


class MergeCommand(click.Command):
    """A command that leaves its words, --help too, to the stage. Its options are for the reference and completion."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []


def _run(words: tuple[str, ...]) -> None:
    from gpusched.config.settings import working_directory

    working_directory()
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file of the working directory is no module of ours. Python 3.10 does not know it.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", "gpusched.commands.merge", *words])


merge = MergeCommand(
    "merge",
    callback=_run,
    params=[click.Argument(["parts"], nargs=-1, metavar="IN..."), *map(option, option_rows())],
    help="Make one file of many parts.",
    epilog="\b\nExamples:\n  gpusched merge -o all.jsonl out_rank_*.jsonl\n"
    "  gpusched merge -o all.csv part_*.csv --key id --on-duplicate keep-first --expect 1000",
)
