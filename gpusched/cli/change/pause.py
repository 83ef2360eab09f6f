"""`gpusched pause`: let nothing new start in a queue."""

from __future__ import annotations

import click

from gpusched.cli.change.report import print_report
from gpusched.cli.options import find_queue, json_option, queue_argument
from gpusched.operations.change.requests import set_paused


@click.command(epilog="\b\nExamples:\n  gpusched pause\n  gpusched pause sweep")
@queue_argument
@json_option()
def pause(queue: str | None, as_json: bool) -> int:
    """Let nothing new start in a queue.

    What runs goes on. The queue stays paused, over all starts, until gpusched resume.
    """
    return print_report(set_paused(find_queue(queue, to_change=True), paused=True), as_json=as_json)
