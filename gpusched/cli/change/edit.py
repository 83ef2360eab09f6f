"""`gpusched edit`: change what waiting jobs need."""

from __future__ import annotations

from typing import Any

import click

from gpusched.cli.change.report import change_options
from gpusched.cli.run.attributes import begin_option, edit_options
from gpusched.operations.change.requests import ChangeReport
from gpusched.operations.queues import QueueDir


@click.command(
    epilog="\b\nExamples:\n  gpusched edit 12 --mem 24G --time 4h\n  gpusched edit tag=eval --prio 5 --after ''"
)
@change_options
@click.option("--command", metavar="COMMAND", help="Run this command.")
@edit_options
@begin_option
def edit(
    queue_dir: QueueDir, jobs: tuple[str, ...], command: str | None, attributes: dict[str, Any], begin_at: float | None
) -> ChangeReport:
    """Change what waiting jobs need.

    An empty value takes back what a job states: --time ''. A job of a list keeps what was edited until the list is
    read again. Exit code 1 if a job does not wait.
    """
    from gpusched.operations.change.edit import JobEdit
    from gpusched.operations.change.edit import edit as operation

    return operation(queue_dir, jobs, JobEdit(attributes, command, begin_at))
