"""`gpusched release`: let held jobs start again."""

from __future__ import annotations

import click

from gpusched.cli.change.report import change_options
from gpusched.operations.change import requests
from gpusched.operations.queues import QueueDir


@click.command(epilog="\b\nExamples:\n  gpusched release 12\n  gpusched release --tag ablation")
@change_options
@click.option("--all", "every", is_flag=True, help="Release every held job.")
@click.option("--tag", metavar="TAG", help="Release every held job with this tag.")
def release(queue_dir: QueueDir, jobs: tuple[str, ...], every: bool, tag: str | None) -> requests.ChangeReport:
    """Let held jobs start again.

    Exit code 1 if a job is not held.
    """
    return requests.release(queue_dir, jobs, every=every, tag=tag)
