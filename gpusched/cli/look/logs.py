"""`gpusched logs`: what a job wrote. Changes nothing."""

from __future__ import annotations

import sys

import click

from gpusched.cli.options import find_queue_of, queue_option, say
from gpusched.operations.logs import LogChoice, copy_log


@click.command(epilog="\b\nExamples:\n  gpusched logs 12\n  gpusched logs 12 -f -n 20\n  gpusched logs 12 --attempt 1")
@click.argument("job")
@queue_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the job writes, to the end of its attempt.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Print only the last LINES lines.")
@click.option("--err", "stderr", is_flag=True, help="Print stderr, of a job with --split-streams.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print attempt N.  [default: the newest]")
def logs(job: str, queue: str | None, follow: bool, lines: int | None, stderr: bool, attempt: int | None) -> None:
    """Print what a job wrote.

    The bytes are printed as they came: secrets that a job itself prints are not masked here.
    """
    queue_dir, jobs = find_queue_of([job], queue)
    copy_log(queue_dir, ",".join(jobs), sys.stdout.buffer, LogChoice(lines, attempt, stderr, follow), notify=say)
