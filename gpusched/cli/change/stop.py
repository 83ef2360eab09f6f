"""`gpusched stop`: ask a dispatcher to leave."""

from __future__ import annotations

import click

from gpusched.cli.change.report import print_report
from gpusched.cli.options import find_queue, json_option, queue_argument
from gpusched.operations.change import requests


@click.command(epilog="\b\nExamples:\n  gpusched stop\n  gpusched stop commands --now")
@queue_argument
@click.option("--now", "at_once", is_flag=True, help="Stop the running jobs too; they are queued again.")
@json_option()
def stop(queue: str | None, at_once: bool, as_json: bool) -> int:
    """Ask a dispatcher to leave.

    It starts nothing new and leaves when the running jobs have ended, as after one Ctrl-C; with --now it stops them
    first, as after two.
    """
    return print_report(requests.stop(find_queue(queue, to_change=True), at_once=at_once), as_json=as_json)
