"""`gpusched explain`: why a job waits, or how it ended; of a queue, why it does not go on. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import (
    find_queue,
    find_queue_of,
    job_arguments,
    json_option,
    print_json,
    print_page,
    queue_option,
    say,
)
from gpusched.operations.look import explain as operation
from gpusched.operations.look.status import read_queue


@click.command(epilog="\b\nExamples:\n  gpusched explain 12\n  gpusched explain 12 -q commands\n  gpusched explain")
@job_arguments("job", required=False)
@queue_option
@json_option()
def explain(job: str | None, queue: str | None, as_json: bool) -> None:
    """Say why a job waits, or how it ended.

    A waiting job is explained by the dispatcher's own plan. For each attempt: when, on which GPU, how it ended and
    why, what may help, where its log is. Without JOB: why the jobs of the queue wait, and how failed ones have ended.
    """
    if job is not None:
        from gpusched.views.pages import job_page

        queue_dir, jobs = find_queue_of([job], queue)
        report = operation.explain(queue_dir, ",".join(jobs), notify=say)
        if as_json:
            print_json(operation.job_explanation(report))
        else:
            print_page(job_page(report))
        return
    queue_dir = find_queue(queue)
    if as_json:
        print_json(operation.queue_explanation(queue_dir))
    else:
        from gpusched.views.pages import explanation_page

        print_page(explanation_page(read_queue(queue_dir)))
