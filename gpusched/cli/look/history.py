"""`gpusched history`: the jobs that have ended lately. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, json_option, print_json, print_page, queue_argument, since_option
from gpusched.operations import queues
from gpusched.operations.look import usage
from gpusched.operations.look.status import JSON_LIMIT


@click.command(
    epilog="\b\nExamples:\n  gpusched history\n  gpusched history --since 7d --failed\n  gpusched history --json -v"
)
@queue_argument
@since_option("Begin 2d ago, at 22:30, or on 2026-12-24.  [default: yesterday]")
@click.option("--failed", is_flag=True, help="Show only jobs that have failed.")
@click.option("-v", "--verbose", is_flag=True, help="Show every job, not the newest 100 (with --json, 1,000).")
@json_option()
def history(queue: str | None, since: float | None, failed: bool, verbose: bool, as_json: bool) -> None:
    """Show what has ended lately.

    One line for each job that has ended: when, how and why, how long its last attempt took and on which GPU.
    """
    begin = usage.yesterday() if since is None else since
    limit = None if verbose else JSON_LIMIT if as_json else usage.SHOWN_JOBS
    with queues.open_queue(find_queue(queue)) as opened:
        if as_json:
            print_json(usage.history_document(opened, begin, limit, failed=failed))
            return
        rows, number = usage.read_history(opened, begin, limit, failed=failed)
    from gpusched.views.pages import history_page

    print_page(history_page(rows, number, begin, opened.now, failed=failed))
