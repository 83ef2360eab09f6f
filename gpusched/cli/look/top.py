"""`gpusched top`: watch a queue and the GPUs, and change jobs, on the whole terminal."""

from __future__ import annotations

import sys

import click

from gpusched.cli.options import find_queue, load, queue_argument
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.operations import queues


@click.command(epilog="\b\nExamples:\n  gpusched top\n  gpusched top night\n  gpusched top --all")
@queue_argument
@click.option("--all", "every", is_flag=True, help="Watch all your queues on this host.")
def top(queue: str | None, every: bool) -> None:
    """Watch a queue and the GPUs, and change jobs.

    GPUs with their last minutes, jobs, and one job in full with its log as it grows. ? lists the keys: cancel, hold,
    requeue, prefer, pause and others, as the verbs do it. q leaves, and nothing stops. Needs the extra top.
    """
    from gpusched.common.libraries import refuse_missing

    refuse_missing("top", ["textual"], extra="top")
    from gpusched.views.terminal.area import can_be_drawn_over

    if not (sys.stdin.isatty() and can_be_drawn_over(sys.stdout)):
        hint = "gpusched status and gpusched devices print the same"
        raise GpuschedError(
            "needs a terminal that can move its cursor", where="top", hint=hint, exit_code=EXIT_CANNOT_WORK
        )
    from gpusched.tui.changes import run_top

    chosen = None if every else find_queue(queue)
    run_top(queues.known_queues if chosen is None else lambda: [chosen], load().settings)
