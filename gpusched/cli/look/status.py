"""`gpusched status`: the queues and their jobs. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, print_json, print_page, queue_argument
from gpusched.config.layers import working_directory
from gpusched.operations import queues
from gpusched.operations.look import status as operation
from gpusched.operations.queues import QueueDir, open_queue


@click.command(epilog="\b\nExamples:\n  gpusched status\n  gpusched status commands -v\n  gpusched status --json")
@queue_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with -v all jobs, else at most the newest 1,000.")
@click.option("-v", "--verbose", is_flag=True, help="List every job.")
def status(queue: str | None, as_json: bool, verbose: bool) -> None:
    """Show the queues and their jobs.

    Without QUEUE: all your queues on this host, those with a dispatcher first, then those run last; AGE counts from
    the first start. A single one is shown in full. With QUEUE or -v: one queue, its GPUs, what runs, what waits and
    why, what has failed.
    """
    working_directory()
    known = queues.known_queues() if queue is None and not verbose else []
    if len(known) > 1:
        _print_all(known, as_json=as_json)
        return
    queue_dir = known[0] if known else find_queue(queue)
    if as_json:
        with open_queue(queue_dir) as opened:
            document = operation.full_document(opened, jobs=None if verbose else operation.JSON_LIMIT)
        print_json({"queues": [document]})
        return
    from gpusched.views.pages import queue_page

    print_page(queue_page(operation.read_queue(queue_dir, every_job=verbose)))


def _print_all(known: list[QueueDir], *, as_json: bool) -> None:
    if as_json:
        documents, broken = operation.read_each(known, operation.queue_document)
        print_json({"queues": documents})
    else:
        from gpusched.views.pages import queue_list

        summaries, broken = operation.read_each(
            known, lambda queue: operation.summarize_queue(queue, queues.queue_name(queue.queue_dir, known))
        )
        print_page(queue_list(summaries, queues.now()))
    for text in broken:
        click.echo(f"gpusched: warning: {text}", err=True)
