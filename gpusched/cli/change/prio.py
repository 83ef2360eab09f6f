"""`gpusched prio`: have waiting jobs start earlier or later than others."""

from __future__ import annotations

import click

from gpusched.cli.change.report import change_options
from gpusched.operations.change.requests import ChangeReport
from gpusched.operations.queues import QueueDir


@click.command(
    context_settings={"ignore_unknown_options": True},  # a number below zero is no option
    epilog="\b\nExamples:\n  gpusched prio 12 10\n  gpusched prio tag=eval -1",
)
@change_options
@click.argument("number", metavar="N", type=int)
def prio(queue_dir: QueueDir, jobs: tuple[str, ...], number: int) -> ChangeReport:
    """Have waiting jobs start earlier or later.

    Those with a higher number start first; 0 is usual. Exit code 1 if a job does not wait.
    """
    from gpusched.operations.change.edit import JobEdit, edit

    return edit(queue_dir, jobs, JobEdit({"prio": number}))
