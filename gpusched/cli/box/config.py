"""`gpusched config`: each setting, its value and where it comes from. Changes nothing."""

from __future__ import annotations

import click

from gpusched.cli.options import json_option, load, print_json
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS, show


@click.command(epilog="\b\nExamples:\n  gpusched config\n  GPUSCHED_MAX_GPUS=2 gpusched config --json")
@json_option()
def config(as_json: bool) -> None:
    """Show each setting, its value and its origin.

    A value comes from the last of these that names it: the default, the system file, your own file,
    gpusched.yaml in the working directory, the variable GPUSCHED_NAME, the flag of a command.
    """
    loaded = load()
    if as_json:
        print_json(loaded.document())
    else:
        click.echo(as_text(loaded))


def as_text(loaded: LoadedSettings) -> str:
    rows = [("SETTING", "VALUE", "ORIGIN")]
    for name, setting in SETTINGS.items():
        value = getattr(loaded.settings, name)
        text = setting.default_text() if loaded.origins[name] == "default" else show(setting, value)
        rows.append((name, text, loaded.origins[name]))
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in rows]
    lines += ["", "Files, the later one wins:"]
    lines += [f"  {f.layer:<8} {f.path}  ({f.state})" for f in loaded.files]
    return "\n".join(lines)
