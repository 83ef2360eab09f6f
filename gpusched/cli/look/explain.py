"""`gpusched explain`: why a job waits, or how it ended. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue_of, print_page, queue_option, say
from gpusched.operations import explain as operation


@click.command(epilog="\b\nExamples:\n  gpusched explain 12\n  gpusched explain 12 -q commands")
@click.argument("job")
@queue_option
def explain(job: str, queue: str | None) -> None:
    """Say why a job waits, or how it ended.

    A waiting job is explained by the dispatcher's own plan. For each attempt: when, on which GPU, how it ended and
    why, what may help, where its log is.
    """
    from gpusched.views.pages import job_page

    queue_dir, jobs = find_queue_of([job], queue)
    print_page(job_page(operation.explain(queue_dir, ",".join(jobs), notify=say)))
