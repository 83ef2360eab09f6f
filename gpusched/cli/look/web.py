"""`gpusched web`: show queues and GPUs in a browser, live. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import find_queue, load, queue_argument, say
from gpusched.operations import queues


@click.command(epilog="\b\nExamples:\n  gpusched web\n  gpusched web night --port 8123\n  gpusched web --all")
@queue_argument
@click.option("--all", "every", is_flag=True, help="Show all your queues on this host.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Listen there.  [default: a free one]")
def web(queue: str | None, every: bool, port: int | None) -> None:
    """Show a queue and the GPUs in a browser, live.

    Prints the address of the page, which is for you alone and stays the same at the next start. The page is at this
    host only; from another machine it is seen through ssh -L. It changes nothing. Ctrl-C ends it. Needs the extra web.
    """
    from gpusched.common.libraries import refuse_missing

    refuse_missing("web", ["starlette", "uvicorn"], extra="web")
    from gpusched.web.address import open_address
    from gpusched.web.server import serve

    chosen = None if every else find_queue(queue)
    address = open_address("" if chosen is None else chosen.path, port)
    say(f"on another machine, this leads the address to here: {address.tunnel}")
    click.echo(address.url)
    serve(address, queues.known_queues if chosen is None else lambda: [chosen], load().settings)
