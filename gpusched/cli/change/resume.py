"""`gpusched resume`: let a paused queue go on."""

from __future__ import annotations

import click

from gpusched.cli.change.report import print_report
from gpusched.cli.options import find_queue, json_option, queue_argument
from gpusched.operations.change.requests import set_paused


@click.command(epilog="\b\nExamples:\n  gpusched resume\n  gpusched resume sweep")
@queue_argument
@json_option()
def resume(queue: str | None, as_json: bool) -> int:
    """Let a paused queue go on."""
    return print_report(set_paused(find_queue(queue, to_change=True), paused=False), as_json=as_json)
