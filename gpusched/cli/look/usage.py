"""`gpusched usage`: GPU hours, failures and energy of the jobs of a queue. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, json_option, print_json, print_page, queue_argument, say, since_option
from gpusched.common.text import count
from gpusched.operations import queues
from gpusched.operations.look.usage import Usage, read_usage, usage_document


@click.command(epilog="\b\nExamples:\n  gpusched usage --by tag\n  gpusched usage --all --by day --json")
@queue_argument
@click.option(
    "--by",
    type=click.Choice(["tag", "device", "day", "queue"]),
    help="Add up by this.  [default: tag, of several queues queue]",
)
@click.option("--all", "every", is_flag=True, help="Add up over all your queues on this host, as --by queue does.")
@since_option("Count from 7d ago, yesterday, or 2026-12-24 on.  [default: all]")
@click.option("--parquet", metavar="FILE", help="Write a row for each attempt to this file instead, for notebooks.")
@json_option()
def usage(
    queue: str | None, by: str | None, every: bool, since: float | None, parquet: str | None, as_json: bool
) -> None:
    """Show what jobs have used: GPU hours, energy.

    Each attempt counts with its time on each of its GPUs, what runs until now. Jobs that share a GPU count each. Jobs
    that were cleaned away count no more. FAILED counts attempts, but no interactive commands. OTHERS says in how many
    of the samples of a GPU others were on it, too. Columns without a value are left out.
    """
    by = by or ("queue" if every else "tag")
    is_wide = queue is None and (every or by == "queue")
    known = queues.known_queues() if is_wide else [find_queue(queue)]
    if parquet is not None:
        from gpusched.operations.look.frame import write_parquet

        number, broken = write_parquet(known, parquet)
        click.echo(f"{parquet}: {count(number, 'row')}")
    else:
        sums, broken = read_usage(known, by, since or 0.0)
        _print(sums, by, as_json=as_json)
    for text in broken:
        say(f"warning: {text}")


def _print(sums: Usage, by: str, *, as_json: bool) -> None:
    if as_json:
        print_json(usage_document(sums, by))
    else:
        from gpusched.views.pages import usage_table

        print_page(usage_table(by, *sums))
