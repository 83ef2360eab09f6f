"""`gpusched exec`: a command on this terminal that has GPUs to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpusched.cli.help import GroupedCommand
from gpusched.cli.options import say, value_option
from gpusched.cli.run.interactive import gpu_options
from gpusched.config.layers import LoadedSettings

if TYPE_CHECKING:
    from gpusched.operations.interactive.claim import GpuWish


@click.command(
    cls=GroupedCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  gpusched exec python train.py --lr 0.1\n  gpusched exec --mem 18G --for 2h",
)
@click.argument("words", nargs=-1, metavar="[COMMAND]...", type=click.UNPROCESSED)
@value_option("--for", "for_s", "End it after this time.  [default: 8h without COMMAND]")
@gpu_options("Report that it had no process on its GPU for so long; end a shell", "2h without COMMAND")
def exec(words: tuple[str, ...], for_s: float | None, wish: GpuWish, loaded: LoadedSettings) -> int:
    """Run a command here, on a GPU of its own.

    Waits until a GPU is free, as jobs do, and says why it waits; runs COMMAND on this terminal, passes its exit code on
    and gives the GPU back. Without COMMAND it is your shell, which ends after 8h, or 2h without a process on the GPU.
    """
    from gpusched.operations.interactive.run_command import run_command

    return run_command(words, loaded, wish, for_s, say)
