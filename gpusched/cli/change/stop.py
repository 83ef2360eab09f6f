"""`gpusched stop`: ask a dispatcher to leave."""

from __future__ import annotations

import shlex
from dataclasses import asdict

import click

from gpusched.cli.options import find_queue, json_option, print_json, queue_argument
from gpusched.operations import queues
from gpusched.operations.change import requests
from gpusched.views.changes import stop_lines


@click.command(epilog="\b\nExamples:\n  gpusched stop\n  gpusched stop commands --now")
@queue_argument
@click.option("--now", "at_once", is_flag=True, help="Stop the running jobs too; they are queued again.")
@json_option()
def stop(queue: str | None, at_once: bool, as_json: bool) -> None:
    """Ask a dispatcher to leave.

    It starts nothing new and leaves when the running jobs have ended, as after one Ctrl-C; with --now it stops them
    first, as after two.
    """
    queue_dir = find_queue(queue, to_change=True)
    report = requests.stop(queue_dir, at_once=at_once)
    if as_json:
        print_json(asdict(report))
        return
    lines = stop_lines(
        report.pid,
        report.running,
        report.answer,
        queue=queues.shown_path(queue_dir.path),
        option=shlex.quote(queues.queue_name(queue_dir)),
        at_once=at_once,
    )
    click.echo("\n".join(lines))
