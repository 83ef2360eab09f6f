"""`gpusched cancel`: cancel jobs, running ones too."""

from __future__ import annotations

import click

from gpusched.cli.change.report import change_options
from gpusched.operations.change import requests
from gpusched.operations.queues import QueueDir


@click.command(epilog="\b\nExamples:\n  gpusched cancel 12\n  gpusched cancel 3-7 9 -q commands")
@change_options
@click.option("--all", "every", is_flag=True, help="Cancel every job that waits or runs.")
def cancel(queue_dir: QueueDir, jobs: tuple[str, ...], every: bool) -> requests.ChangeReport:
    """Cancel jobs, running ones too.

    A running job gets TERM, and KILL after the grace time; a cancelled one stays so until it is queued again. Exit
    code 1 if a job had succeeded or failed before.
    """
    return requests.cancel(queue_dir, jobs, every=every)
