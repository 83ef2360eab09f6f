"""`gpusched logs`: what a job wrote. Changes nothing."""

from __future__ import annotations

import sys

import click

from gpusched.cli.options import find_queue, print_json, queue_option
from gpusched.operations.logs import LogChoice, copy_log, log_document


@click.command(epilog="\b\nExamples:\n  gpusched logs 12\n  gpusched logs 12 -f -n 20\n  gpusched logs 12 --attempt 1")
@click.argument("job")
@queue_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the job writes, to the end of its attempt.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Print only the last LINES lines.")
@click.option("--err", "stderr", is_flag=True, help="Print stderr, of a job with --split-streams.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print attempt N.  [default: the newest]")
@click.option("--json", "as_json", is_flag=True, help="Print where the log lies and what it belongs to, as JSON.")
def logs(
    job: str, queue: str | None, follow: bool, lines: int | None, stderr: bool, attempt: int | None, as_json: bool
) -> None:
    """Print what a job wrote.

    The bytes are printed as they came: secrets that a job itself prints are not masked here.
    """
    choice = LogChoice(lines, attempt, stderr, follow)
    if not as_json:
        copy_log(find_queue(queue), job, sys.stdout.buffer, choice)
    elif follow or lines is not None:
        raise click.UsageError("--json prints no lines of the log: leave out -f and -n, and read the file at its path.")
    else:
        print_json(log_document(find_queue(queue), job, choice))
