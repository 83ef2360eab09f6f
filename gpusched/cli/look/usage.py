"""`gpusched usage`: GPU hours, failures and energy of the jobs of a queue. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, json_option, print_json, print_page, queue_argument, say
from gpusched.operations import queues
from gpusched.operations.look.usage import read_usage, usage_document


@click.command(epilog="\b\nExamples:\n  gpusched usage --by tag\n  gpusched usage --all --by day --json")
@queue_argument
@click.option(
    "--by",
    type=click.Choice(["tag", "device", "day", "queue"]),
    help="Add up by this.  [default: tag, of several queues queue]",
)
@click.option("--all", "every", is_flag=True, help="Add up over all your queues on this host, as --by queue does.")
@json_option()
def usage(queue: str | None, by: str | None, every: bool, as_json: bool) -> None:
    """Show what jobs have used: GPU hours, energy.

    Each attempt counts with its time on each of its GPUs, what runs until now. Jobs that share a GPU count each. Jobs
    that were cleaned away count no more.
    """
    by = by or ("queue" if every else "tag")
    is_wide = queue is None and (every or by == "queue")
    sums, broken = read_usage(queues.known_queues() if is_wide else [find_queue(queue)], by)
    if as_json:
        print_json(usage_document(sums, by))
    else:
        from gpusched.views.pages import usage_table

        print_page(usage_table(by, *sums))
    for text in broken:
        say(f"warning: {text}")
