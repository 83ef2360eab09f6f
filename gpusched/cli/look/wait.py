"""`gpusched wait`: wait until jobs have ended. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import (
    find_queue_of,
    job_arguments,
    json_option,
    print_json,
    queue_option,
    say,
    value_option,
)
from gpusched.operations.look.wait import wait_for


@click.command(
    epilog="\b\nExamples:\n  gpusched wait 12\n  gpusched wait 3-7 --any\n  gpusched wait --timeout 2h && make report"
)
@job_arguments()
@queue_option
@click.option("--any", "first_only", is_flag=True, help="Wait for one of them only.")
@value_option("--timeout", "timeout_s", help="Give up after this time: exit code 124.")
@json_option("Print how the jobs stand at the end as JSON.")
def wait(jobs: tuple[str, ...], queue: str | None, first_only: bool, timeout_s: float | None, as_json: bool) -> int:
    """Wait until jobs have ended.

    The exit code is the one that gpusched run would give for these jobs: 0 if all have succeeded, else 1; 2 if one is
    not there. Without JOB: for all jobs that are there now. Ctrl-C ends the wait, and the jobs go on.
    """
    queue_dir, jobs = find_queue_of(jobs, queue, for_script=True)
    report = wait_for(queue_dir, jobs, first_only=first_only, timeout_s=timeout_s, notify=say)
    if as_json:
        print_json(report.document())
    return report.code
