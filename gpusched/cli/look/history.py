"""`gpusched history`: the jobs that have ended lately. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, json_option, print_json, print_page, queue_argument
from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import parse_past
from gpusched.operations import queues
from gpusched.operations.look import usage
from gpusched.operations.look.status import JSON_LIMIT


@click.command(epilog="\b\nExamples:\n  gpusched history\n  gpusched history --since 7d\n  gpusched history --json -v")
@queue_argument
@click.option("--since", metavar="TIME", help="Begin 2d ago, at 22:30, or on 2026-12-24.  [default: yesterday]")
@click.option("-v", "--verbose", is_flag=True, help="Show every job, not the newest 100 (with --json, 1,000).")
@json_option()
def history(queue: str | None, since: str | None, verbose: bool, as_json: bool) -> None:
    """Show what has ended lately.

    One line for each job that has ended: when, how and why, how long its last attempt took and on which GPU.
    """
    begin = _begin(since)
    with queues.open_queue(find_queue(queue)) as opened:
        if as_json:
            print_json(usage.history_document(opened, begin, None if verbose else JSON_LIMIT))
            return
        rows, number = usage.read_history(opened, begin, None if verbose else usage.SHOWN_JOBS)
    from gpusched.views.pages import history_page

    print_page(history_page(rows, number, begin, opened.now))


def _begin(text: str | None) -> float:
    if text is None:
        return usage.yesterday()
    try:
        return parse_past(text, queues.now())
    except ValueError as error:
        raise GpuschedError(f"{text!r} is no time", where="--since", hint=str(error)) from None
