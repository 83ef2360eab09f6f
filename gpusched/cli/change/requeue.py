"""`gpusched requeue`: queue failed or cancelled jobs again."""

from __future__ import annotations

import click

from gpusched.cli.change.report import jobs_argument, print_report
from gpusched.cli.options import find_queue, queue_option
from gpusched.operations import change


@click.command(epilog="\b\nExamples:\n  gpusched requeue 12\n  gpusched requeue --failed -q commands")
@jobs_argument
@queue_option
@click.option("--failed", is_flag=True, help="Queue every failed job.")
def requeue(jobs: tuple[str, ...], queue: str | None, failed: bool) -> int:
    """Queue failed or cancelled jobs again.

    They keep their order in the list, and get all their tries back. Exit code 1 if a job was neither failed nor
    cancelled.
    """
    return print_report(change.requeue(find_queue(queue, to_change=True), jobs, failed=failed))
