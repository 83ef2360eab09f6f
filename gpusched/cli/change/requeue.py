"""`gpusched requeue`: queue failed or cancelled jobs again."""

from __future__ import annotations

import click

from gpusched.cli.change.report import change_options
from gpusched.operations.change import requests
from gpusched.operations.queues import QueueDir


@click.command(epilog="\b\nExamples:\n  gpusched requeue 12\n  gpusched requeue --failed -q commands")
@change_options
@click.option("--failed", is_flag=True, help="Queue every failed job.")
@click.option("--again", is_flag=True, help="Queue jobs that have succeeded, too.")
def requeue(queue_dir: QueueDir, jobs: tuple[str, ...], failed: bool, again: bool) -> requests.ChangeReport:
    """Queue failed or cancelled jobs again.

    They keep their order in the list, and get all their tries back. Exit code 1 if a job was neither failed nor
    cancelled; with --again it may have succeeded.
    """
    return requests.requeue(queue_dir, jobs, failed=failed, again=again)
