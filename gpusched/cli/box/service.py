"""`gpusched service`: a systemd user unit for a queue that stays."""

from __future__ import annotations

import os

import click

from gpusched.cli.options import load, say, standing_option
from gpusched.common.errors import EXIT_OK


@click.command(epilog="Example: gpusched service --install")
@standing_option()
@click.option("--install", is_flag=True, help="Install the unit, and start it.")
def service(queue: str | None, install: bool) -> int:
    """Print or install a systemd unit for a queue that stays.

    It dispatches the queue from boot on, belongs to you and needs no root. Stopping it leaves running jobs alone.
    """
    from gpusched.operations.box import service as services
    from gpusched.operations.run import submit

    queue_dir = submit.find_standing_queue(queue, load().settings.state_dir)
    if install:
        submit.make_queue(queue_dir)
        services.install(queue_dir, say)
    else:
        click.echo(services.unit_text(queue_dir, os.environ), nl=False)
    return EXIT_OK
