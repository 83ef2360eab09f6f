"""The common parts of the verbs that change jobs: their jobs, their queue, and the report that they print."""

from __future__ import annotations

import functools
from collections.abc import Callable

import click

from gpusched.cli.completion import complete_jobs
from gpusched.cli.options import find_queue_of, json_option, print_json, queue_option
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.operations.change.requests import ChangeReport
from gpusched.views.changes import change_lines


def change_options(callback: Callable[..., ChangeReport]) -> Callable[..., int]:
    """Give a command JOB..., -q and --json; the callback gets `queue_dir` and `jobs`, and its report is printed."""

    @click.argument("jobs", nargs=-1, metavar="JOB...", shell_complete=complete_jobs)
    @queue_option
    @json_option()
    @functools.wraps(callback)
    def wrapper(jobs: tuple[str, ...], queue: str | None, as_json: bool, **values: object) -> int:
        queue_dir, jobs = find_queue_of(jobs, queue, to_change=True)
        report = callback(queue_dir, jobs, **values)
        return print_report(report, as_json=as_json)

    return wrapper


def print_report(report: ChangeReport, *, as_json: bool) -> int:
    """Print what was done and what was not; return the exit code."""
    if as_json:
        print_json(report.document())
    else:
        for text in (*change_lines(report.jobs), *report.notes):
            click.echo(text)
    return EXIT_SOME_FAILED if report.refused else EXIT_OK
