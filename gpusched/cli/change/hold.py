"""`gpusched hold`: keep waiting jobs from starting."""

from __future__ import annotations

import click

from gpusched.cli.change.report import change_options
from gpusched.operations.change import requests
from gpusched.operations.queues import QueueDir


@click.command(epilog="\b\nExample:\n  gpusched hold 12 14-20")
@change_options
@click.option("--all", "every", is_flag=True, help="Hold every waiting job.")
@click.option("--tag", metavar="TAG", help="Hold every waiting job with this tag.")
def hold(queue_dir: QueueDir, jobs: tuple[str, ...], every: bool, tag: str | None) -> requests.ChangeReport:
    """Keep waiting jobs from starting.

    They stay held, over all starts of the queue, until they are released. Exit code 1 if a job does not wait.
    """
    return requests.hold(queue_dir, jobs, every=every, tag=tag)
