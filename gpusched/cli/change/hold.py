"""`gpusched hold`: keep waiting jobs from starting."""

from __future__ import annotations

import click

from gpusched.cli.change.report import jobs_argument, print_report
from gpusched.cli.options import find_queue, queue_option
from gpusched.operations import change


@click.command(epilog="\b\nExample:\n  gpusched hold 12 14-20")
@jobs_argument
@queue_option
@click.option("--tag", metavar="TAG", help="Hold every waiting job with this tag.")
def hold(jobs: tuple[str, ...], queue: str | None, tag: str | None) -> int:
    """Keep waiting jobs from starting.

    They stay held, over all starts of the queue, until they are released. Exit code 1 if a job does not wait.
    """
    return print_report(change.hold(find_queue(queue, to_change=True), jobs, tag=tag))
