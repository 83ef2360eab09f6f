"""`gpusched explain`: why a job waits, or how it ended. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, job_arguments, json_option, print_json, print_page, queue_option
from gpusched.operations import explain as operation


@click.command(epilog="\b\nExamples:\n  gpusched explain 12\n  gpusched explain 12 -q commands")
@job_arguments("job")
@queue_option
@json_option()
def explain(job: str, queue: str | None, as_json: bool) -> None:
    """Say why a job waits, or how it ended.

    A waiting job is explained by the dispatcher's own plan. For each attempt: when, on which GPU, how it ended and
    why, what may help, where its log is.
    """
    report = operation.explain(find_queue(queue), job)
    if as_json:
        print_json(operation.explain_document(report))
        return
    from gpusched.views.pages import job_page

    print_page(job_page(report))
