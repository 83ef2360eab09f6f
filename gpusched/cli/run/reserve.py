"""`gpusched reserve`: GPUs for an editor, a notebook or a debugger that `gpusched exec` cannot start."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.help import GroupedCommand
from gpusched.cli.options import say, value_option
from gpusched.cli.run.interactive import gpu_options
from gpusched.common.errors import EXIT_OK
from gpusched.config.layers import LoadedSettings

if TYPE_CHECKING:
    from gpusched.operations.interactive.claim import GpuWish

SHOWN = (b"CUDA_DEVICE_ORDER", b"CUDA_VISIBLE_DEVICES")


class EvalCommand(GroupedCommand):
    """A command whose output a shell evaluates: where it fails it prints `false`, so that `eval` fails, too."""

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _false_on_failure():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _false_on_failure():
            return super().invoke(ctx)


@contextmanager
def _false_on_failure() -> Iterator[None]:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # while it waits
    try:
        yield
    except click.exceptions.Exit:  # of --help
        raise
    except BaseException:
        click.echo("false")
        raise


@click.command(cls=EvalCommand, epilog='\b\nExamples:\n  eval "$(gpusched reserve --for 2h)"\n  gpusched reserve --end')
@click.argument("reservation", required=False, type=int, metavar="[ID]")
@value_option("--for", "for_s", "Have it for this time.")
@click.option("--end", "ends", is_flag=True, help="Give reservation ID back, or your only one.")
@gpu_options("Give it back after this time without a process of yours there", "30m")
def reserve(reservation: int | None, for_s: float | None, ends: bool, wish: GpuWish, loaded: LoadedSettings) -> int:
    """Hold a GPU for an editor or a notebook.

    Waits until a GPU is free, and prints the variables by which programs find it, for eval; `false` if there is none. A
    process in the background holds it until its time is over, it is given back, or none of your processes was on it for
    30 minutes. The variables stay set: unset them then.
    """
    from gpusched.operations.box.devices import UNSET
    from gpusched.operations.interactive import reserve as operation

    if ends:
        job_id = operation.end_reservation(loaded, reservation)
        say(f"reservation {job_id} is given back; in the shell that had it: {UNSET}")
        return EXIT_OK
    if for_s is None or reservation is not None:
        raise click.UsageError("--for TIME is missing." if for_s is None else "ID goes with --end.")
    variables = operation.reserve(loaded, wish, for_s, say)
    click.echo("export " + " ".join(os.fsdecode(b"%b=%b" % (name, variables[name])) for name in SHOWN))
    return EXIT_OK
