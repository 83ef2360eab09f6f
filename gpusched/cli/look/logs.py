"""`gpusched logs`: what a job wrote. Changes nothing."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpusched.cli.options import find_queue_of, job_arguments, json_option, print_json, queue_option, say
from gpusched.common.errors import EXIT_OK
from gpusched.operations.look.logs import LogChoice, copy_log, log_document


@click.command(epilog="\b\nExamples:\n  gpusched logs 12\n  gpusched logs 12 -f -n 20\n  gpusched logs 12 --attempt 1")
@job_arguments("job")
@queue_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the job writes, to its end.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Print only the last LINES lines.")
@click.option("--err", "stderr", is_flag=True, help="Print stderr, of a job with --split-streams.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print attempt N.  [default: the newest]")
@json_option("Print where the log lies and what it belongs to, as JSON.")
def logs(job: str, queue: str | None, as_json: bool, **more: Any) -> int:
    """Print what a job wrote.

    The bytes are printed as they came: secrets that a job itself prints are not masked here. With -f the exit code is
    that of the job (128 + n for signal n); a job that waits to start is waited for.
    """
    choice = LogChoice(**more)
    if as_json and (choice.follow or choice.lines is not None):
        raise click.UsageError("--json prints no lines of the log: leave out -f and -n, and read the file at its path.")
    queue_dir, jobs = find_queue_of([job], queue)
    if not as_json:
        return copy_log(queue_dir, ",".join(jobs), sys.stdout.buffer, choice, notify=say)
    print_json(log_document(queue_dir, ",".join(jobs), choice, notify=say))
    return EXIT_OK
