"""The argument JOB... of the verbs that change jobs, and the report that they print."""

from __future__ import annotations

import click

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.operations.change import ChangeReport
from gpusched.views.changes import change_lines

jobs_argument = click.argument("jobs", nargs=-1, metavar="JOB...")


def print_report(report: ChangeReport) -> int:
    """Print what happened to which job, and return the exit code."""
    for text in [*change_lines(report.jobs), *report.notes]:
        click.echo(text)
    return EXIT_SOME_FAILED if report.refused else EXIT_OK
