"""The common parts of the verbs that change jobs: their jobs, their queue, and the report that they print."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from gpusched.cli.completion import complete_jobs
from gpusched.cli.options import find_queue, queue_option
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.operations.change import ChangeReport
from gpusched.views.changes import change_lines


def change_options(callback: Callable[..., ChangeReport]) -> Callable[..., int]:
    """Give a command JOB... and -q; the callback gets `queue_dir` and `jobs`, and its report is printed."""

    @click.argument("jobs", nargs=-1, metavar="JOB...", shell_complete=complete_jobs)
    @queue_option
    @functools.wraps(callback)
    def wrapper(jobs: tuple[str, ...], queue: str | None, **values: object) -> int:
        report = callback(find_queue(queue, to_change=True), jobs, **values)
        for text in [*change_lines(report.jobs), *report.notes]:
            click.echo(text)
        return EXIT_SOME_FAILED if report.refused else EXIT_OK

    return wrapper
