"""`gpusched release`: let held jobs start again."""

from __future__ import annotations

import click

from gpusched.cli.change.report import jobs_argument, print_report
from gpusched.cli.options import find_queue, queue_option
from gpusched.operations import change


@click.command(epilog="\b\nExamples:\n  gpusched release 12\n  gpusched release --tag ablation")
@jobs_argument
@queue_option
@click.option("--tag", metavar="TAG", help="Release every held job with this tag.")
def release(jobs: tuple[str, ...], queue: str | None, tag: str | None) -> int:
    """Let held jobs start again.

    Exit code 1 if a job is not held.
    """
    return print_report(change.release(find_queue(queue, to_change=True), jobs, tag=tag))
