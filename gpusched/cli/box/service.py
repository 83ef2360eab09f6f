"""`gpusched service`: a systemd user unit for a queue that stays."""

from __future__ import annotations

import os

import click

from gpusched.cli.options import load, say
from gpusched.common.errors import EXIT_OK


@click.command(epilog="Example: gpusched service --install")
@click.option("-q", "--queue", metavar="QUEUE", help="Name the queue.  [default: your own]")
@click.option("--install", "action", flag_value="install", help="Install the unit, and start it.")
@click.option("--remove", "action", flag_value="remove", help="Stop the unit, and remove it.")
def service(queue: str | None, action: str | None) -> int:
    """Print or install a systemd unit for a queue that stays.

    It dispatches the queue from boot on, belongs to you and needs no root. Stopping it leaves running jobs alone.
    """
    from gpusched.operations.box import service as services
    from gpusched.operations.run import submit

    queue_dir = submit.find_standing_queue(queue, load().settings.state_dir)
    if action is None:
        click.echo(services.unit_text(queue_dir, os.environ), nl=False)
    elif action == "install":
        submit.make_queue(queue_dir)
        say(f"installed {services.install(queue_dir, say)}")
    else:
        say(f"removed {services.remove(queue_dir)}")
    return EXIT_OK
