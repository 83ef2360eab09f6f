"""`gpusched completion`: the script with which a shell completes our commands. Changes nothing."""

from __future__ import annotations

import click

INSTALL = {
    "bash": 'gpusched completion bash > "${XDG_DATA_HOME:-$HOME/.local/share}/bash-completion/completions/gpusched"',
    "zsh": 'gpusched completion zsh > "${fpath[1]}/_gpusched"',
    "fish": "gpusched completion fish > ~/.config/fish/completions/gpusched.fish",
}


@click.command(epilog='\b\nExample:\n  eval "$(gpusched completion bash)"')
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    It completes commands, options, files, queues, and ids and names of jobs. Its last line says how to install it.
    """
    from click.shell_completion import get_completion_class

    from gpusched.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "gpusched", "_GPUSCHED_COMPLETE").source().rstrip())
    click.echo(f"\n# to install it: {INSTALL[shell]}")
