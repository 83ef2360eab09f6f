"""`gpusched pause`: let nothing new start in a queue."""

from __future__ import annotations

import click

from gpusched.cli.change.report import pause_options
from gpusched.operations.queues import QueueDir
from gpusched.operations.standing.pause import PauseReport, set_paused


@click.command(epilog="\b\nExamples:\n  gpusched pause\n  gpusched pause sweep")
@pause_options
def pause(queue_dir: QueueDir) -> PauseReport:
    """Let nothing new start in a queue.

    What runs goes on. The queue stays paused, over all starts, until gpusched resume.
    """
    return set_paused(queue_dir, paused=True)
