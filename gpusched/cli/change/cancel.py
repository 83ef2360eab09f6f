"""`gpusched cancel`: cancel jobs, running ones too."""

from __future__ import annotations

import click

from gpusched.cli.change.report import jobs_argument, print_report
from gpusched.cli.options import find_queue, queue_option
from gpusched.operations import change


@click.command(epilog="\b\nExamples:\n  gpusched cancel 12\n  gpusched cancel 3-7 9 -q commands")
@jobs_argument
@queue_option
@click.option("--all", "every", is_flag=True, help="Cancel every job that waits or runs.")
def cancel(jobs: tuple[str, ...], queue: str | None, every: bool) -> int:
    """Cancel jobs, running ones too.

    A running job gets TERM, and KILL after the grace time; a cancelled one stays so until it is queued again. Exit
    code 1 if a job had ended before.
    """
    return print_report(change.cancel(find_queue(queue, to_change=True), jobs, every=every))
