"""`gpusched resume`: let a paused queue go on."""

from __future__ import annotations

import click

from gpusched.cli.change.report import pause_options
from gpusched.operations.queues import QueueDir
from gpusched.operations.standing.pause import PauseReport, set_paused


@click.command(epilog="\b\nExamples:\n  gpusched resume\n  gpusched resume sweep")
@pause_options
def resume(queue_dir: QueueDir) -> PauseReport:
    """Let a paused queue go on."""
    return set_paused(queue_dir, paused=False)
