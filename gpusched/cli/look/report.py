"""`gpusched report`: all that a queue did, as one HTML page. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, queue_argument
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError


@click.command(epilog="\b\nExamples:\n  gpusched report\n  gpusched report -q night -o night.html")
@queue_argument
@click.option("-o", "--output", metavar="FILE", help="Write it here.  [default: report.html in the queue's directory]")
def report(queue: str | None, output: str | None) -> None:
    """Write what a queue did, as one page.

    Which job was on which GPU and when, what others used, why GPUs were idle and what jobs waited for, GPU hours,
    failures with the end of their logs, and a table of all jobs. The page loads nothing, so it can be mailed.
    """
    from gpusched.operations.look.story import write_report

    try:
        click.echo(write_report(find_queue(queue), output or ""))
    except OSError as error:
        problem = f"the report cannot be written: {error.strerror}"
        raise GpuschedError(problem, where=output or "", exit_code=EXIT_CANNOT_WORK) from None
